"""Count words, the vectorised way.

    headgate run examples/wordcount.py:flow --epochs 5
    headgate inspect artifacts/wordcount/checkpoint --operator count --key water

Lines come from Spark's rate source, so no data is needed. Nothing runs until the flow is started.
"""

import pyarrow as pa
import pyarrow.compute as pc

import headgate as hg

LINES = [
    "a headgate lets water into a canal",
    "open the gate and the water runs",
    "close the gate and the field runs dry",
    "water finds its level",
]


def lines(spark):
    """20,000 lines a second."""
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate").option("rowsPerSecond", 20_000).load()
    texts = F.array(*[F.lit(line) for line in LINES])
    pick = F.pmod(F.col("value"), F.lit(len(LINES))).cast("int")
    return numbers.select(F.element_at(texts, pick + 1).alias("line"))


def words(batch):
    """All words of all lines at once; `origins` tells which line each word came from."""
    split = pc.utf8_split_whitespace(batch.column("line"))
    origins = pc.list_parent_indices(split).to_numpy()
    return pa.record_batch({"word": pc.list_flatten(split)}), origins


flow = hg.Flow("wordcount")
(
    flow.source(lines, schema="line string", name="lines")
    .flat_map(words, "word string", name="words")
    .key_by("word")
    .process(hg.Count(), name="count")
    .to_console(rows=5)
)


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(
        local_session("wordcount"), slots=2, checkpoint="artifacts/wordcount/checkpoint"
    )
    query.awaitTermination(30)
    query.stop()
