"""The queries as SQL of Spark Structured Streaming and of Flink, or the reason why they cannot.

Views `person`, `auction` and `bid` stand for the streams; `side` is the table of q13. A user of
either writes about so many lines.
"""

from __future__ import annotations

RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def _ranked(what: str, name: str) -> list[str]:
    each = [f"count({what}) FILTER (WHERE {test}) AS {rank}_{name}" for rank, test in RANKS.items()]
    return [f"count({what}) AS total_{name}", *each]


BIDS = ",\n    ".join(_ranked("*", "bids"))
STATISTICS = ",\n    ".join(
    [
        *_ranked("*", "bids"),
        *_ranked("DISTINCT bidder", "bidders"),
        *_ranked("DISTINCT auction", "auctions"),
    ]
)
BOTH = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q14": """
SELECT auction, bidder, 0.908 * price AS price,
    CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
         WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
         ELSE 'otherTime' END AS bidTimeType,
    dateTime, extra, char_length(extra) - char_length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q17": f"""
SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS `day`,
    {BIDS},
    min(price) AS min_price, max(price) AS max_price,
    avg(price) AS avg_price, sum(price) AS sum_price
FROM bid
GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')""",
    "q20": """
SELECT auction, bidder, price, channel, url, b.dateTime, b.extra, itemName, description,
    initialBid, reserve, a.dateTime AS auction_dateTime, expires, seller, category,
    a.extra AS auction_extra
FROM bid b JOIN auction a ON b.auction = a.id
WHERE category = 10""",
    "q23": """
SELECT auction, bidder, price, channel, b.dateTime, name, emailAddress, city, state, a.id,
    itemName, category
FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder""",
}
_OUT_OF_ORDER = "Spark chains stateful operators in append mode only, which needs windows"
NATIVE_REASONS = {
    "q4": f"a maximum per auction under a mean per category: {_OUT_OF_ORDER}",
    "q6": f"the last ten of what a join and a maximum tell: {_OUT_OF_ORDER}",
    "q9": f"the best row behind a join: {_OUT_OF_ORDER}",
    "q15": "no exact distinct counts on streams",
    "q16": "no exact distinct counts on streams",
    "q19": "no ranking of rows outside of a window on streams",
}
FLINK_REASONS = {
    "q6": "OVER cannot take in retractions",
    "q13": "files cannot be looked up",
}
_REGEX = "'(&|^)channel_id=([^&]*)', 2"

NATIVE = {
    **BOTH,
    "q5": """
SELECT window.start AS window_start, window.end AS window_end, hot.auction, hot.num FROM (
    SELECT window, explode(filter(items, item -> item.num = most)) AS hot FROM (
        SELECT window, collect_list(struct(auction, num)) AS items, max(num) AS most FROM (
            SELECT auction, count(*) AS num, window
            FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
        ) GROUP BY window
    )
)""",
    "q7": """
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN (
    SELECT most, window_time(window) AS ended FROM (
        SELECT max(price) AS most, window FROM bid GROUP BY window(dateTime, '10 seconds')
    )
) m ON b.price = m.most AND b.dateTime <= m.ended + INTERVAL 1 MICROSECOND
    AND b.dateTime >= m.ended + INTERVAL 1 MICROSECOND - INTERVAL 10 SECONDS""",
    "q8": """
SELECT p.id, p.name, p.window.start AS window_start
FROM (
    SELECT id, name, window FROM person GROUP BY id, name, window(dateTime, '10 seconds')
) p JOIN (
    SELECT seller, window FROM auction GROUP BY seller, window(dateTime, '10 seconds')
) a ON p.id = a.seller AND p.window = a.window""",
    "q10": """
SELECT auction, bidder, price, dateTime, extra,
    date_format(dateTime, 'yyyy-MM-dd') AS dt, date_format(dateTime, 'HH:mm') AS hm
FROM bid""",
    "q11": """
SELECT bidder, count(*) AS bid_count, session_window.start AS window_start,
    session_window.end AS window_end
FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')""",
    "q12": """
SELECT bidder, count(*) AS bid_count, window.start AS window_start
FROM bid GROUP BY bidder, window(current_timestamp(), '10 seconds')""",
    "q13": """
SELECT auction, bidder, price, dateTime, value FROM bid JOIN side ON auction % 10000 = key""",
    "q18": """
SELECT bidder, auction, last.* FROM (
    SELECT bidder, auction,
        max_by(struct(price, channel, url, dateTime, extra), event) AS last
    FROM bid GROUP BY bidder, auction
)""",
    "q21": f"""
SELECT auction, bidder, price, channel,
    CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3' ELSE regexp_extract(url, {_REGEX}) END AS channel_id
FROM bid
WHERE regexp_extract(url, {_REGEX}) <> ''
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
    split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid""",
}
UPDATING = ("q12", "q17", "q18")
"""What Spark runs in update mode; the others append."""

_WINNING = """
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
        ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime ASC) AS place
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires"""
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_COUNTS = f"""
    SELECT auction, count(*) AS num, window_start, window_end
    FROM {_HOP} GROUP BY auction, window_start, window_end"""

FLINK = {
    **BOTH,
    "q4": """
SELECT category, AVG(final) FROM (
    SELECT MAX(b.price) AS final, a.category
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category
) GROUP BY category""",
    "q5": f"""
SELECT c.auction, c.num FROM ({_COUNTS}) c
JOIN (
    SELECT max(num) AS most, window_start, window_end
    FROM ({_COUNTS}) GROUP BY window_start, window_end
) m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most""",
    "q7": """
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN (
    SELECT MAX(price) AS most, window_end AS ended
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) m ON b.price = m.most
WHERE b.dateTime BETWEEN m.ended - INTERVAL '10' SECOND AND m.ended""",
    "q8": """
SELECT p.id, p.name, p.window_start
FROM (
    SELECT id, name, window_start, window_end
    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) p JOIN (
    SELECT seller, window_start, window_end
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    "q9": f"""
SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    auction, bidder, price, bid_dateTime, bid_extra
FROM ({_WINNING}
) WHERE place <= 1""",
    "q10": """
SELECT auction, bidder, price, dateTime, extra, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS dt,
    DATE_FORMAT(dateTime, 'HH:mm') AS hm
FROM bid""",
    "q11": """
SELECT bidder, count(*) AS bid_count, window_start, window_end
FROM TABLE(SESSION(
    TABLE bid PARTITION BY bidder, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
    "q12": """
SELECT bidder, count(*) AS bid_count, window_start
FROM TABLE(TUMBLE(
    (SELECT *, PROCTIME() AS arrived FROM bid), DESCRIPTOR(arrived), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
    "q15": f"""
SELECT DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
    {STATISTICS}
FROM bid GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q16": f"""
SELECT channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
    max(DATE_FORMAT(dateTime, 'HH:mm')) AS `minute`,
    {STATISTICS}
FROM bid GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q18": """
SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place
    FROM bid
) WHERE place <= 1""",
    "q19": """
SELECT auction, bidder, price, channel, url, dateTime, extra, place FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid
) WHERE place <= 10""",
    "q21": f"""
SELECT auction, bidder, price, channel,
    CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, {_REGEX}) END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, {_REGEX}) IS NOT NULL
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
    SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
FROM bid""",
}
