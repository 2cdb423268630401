"""Short texts for the sentiment flow: posts of members of Congress if at hand, else our own.

Generated texts are sentences with and without sentiment, negations, names and phrases; one in ten
is not English. Any epoch follows from seed and number alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate_lab.papers.sentiment import TEXTS

FILE = "congress_posts_text_2020_sample.parquet"
_ENGLISH = (
    "Our #{name} families need {topic} that is {word}.",
    "I am {word} about the new {topic} of @{name} today!",
    "The {topic} is not {word}, and we will never stop working for you.",
    "Thank you to everyone in {name} for the {word} {topic}.",
    "This {topic} was {word}; Congress must act now to protect our communities.",
    "Does {name} know how {word} the {topic} has become for working families?",
)
_OTHER = (
    "Nuestras familias merecen un futuro mejor y una vida digna en {name}.",
    "Wir brauchen jetzt bessere Schulen und sichere Straßen für alle Kinder in {name}.",
    "Les habitants de {name} attendent toujours une réponse claire du gouvernement.",
)
_TOPICS = (
    "health care,climate change,clean water,small business,civil rights,budget,school,road,vote"
).split(",")
_FEELINGS = (
    "good great better proud happy grateful hopeful strong safe welcome successful fair free brave "
    "beautiful excellent wonderful glad secure healthy effective improved fairer kinder bad worse "
    "tragic terrible horrible angry violent dangerous wrong unfair cruel shameful outrageous "
    "racist unacceptable reckless devastating broken sick failing corrupt harmful"
).split()
_PLAIN = ["ordinary", "new", "local"] * 15
_NAMES = "Boone Vegas Fairfax Oscoda Denver Austin Portland Albany Tucson Juneau".split()


def generated_texts(rows: int, *, seed: int, epoch: int) -> pa.Table:
    """Posts of one to three sentences."""
    draw = np.random.default_rng((seed, epoch))
    feelings = [*_FEELINGS, *_PLAIN]
    foreign = draw.random(rows) < 0.1
    texts = []
    for is_foreign, sentences in zip(foreign, draw.integers(1, 4, rows), strict=True):
        forms = _OTHER if is_foreign else _ENGLISH
        texts.append(
            " ".join(
                forms[draw.integers(len(forms))].format(
                    name=_NAMES[draw.integers(len(_NAMES))],
                    topic=_TOPICS[draw.integers(len(_TOPICS))],
                    word=feelings[draw.integers(len(feelings))],
                )
                for _ in range(sentences)
            )
        )
    return pa.table([np.arange(rows) + rows * epoch, texts], schema=TEXTS)


def short_texts(rows: int, *, seed: int, epoch: int, folder: Path | None = None) -> pa.Table:
    """Rows of the sample in `folder`, in order, from the start again at its end; else generated."""
    path = None if folder is None else folder / FILE
    if path is None or not path.exists():
        return generated_texts(rows, seed=seed, epoch=epoch)
    texts = pq.read_table(path, columns=["text"]).column("text").cast(pa.string())
    at = (np.arange(rows) + rows * epoch) % len(texts)
    chosen = texts.take(pa.array(at)).combine_chunks()
    return pa.table([np.arange(rows) + rows * epoch, chosen], schema=TEXTS)
