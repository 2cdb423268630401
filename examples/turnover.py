"""From Kafka to Kafka, every row once, without a jar.

    pip install 'headgate[kafka]'
    KAFKA_SERVERS=broker:9092 headgate run examples/turnover.py:flow --every '5 seconds'

Orders such as {"country": "at", "cents": 1250} come from the topic `orders`. Each epoch's new
totals go to the topic `turnover`, in one transaction: readers with
`isolation.level=read_committed` see each epoch once, whatever fails in between. Lines that are no
order go to the console instead of stopping the flow.
"""

import json
import os

import headgate as hg

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")


def parse(row):
    order = json.loads(row["value"])
    return {"country": str(order["country"]), "cents": int(order["cents"])}


def as_message(row):
    return {"key": row["country"], "value": json.dumps({"cents": row["cents"]})}


flow = hg.Flow("turnover")
(
    flow.source(hg.Kafka("orders", servers=SERVERS, max_rows_per_epoch=100_000), name="orders")
    .map_rows(parse, "country string, cents bigint", name="parse")
    .key_by("country")
    .process(hg.Sum("cents", name="cents"), name="turnover")
    .map_rows(as_message, "key string, value string", name="as_message")
    .to_kafka("turnover", servers=SERVERS, name="turnover")
)
flow.dead_letters().to_console(rows=3, name="refused")


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(
        local_session("turnover"), slots=2, checkpoint="artifacts/turnover/checkpoint"
    )
    query.awaitTermination(30)
    query.stop()
