"""Plain Python per key, and bad rows that do not stop the flow.

    headgate run examples/cards.py:flow --epochs 5 --every '3 seconds'

`watch` is called once per card and epoch with the card's payments and what it remembered. A
payment without an amount makes it raise: the card's rows of that epoch go to the dead letters,
its memory stays as it was, all other cards go on. Remove `flow.dead_letters()` and such a payment
stops the flow instead.
"""

import pyarrow as pa

import headgate as hg

LIMIT = 700.0


def payments(spark):
    """2,000 payments a second on 500 cards; one in 5,000 has no amount."""
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 2_000).load()
    amount = F.pmod(F.xxhash64("value"), F.lit(10_000)) / 100.0
    broken = F.pmod(F.col("value"), F.lit(5_000)) == 4_999
    return numbers.select(
        F.pmod(F.xxhash64(F.col("value") + 1), F.lit(500)).alias("card"),
        F.when(~broken, amount).alias("amount"),
    )


def watch(card, rows, memory):
    """Alert when the last ten payments of a card sum up to more than LIMIT."""
    last = list(memory or [])
    alerts = []
    for row in rows:
        if row["amount"] is None:
            raise ValueError(f"card {card}: a payment without an amount")
        last = [*last, row["amount"]][-10:]
        if sum(last) > LIMIT:
            alerts.append({"card": card, "spent": sum(last)})
            last = []
    return last, alerts


flow = hg.Flow("cards")
alerts = pa.schema({"card": pa.int64(), "spent": pa.float64()})
(
    flow.source(payments, schema="card bigint, amount double", name="payments")
    .key_by("card")
    .process(hg.Update(watch, output=alerts, rows_as="dicts", ordered=True), name="watch")
    .to_console(rows=3, name="alerts")
)
flow.dead_letters().to_console(rows=3, name="refused")


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(local_session("cards"), slots=2, checkpoint="artifacts/cards/checkpoint")
    query.awaitTermination(30)
    query.stop()
