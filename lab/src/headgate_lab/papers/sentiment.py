"""The sentiment flow of Sax et al. 2013 (section IV-B): fifteen stateless steps over short texts.

    spout -> filter -> sentence -> tok -> posTag -> custN -> cplxP -> neg -> baseF -> sentWord
          -> att -> norm -> stopWord -> SA -> html -> res

Names are those of the paper's Table II; a shuffle is declared between any two steps, as there. All
but the first are left out (`topology.graph`), so the steps run as a chain in one task. What the
paper's steps do in detail is not published: these are ours. A sentence travels as columns of lists,
a value per word. Steps work on the words of all rows at once and put the lists back together; words
are tagged and stemmed once each. Only the language of a text is asked for text by text.

A text that is null is in no language: `filter` drops it, as it drops what is not English.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.arrays import I64
from headgate.topology.stream import Stream
from headgate_lab.papers import sentiment_words as words

TEXTS = pa.schema({"post": pa.int64(), "text": pa.string()})
WORDS = pa.list_(pa.string())
SCORES = pa.list_(pa.float64())
_TAGGED = {"post": pa.int64(), "words": WORDS, "tags": WORDS}
_NEGATED = _TAGGED | {"negated": pa.list_(pa.bool_())}
_JUDGED = {"post": pa.int64(), "scores": SCORES, "attributes": WORDS}
_SUMMED = {"post": pa.int64(), "score": pa.float64(), "attributes": WORDS}
NEGATION_REACH = 3
Step = Callable[[pa.RecordBatch], dict[str, Any]]


def sentiment(texts: Stream) -> Stream:
    """Declare the fifteen steps behind a stream of texts; a row for each sentence comes out."""
    english = texts.shuffle().filter(is_english, name="filter")
    sentences = english.shuffle().flat_map(
        split_sentences, pa.schema({"post": pa.int64(), "sentence": pa.string()}), name="sentence"
    )
    stream = sentences
    for name, step, schema in (
        ("tok", tokenise, {"post": pa.int64(), "words": WORDS}),
        ("posTag", tag_words, _TAGGED),
        ("custN", unmark_names, _TAGGED),
        ("cplxP", join_phrases, _TAGGED),
        ("neg", mark_negated, _NEGATED),
        ("baseF", add_stems, _NEGATED | {"stems": WORDS}),
        ("sentWord", score_words, _TAGGED | {"scores": SCORES}),
        ("att", take_attributes, _JUDGED),
        ("norm", normalise, _JUDGED),
        ("stopWord", drop_stop_words, _JUDGED),
        ("SA", sum_scores, _SUMMED),
        ("html", render, _SUMMED | {"html": pa.string()}),
        ("res", judge, {"post": pa.int64(), "verdict": pa.string(), "html": pa.string()}),
    ):
        stream = stream.shuffle().map(step, pa.schema(schema), name=name)
    return stream


def is_english(batch: pa.RecordBatch) -> pa.Array:
    """Ask the language of every text; none can be asked for many at once. A null is not English."""
    classify = words.languages()
    texts = batch.column("text").to_pylist()
    return pa.array([text is not None and classify(text)[0] == "en" for text in texts], pa.bool_())


def split_sentences(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, I64]:
    parts = pc.split_pattern_regex(batch.column("text"), r"[.!?\n]+\s*")
    origins = pc.list_parent_indices(parts).to_numpy().astype(np.int64)
    texts = pc.utf8_trim_whitespace(parts.flatten())
    full = np.flatnonzero(pc.utf8_length(texts).to_numpy() > 0)
    posts = batch.column("post").take(pa.array(origins[full]))
    made = pa.RecordBatch.from_arrays([posts, texts.take(pa.array(full))], ["post", "sentence"])
    return made, origins[full]


def tokenise(batch: pa.RecordBatch) -> dict[str, Any]:
    parts = pc.split_pattern_regex(batch.column("sentence"), r"[^\pL\pN#@'’_]+")
    full = pc.utf8_length(parts.flatten()).to_numpy() > 0
    return {"post": batch.column("post"), "words": keep(parts, full)}


def tag_words(batch: pa.RecordBatch) -> dict[str, Any]:
    return columns(batch) | {"tags": each(batch.column("words"), words.tag)}


def unmark_names(batch: pa.RecordBatch) -> dict[str, Any]:
    """Hashtags and handles are names, without their mark."""
    of = batch.column("words")
    flat, tags = of.flatten(), batch.column("tags").flatten()
    marked = pc.match_substring_regex(flat, "^[#@].")
    bare = pc.if_else(marked, pc.utf8_ltrim(flat, characters="#@"), flat)
    return columns(batch) | {
        "words": rebuild(of, bare),
        "tags": rebuild(of, pc.if_else(marked, "NAME", tags)),
    }


def join_phrases(batch: pa.RecordBatch) -> dict[str, Any]:
    """Two words that make a known phrase become one, a noun."""
    of = batch.column("words")
    flat, tags = of.flatten(), batch.column("tags").flatten()
    low = pc.utf8_lower(flat)
    same_row = np.append(np.diff(rows_of(of)) == 0, False)[: len(flat)]
    following = pa.array(np.minimum(np.arange(len(flat)) + 1, max(0, len(flat) - 1)))
    pairs = pc.binary_join_element_wise(low, low.take(following), "_")
    begins = in_set(pairs, words.PHRASES) & same_row
    begins[1:] &= ~begins[:-1]
    joined = pc.if_else(pa.array(begins), pairs, flat)
    tags = pc.if_else(pa.array(begins), "N", tags)
    stays = np.ones(len(flat), np.bool_)
    stays[1:] = ~begins[:-1]
    return columns(batch) | {
        "words": keep(rebuild(of, joined), stays),
        "tags": keep(rebuild(of, tags), stays),
    }


def mark_negated(batch: pa.RecordBatch) -> dict[str, Any]:
    """A word is negated if one of the few words before it negates."""
    of = batch.column("words")
    flat = of.flatten()
    low = pc.utf8_lower(pc.replace_substring(flat, "’", "'"))
    at, rows = np.arange(len(flat)), rows_of(of)
    negates = in_set(low, words.NEGATORS)
    last = np.maximum.accumulate(np.where(negates, at, -1)) if len(flat) else at
    reach = (last >= 0) & (at > last) & (at - last <= NEGATION_REACH)
    negated = reach & (rows[np.maximum(last, 0)] == rows) if len(flat) else reach
    return columns(batch) | {"negated": rebuild(of, pa.array(negated))}


def add_stems(batch: pa.RecordBatch) -> dict[str, Any]:
    stem = words.stemmer().stemWord
    return columns(batch) | {"stems": each(batch.column("words"), lambda word: stem(word.lower()))}


def score_words(batch: pa.RecordBatch) -> dict[str, Any]:
    """The lexicon's value of a word, or else of its stem; what is negated turns around."""
    known, of = words.lexicon(), batch.column("stems")
    low = pc.utf8_lower(batch.column("words").flatten())
    found = pc.coalesce(value_of(low, known), value_of(of.flatten(), known), 0.0)
    sign = np.where(batch.column("negated").flatten().to_numpy(zero_copy_only=False), -1.0, 1.0)
    kept = {name: batch.column(name) for name in ("post", "words", "tags")}
    return kept | {"scores": rebuild(of, pa.array(found.to_numpy() * sign))}


