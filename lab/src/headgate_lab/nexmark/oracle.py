"""What every query has to answer, by DuckDB over the same files, and the comparison row for row.

`{closed}` is how far event time has come: what closes later (windows, auctions) is not told yet.
After the input has ended it is infinity. What two rows make when they meet (q3, q8) is told at
once, whatever has closed. Times are compared in UTC, floats to nine digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from headgate_lab.nexmark.event_files import EventFiles
from headgate_lab.nexmark.events import TABLES

# Counts by price: three ranks of bids, bidders and auctions.
_RANKS = {"rank1": "price < 10000", "rank2": "price BETWEEN 10000 AND 999999"}
_RANKS["rank3"] = "price >= 1000000"


def _ranked(what: str, name: str, ranks: Sequence[str] = tuple(_RANKS)) -> str:
    each = [f"count({what}) FILTER (WHERE {_RANKS[rank]}) AS {rank}_{name}" for rank in ranks]
    return ", ".join([f"count({what}) AS total_{name}", *each])


_BIDS = _ranked("*", "bids")
_STATISTICS = ", ".join(
    [_BIDS, _ranked("DISTINCT bidder", "bidders"), _ranked("DISTINCT auction", "auctions")]
)
_HIGHEST = """
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    WHERE a.expires <= {closed}
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY price DESC, b.dateTime, b.event) = 1
"""
_HOPS = """
    SELECT auction, start, count(*) AS num FROM (
        SELECT auction, unnest(generate_series(
            time_bucket(INTERVAL 2 seconds, dateTime) - INTERVAL 8 seconds,
            time_bucket(INTERVAL 2 seconds, dateTime), INTERVAL 2 seconds)) AS start FROM bid
    ) WHERE start + INTERVAL 10 seconds <= {closed} GROUP BY auction, start
"""

SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908::double * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT name, city, state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, avg(price) AS final FROM ({_HIGHEST}) GROUP BY category",
    "q5": f"""
        SELECT auction, num, start AS window_start, start + INTERVAL 10 seconds AS window_end
        FROM ({_HOPS}) QUALIFY num = max(num) OVER (PARTITION BY start)""",
    "q6": f"""
        SELECT seller, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, id % 1000 ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS final FROM ({_HIGHEST})""",
    "q7": """
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra FROM bid b JOIN (
            SELECT max(price) AS price, time_bucket(INTERVAL 10 seconds, dateTime) AS start
            FROM bid GROUP BY start
        ) m ON b.price = m.price
            AND b.dateTime BETWEEN m.start AND m.start + INTERVAL 10 seconds
        WHERE m.start + INTERVAL 10 seconds <= {closed}""",
    "q8": """
        SELECT DISTINCT p.id, name, time_bucket(INTERVAL 10 seconds, p.dateTime) AS window_start
        FROM person p JOIN auction a ON p.id = a.seller
            AND time_bucket(INTERVAL 10 seconds, p.dateTime)
              = time_bucket(INTERVAL 10 seconds, a.dateTime)""",
    "q9": f"SELECT * EXCLUDE (event) FROM ({_HIGHEST})",
    "q10": """
        SELECT auction, bidder, price, dateTime, extra,
            strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm FROM bid""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS window_start,
            max(dateTime) + INTERVAL 10 seconds AS window_end
        FROM (
            SELECT bidder, dateTime, sum(begins) OVER (
                PARTITION BY bidder ORDER BY dateTime ROWS UNBOUNDED PRECEDING) AS session
            FROM (
                SELECT bidder, dateTime, coalesce(dateTime - lag(dateTime) OVER (
                    PARTITION BY bidder ORDER BY dateTime
                ) >= INTERVAL 10 seconds, true)::int AS begins FROM bid))
        GROUP BY bidder, session HAVING window_end <= {closed}""",
    "q12": """
        SELECT bidder, count(*) AS bid_count,
            time_bucket(INTERVAL 10 seconds, arrived) AS window_start
        FROM bid_arrived GROUP BY bidder, window_start""",
    "q13": """
        SELECT auction, bidder, price, dateTime, value
        FROM bid JOIN side ON auction % 10000 = key""",
    "q14": """
        SELECT auction, bidder, 0.908::double * price AS price,
            CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                 WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                 ELSE 'otherTime' END AS bidTimeType,
            dateTime, extra, len(extra) - len(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908::double * price > 1e6 AND 0.908::double * price < 5e7""",
    "q15": f"SELECT strftime(dateTime, '%Y-%m-%d') AS day, {_STATISTICS} FROM bid GROUP BY day",
    "q16": f"""
        SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day,
            max(strftime(dateTime, '%H:%M')) AS minute, {_STATISTICS}
        FROM bid GROUP BY channel, day""",
    "q17": f"""
        SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {_BIDS}, min(price) AS min_price,
            max(price) AS max_price, avg(price) AS avg_price, sum(price)::bigint AS sum_price
        FROM bid GROUP BY auction, day""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid QUALIFY row_number()
            OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, event DESC) = 1""",
    "q19": """
        SELECT auction, bidder, price, channel, url, dateTime, extra, row_number() OVER (
            PARTITION BY auction ORDER BY price DESC, event) AS rank
        FROM bid QUALIFY rank <= 10""",
    "q20": """
        SELECT auction, bidder, price, channel, url, b.dateTime, b.extra, itemName, description,
            initialBid, reserve, a.dateTime AS auction_dateTime, expires, seller, category,
            a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE category = 10""",
    "q21": """
        SELECT auction, bidder, price, channel, channel_id FROM (
            SELECT *, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
                END AS channel_id
            FROM bid) WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
            split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """
        SELECT b.auction, bidder, price, channel, b.dateTime, name, emailAddress, city, state,
            a.id, itemName, category
        FROM bid b JOIN person p ON p.id = bidder JOIN auction a ON a.seller = bidder""",
}


