"""Write results anywhere with a function, as with foreachBatch.

    headgate run examples/sensors.py:flow --epochs 5 --every '3 seconds'

The function gets the epoch's rows as a DataFrame and the epoch's number. It is called at least
once per epoch, always with the same rows, after the epoch is committed: make it idempotent by
epoch and the whole is exactly-once. Here a folder per epoch is overwritten.
"""

import headgate as hg

OUT = "artifacts/sensors/means"


def readings(spark):
    """5,000 readings a second of 200 sensors."""
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 5_000).load()
    return numbers.select(
        F.pmod(F.col("value"), F.lit(200)).alias("sensor"),
        (F.pmod(F.xxhash64("value"), F.lit(4_000)) / 100.0).alias("celsius"),
    )


def save(means, epoch):
    """Overwrite what an earlier call for the same epoch may have left."""
    means.write.mode("overwrite").parquet(f"{OUT}/epoch={epoch}")


# Delta Lake remembers the last epoch per writer, so that a second call is skipped:
#
#   def save(means, epoch):
#       (means.write.format("delta").mode("append")
#        .option("txnAppId", "sensors").option("txnVersion", epoch)
#        .save("/lake/means"))
#
# or upsert, which is idempotent by itself:
#
#   def save(means, epoch):
#       (DeltaTable.forPath(means.sparkSession, "/lake/means").alias("old")
#        .merge(means.alias("new"), "old.sensor = new.sensor")
#        .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute())
#
# Into Kafka, each epoch in one transaction: examples/turnover.py.

flow = hg.Flow("sensors")
(
    flow.source(readings, schema="sensor bigint, celsius double", name="readings")
    .key_by("sensor")
    .process(hg.Mean("celsius"), name="mean")
    .to(save, name="save")
)


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("sensors"), slots=2, checkpoint="artifacts/sensors/checkpoint")
    query.awaitTermination(30)
    query.stop()