def take_attributes(batch: pa.RecordBatch) -> dict[str, Any]:
    """What a sentence speaks of: its nouns and names that have no sentiment themselves."""
    nouns = in_set(batch.column("tags").flatten(), words.NOUNS)
    plain = batch.column("scores").flatten().to_numpy() == 0.0
    attributes = keep(batch.column("words"), nouns & plain)
    kept = {name: batch.column(name) for name in ("post", "scores")}
    return kept | {"attributes": attributes}


def normalise(batch: pa.RecordBatch) -> dict[str, Any]:
    of = batch.column("attributes")
    low = pc.utf8_lower(of.flatten())
    return columns(batch) | {
        "attributes": rebuild(of, pc.replace_substring_regex(low, "['’]s?", ""))
    }


def drop_stop_words(batch: pa.RecordBatch) -> dict[str, Any]:
    of = batch.column("attributes")
    flat = of.flatten()
    told = ~in_set(flat, words.STOP_WORDS) & (pc.utf8_length(flat).to_numpy() > 1)
    return columns(batch) | {"attributes": keep(of, told)}


def sum_scores(batch: pa.RecordBatch) -> dict[str, Any]:
    of = batch.column("scores")
    total = np.bincount(rows_of(of), weights=of.flatten().to_numpy(), minlength=len(of))
    kept = {name: batch.column(name) for name in ("post", "attributes")}
    return kept | {"score": pa.array(np.round(total, 1) + 0.0)}  # tenths, and no minus zero


def render(batch: pa.RecordBatch) -> dict[str, Any]:
    """A list item; words hold letters, digits and underscores only, nothing to escape."""
    told = pc.binary_join(batch.column("attributes"), ", ")
    score = pc.cast(batch.column("score"), pa.string())
    html = pc.binary_join_element_wise("<li><b>", score, "</b> ", told, "</li>", "")
    return columns(batch) | {"html": html}


def judge(batch: pa.RecordBatch) -> dict[str, Any]:
    score = batch.column("score")
    rest = pc.if_else(pc.less(score, 0.0), "negative", "neutral")
    verdict = pc.if_else(pc.greater(score, 0.0), "positive", rest)
    return {"post": batch.column("post"), "verdict": verdict, "html": batch.column("html")}


# --- lists of words ---------------------------------------------------------------------------
def columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def rows_of(lists: pa.ListArray) -> I64:
    """The row of every word."""
    rows: I64 = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    return rows


def rebuild(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Lists of the same lengths with other values."""
    lengths = pc.list_value_length(lists).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def keep(lists: pa.ListArray, wanted: npt.NDArray[np.bool_]) -> pa.ListArray:
    """Only the words that are wanted; no row is lost."""
    counts = np.bincount(rows_of(lists)[wanted], minlength=len(lists))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), lists.flatten().take(pa.array(np.flatnonzero(wanted)))
    )


def each(lists: pa.ListArray, function: Callable[[str], str]) -> pa.ListArray:
    """Apply a function to every distinct word."""
    coded = lists.flatten().dictionary_encode()
    made = pa.array([function(word) for word in coded.dictionary.to_pylist()], pa.string())
    return rebuild(lists, made.take(coded.indices))


def value_of(texts: pa.Array, known: Mapping[str, float]) -> pa.Array:
    """What is known of every text, null where nothing is; looked up once for each that differs."""
    coded = texts.dictionary_encode()
    found = pa.array(map(known.get, coded.dictionary.to_pylist()), pa.float64())
    return found.take(coded.indices)


def in_set(values: pa.Array, members: Any) -> npt.NDArray[np.bool_]:
    found = pc.is_in(values, value_set=pa.array(list(members), pa.string()))
    return np.array(found.to_numpy(zero_copy_only=False), np.bool_)
