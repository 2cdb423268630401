"""Bids joined with their auction, then summed up by seller: a join whose rows stay in their slot.

    headgate run examples/auctions.py:flow --epochs 6 --every '3 seconds'

An auction has one seller, so the manager learns from pairs of keys to keep a seller where the
seller's auctions are: the locality of the edge from the join rises from epoch to epoch.
"""

import headgate as hg


def bids(spark):
    """5,000 bids a second, each for an auction that opened up to ten seconds before."""
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 5_000).load()
    auction = F.floor(F.col("value") / 100) - F.pmod(F.xxhash64("value"), F.lit(500))
    price = F.pmod(F.xxhash64("value", F.lit(1)), F.lit(10_000))
    columns = (auction.cast("bigint").alias("auction"), price.alias("price"))
    return numbers.select(*columns, F.col("timestamp").alias("at"))


def auctions(spark):
    """50 auctions a second."""
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    seller = F.pmod(F.xxhash64("value"), F.lit(200)).alias("seller")
    return numbers.select(F.col("value").alias("id"), seller, F.col("timestamp").alias("opened"))


flow = hg.Flow("auctions")
offered = flow.source(
    bids,
    schema="auction bigint, price bigint, at timestamp",
    name="bids",
    event_time="at",
    watermark="2 seconds",
)
opened = flow.source(
    auctions,
    schema="id bigint, seller bigint, opened timestamp",
    name="auctions",
    event_time="opened",
    watermark="2 seconds",
)
(
    offered.key_by("auction")
    .join(opened.key_by("id"), within=("-15 seconds", "2 seconds"), name="offers")
    .key_by("seller")
    .process(hg.Sum("price"), name="turnover")
    .to_console(rows=3, name="sellers")
)


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("auctions"), checkpoint="artifacts/auctions/checkpoint")
    query.awaitTermination(30)
    query.stop()
