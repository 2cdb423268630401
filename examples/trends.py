"""Two stateful operators in a row, and the top hashtags of every region and window.

    headgate run examples/trends.py:flow --epochs 20 --every '3 seconds'

One branch counts posts by region, passes every post on and counts it by hashtag: rows whose
hashtag lives in the slot of their region skip the shuffle. The other keeps the three top hashtags
of each region and ten-second window, and emits a window once, when the watermark has passed its
end. `query.table("hashtags")` and `query.table("top")` read the results.
"""

import headgate as hg

REGIONS = "amsterdam athens bangkok bogota cairo chicago delhi dublin jakarta lagos".split()
HASHTAGS = 2_000


def posts(spark):
    """10,000 posts a second: few hashtags are popular, and most stay near their home region."""
    from pyspark.sql import functions as F

    def unit(salt):
        """A repeatable number in [0, 1) per post: Spark may read an epoch twice."""
        return F.pmod(F.xxhash64("value", F.lit(salt)), F.lit(1_000_003)) / 1_000_003.0

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 10_000).load()
    rank = F.floor(F.pow(F.lit(float(HASHTAGS)), unit(1)))  # Zipf: each decade is as likely
    home = F.pmod(F.xxhash64(rank), F.lit(len(REGIONS)))
    anywhere = F.floor(unit(2) * len(REGIONS))
    region = F.when(unit(3) < 0.8, home).otherwise(anywhere).cast("int")
    names = F.array(*[F.lit(name) for name in REGIONS])
    return numbers.select(
        F.element_at(names, region + 1).alias("region"),
        F.concat(F.lit("#tag"), rank.cast("string")).alias("hashtag"),
        F.col("timestamp").alias("ts"),
    )


flow = hg.Flow("trends")
stream = flow.source(
    posts,
    schema="region string, hashtag string, ts timestamp",
    name="posts",
    event_time="ts",
    watermark="2 seconds",
)

by_region = stream.key_by("region").process(hg.Count(emit="rows"), name="by_region")
by_region.key_by("hashtag").process(hg.Count(), name="by_hashtag").to_table("hashtags")

window = hg.Tumbling("10 seconds", time="ts")
top = stream.key_by("region").process(hg.TopK("hashtag", k=3, window=window), name="top_three")
top.to_table("top")
top.to_console(rows=6, name="shown")


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("trends"), slots=4, checkpoint="artifacts/trends/checkpoint")
    query.awaitTermination(60)
    query.stop()