@dataclass(frozen=True)
class Answer:
    """Whether two results are the same, and what is not: rows of one that the other lacks."""

    rows: int
    missing: int
    surplus: int
    example: str = ""

    @property
    def right(self) -> bool:
        return not self.missing and not self.surplus

    def __str__(self) -> str:
        if self.right:
            return f"{self.rows:,} rows, all right"
        return f"{self.missing:,} rows missing, {self.surplus:,} too many, such as {self.example}"


HELD_US = {"q6": 1}
"""What closes with the watermark waits in q6, as ids come behind the time in its order."""


class Oracle:
    """DuckDB over the files of events. `arrived_us`: the clock of each epoch, for q12."""

    def __init__(self, files: EventFiles, arrived_us: Sequence[int] | None = None) -> None:
        self._base = duckdb.connect()
        self._base.execute("SET TimeZone = 'UTC'")
        for name in TABLES:
            paths = [str(path) for path in files.tables[name].paths]
            self._view(name, f"SELECT * FROM read_parquet({paths})")
        self._view("side", f"SELECT * FROM read_parquet('{files.side}')")
        if arrived_us is not None:
            parts = [
                f"SELECT *, make_timestamp({at}) AS arrived FROM read_parquet({[*map(str, paths)]})"
                for at, paths in zip(arrived_us, files.tables["bid"].files, strict=True)
            ]
            self._view("bid_arrived", " UNION ALL ".join(parts))

    def _view(self, name: str, sql: str) -> None:
        self._base.execute(f"CREATE VIEW {name} AS {sql}")

    def answer(self, query: str, closed_us: int | None = None) -> pa.Table:
        """The whole answer; with `closed_us`, as of the time when event time has come so far."""
        closed = "'infinity'::timestamptz"
        if closed_us is not None:
            closed = f"make_timestamptz({closed_us - HELD_US.get(query, 0)})"
        told: pa.Table = self._base.sql(SQL[query].replace("{closed}", closed)).to_arrow_table()
        return told

    def check(self, query: str, found: pa.Table, closed_us: int | None = None) -> Answer:
        """Compare a result with the answer as multisets of rows; columns go by name."""
        expected = self.answer(query, closed_us)
        return compare(self._base, found, expected)


def compare(base: Any, found: pa.Table, expected: pa.Table) -> Answer:
    """Both ways: what is missing, what is too much."""
    unknown = set(found.column_names) ^ set(expected.column_names)
    if unknown:
        raise ValueError(f"these columns are in one of the results only: {sorted(unknown)}")
    columns = ", ".join(_plain(field) for field in expected.schema)
    sides = {"found": found, "expected": expected}
    for name, table in sides.items():
        base.register(f"{name}_rows", table)
        base.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {columns} FROM {name}_rows")
        base.unregister(f"{name}_rows")
    surplus, missing = (
        base.sql(f"SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b}").to_arrow_table()
        for a, b in (("found", "expected"), ("expected", "found"))
    )
    wrong = surplus if surplus.num_rows else missing
    example = str(wrong.slice(0, 1).to_pylist()[0]) if wrong.num_rows else ""
    return Answer(expected.num_rows, missing.num_rows, surplus.num_rows, example)


def _plain(field: pa.Field) -> str:
    """A column in a form that does not depend on who made it."""
    name = f'"{field.name}"'
    if pa.types.is_floating(field.type) or pa.types.is_decimal(field.type):
        return f"printf('%.9g', {name}::double) AS {name}"
    if pa.types.is_timestamp(field.type):
        return f"epoch_us({name}::timestamptz) AS {name}"
    return f"{name}::varchar AS {name}"
