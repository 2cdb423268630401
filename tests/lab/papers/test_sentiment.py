"""The sentiment flow against the same steps sentence by sentence, with lists and loops."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import HeadgateError
from headgate.testing import ListSource, run
from headgate_lab.papers import sentiment_words as words
from headgate_lab.papers.sentiment import TEXTS, sentiment
from headgate_lab.papers.sentiment_texts import FILE, generated_texts, short_texts

pytest.importorskip("py3langid")
pytest.importorskip("snowballstemmer")
pytest.importorskip("vaderSentiment")


def by_hand(post: int, text: str | None) -> list[tuple[int, str, str]]:
    """What the fifteen steps make of one text."""
    if text is None or words.languages()(text)[0] != "en":
        return []
    return [
        (post, *judged_by_hand(sentence.strip()))
        for sentence in re.split(r"[.!?\n]+\s*", text)
        if sentence.strip()
    ]


def judged_by_hand(sentence: str) -> tuple[str, str]:
    said = [w for w in re.split(r"[^\w#@'’]+", sentence) if w]
    tagged = [(w, words.tag(w)) for w in said]
    tagged = [(w.lstrip("#@"), "NAME") if re.match("[#@].", w) else (w, t) for w, t in tagged]
    joined: list[tuple[str, str]] = []
    at = 0
    while at < len(tagged):
        pair = "_".join(w.lower() for w, _ in tagged[at : at + 2])
        is_phrase = pair in words.PHRASES
        joined.append((pair, "N") if is_phrase else tagged[at])
        at += 2 if is_phrase else 1
    total, attributes = 0.0, []
    for at, (word, part) in enumerate(joined):
        before = [w.lower().replace("’", "'") for w, _ in joined[max(0, at - 3) : at]]
        # The last negator counts: a word that negates is negated by those before it, too.
        score = words.lexicon().get(word.lower())
        if score is None:
            stem = words.stemmer().stemWord(word.lower())
            score = words.lexicon().get(stem, 0.0)
        total += -score if any(w in words.NEGATORS for w in before) else score
        if part in words.NOUNS and score == 0.0:
            told = re.sub("['’]s?", "", word.lower())
            if told not in words.STOP_WORDS and len(told) > 1:
                attributes.append(told)
    total = round(total, 1) + 0.0
    verdict = "positive" if total > 0 else "negative" if total < 0 else "neutral"
    return verdict, f"<li><b>{total:g}</b> {', '.join(attributes)}</li>"


def flow_of(epochs: list[pa.Table]) -> hg.Flow:
    flow = hg.Flow("sentiment")
    sentiment(flow.source(ListSource(TEXTS, epochs), name="spout")).to_memory("sentences")
    return flow


def test_sentences_are_judged_as_by_hand() -> None:
    epochs = [generated_texts(60, seed=4, epoch=epoch) for epoch in range(2)]

    done = run(flow_of(epochs), slots=3)

    rows = [row for table in epochs for row in table.to_pylist()]
    wanted = [made for row in rows for made in by_hand(row["post"], row["text"])]
    found = [(r["post"], r["verdict"], r["html"]) for r in done.rows("sentences")]
    assert sorted(found) == sorted(wanted)
    assert {verdict for _, verdict, _ in found} == {"positive", "negative", "neutral"}
    assert 0 < len({post for post, _, _ in found}) < len(rows)  # some were not English


SAID = st.lists(
    st.sampled_from(
        "not never good bad Health care climate change #Hope @user the they're’s it's . !".split()
    ),
    max_size=12,
).map(" ".join)


@settings(max_examples=8, deadline=None)
@given(st.lists(SAID, min_size=1, max_size=6))
def test_any_words_are_judged_as_by_hand(texts: list[str]) -> None:
    table = pa.table([list(range(len(texts))), texts], schema=TEXTS)

    done = run(flow_of([table]), slots=2, check_purity=False)

    wanted = [made for post, text in enumerate(texts) for made in by_hand(post, text)]
    found = [(r["post"], r["verdict"], r["html"]) for r in done.rows("sentences")]
    assert sorted(found) == sorted(wanted)


def test_a_null_text_is_dropped_and_stops_nothing() -> None:
    texts = [None, "This is a good day for all of us in Denver.", None]
    table = pa.table([[1, 2, 3], texts], schema=TEXTS)

    done = run(flow_of([table, table.slice(0, 1)]), slots=2)

    assert [(r["post"], r["verdict"]) for r in done.rows("sentences")] == [(2, "positive")]


def test_the_lexicon_knows_words_and_the_stems_of_others() -> None:
    assert words.lexicon()["good"] > 0 > words.lexicon()["terrible"]
    assert "protecting" not in words.lexicon()
    assert words.lexicon()[words.stemmer().stemWord("protecting")] > 0
    assert not {"ordinary", "new", "local"} & words.lexicon().keys()


def test_it_has_the_papers_steps_and_the_first_shuffle_is_enough() -> None:
    graph = flow_of([generated_texts(1, seed=1, epoch=0)]).graph()

    steps = [n.name for n in graph.nodes if n.kind not in ("source", "sink")]
    assert len(steps) == 15
    assert steps[0] == "filter" and steps[-1] == "res"
    assert [e.grouping.kind for e in graph.edges] == ["shuffle"] + ["local"] * 15


def test_real_texts_are_taken_in_order_and_again_from_the_start(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / FILE)

    second = short_texts(2, seed=0, epoch=1, folder=tmp_path)

    assert second.to_pylist() == [{"post": 2, "text": "c"}, {"post": 3, "text": "a"}]
    assert short_texts(2, seed=0, epoch=1).equals(generated_texts(2, seed=0, epoch=1))


@pytest.mark.parametrize(
    ("package", "of"),
    [
        ("py3langid", words.languages),
        ("snowballstemmer", words.stemmer),
        ("vaderSentiment.vaderSentiment", words.lexicon),
    ],
)
def test_a_missing_library_says_how_to_get_it(
    package: str, of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    of.cache_clear()

    with pytest.raises(HeadgateError, match="headgate-lab\\[examples\\]"):
        of()
