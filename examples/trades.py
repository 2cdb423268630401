"""Several aggregates at once: one operator, one row of state per key, however many there are.

    headgate run examples/trades.py:flow --epochs 8 --every '3 seconds'

Every ten seconds of event time each stock gets a line with all of its figures. `where=` says which
rows go into an aggregate. All of them can be merged, so rows of a hot stock may be folded in the
task that read them. Median and the number of traders are estimates with a bounded state.
"""

import pyarrow.compute as pc

import headgate as hg


def trades(spark):
    """5,000 trades a second of 50 stocks."""
    from pyspark.sql import functions as F

    def drawn(name, limit):
        return F.pmod(F.xxhash64("value", F.lit(name)), F.lit(limit))

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 5_000).load()
    return numbers.select(
        drawn("stock", 50).alias("stock"),
        drawn("trader", 2_000).alias("trader"),
        drawn("shares", 1_000).alias("shares"),
        (drawn("price", 10_000) / 100.0).alias("price"),
        F.col("timestamp").alias("at"),
    )


flow = hg.Flow("trades")
figures = hg.Aggregate(
    window=hg.Tumbling("10 seconds", time="at"),
    trades=hg.Count(),
    shares=hg.Sum("shares"),
    large=hg.Count(where="shares >= 900"),
    low=hg.Min("price"),
    high=hg.Max("price"),
    mean=hg.Mean("price", where=pc.field("shares") > 0),
    traders=hg.ApproxCountDistinct("trader"),
    median=hg.Median("price"),
)
(
    flow.source(
        trades,
        schema="stock bigint, trader bigint, shares bigint, price double, at timestamp",
        name="trades",
        event_time="at",
    )
    .key_by("stock")
    .process(figures, name="figures")
    .to_console(rows=5, name="lines")
)


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("trades"), slots=2, checkpoint="artifacts/trades/checkpoint")
    query.awaitTermination(30)
    query.stop()
