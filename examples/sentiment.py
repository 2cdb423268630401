"""Sentiment of short texts, in the fifteen steps of Sax et al. 2013.

    pip install 'headgate-lab[examples]'
    headgate run examples/sentiment.py:flow --once
    headgate tune examples/sentiment.py:flow

    spout -> filter -> sentence -> tok -> posTag -> custN -> cplxP -> neg -> baseF -> sentWord
          -> att -> norm -> stopWord -> SA -> html -> res

No step keeps state. A shuffle is declared between any two, as in the paper; one is enough to
spread rows evenly, so the others are left out, and an epoch takes one exchange instead of fifteen.
`filter` asks for the language of every text and takes most of the time; a text that is null or not
English ends there. Languages, stems and sentiments come from libraries. `query.table("sentences")`
holds a verdict for each English sentence.
"""

from pathlib import Path

import headgate as hg
from headgate.demo import write_epochs
from headgate_lab.bench.edges import data_folder
from headgate_lab.papers.sentiment import TEXTS, sentiment
from headgate_lab.papers.sentiment_texts import short_texts

IN = Path("artifacts/sentiment/in")


def texts(spark, rows_per_epoch):
    """Ten epochs of 500 texts, made on first use; others if rows per epoch are wished for."""
    if not IN.exists():
        made = (short_texts(500, seed=3, epoch=e, folder=data_folder()) for e in range(10))
        write_epochs(made, IN)
    options = {} if rows_per_epoch else {"maxFilesPerTrigger": "1"}
    reader = hg.Reader("parquet", options, schema="post bigint, text string", path=str(IN))
    return reader(spark, rows_per_epoch)


flow = hg.Flow("sentiment")
sentiment(flow.source(texts, schema=TEXTS, name="spout")).to_table("sentences")


if __name__ == "__main__":
    from headgate import local_session

    query = flow.start(
        local_session("sentiment"),
        slots=2,
        checkpoint="artifacts/sentiment/checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    query.table("sentences").groupBy("verdict").count().show()
