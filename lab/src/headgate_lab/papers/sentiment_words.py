"""Words for the sentiment flow: what libraries know of them, and a tagger by rule.

Languages come from py3langid, stems from snowballstemmer (both BSD), sentiments from the lexicon of
vaderSentiment (MIT). Taggers that could be had (NLTK, spaCy, TextBlob) fetch a model or a corpus
when first used, which an example must not; ours goes by a few words and endings.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from headgate.errors import HeadgateError

NEGATORS = ("not", "no", "never", "nobody", "none", "without", "cannot", "can't", "don't", "won't")
PHRASES = (
    "health_care climate_change white_house supreme_court small_business social_security "
    "middle_class public_service first_responders civil_rights working_families clean_water"
).split()
STOP_WORDS = (
    "thing things something everything anything today tomorrow year years day days time way week "
    "people everyone one lot url amp rt user"
).split()
_CLOSED = {
    "D": "a an the this that these those my your our their his her its every some any".split(),
    "P": "i you he she it we they me him us them who what which".split(),
    "I": "of in on at by for with from to into about over under and or but as if than".split(),
    "V": "is are was were be been am has have had do does did will would can could must".split(),
    "R": "not never very too also just now here there always again".split(),
}
_PART_OF = {word: part for part, words in _CLOSED.items() for word in words}
_SUFFIXES = (
    ("R", ("ly",)),
    ("V", ("ing", "ed", "ize", "izes", "ify")),
    ("J", ("ous", "ful", "ive", "able", "ible", "al", "ic", "less", "ish")),
)
NOUNS = ("N", "NAME")


def tag(word: str) -> str:
    """Part of speech: determiner, pronoun, preposition, verb, adverb, adjective, name or noun."""
    low = word.lower()
    if low in _PART_OF:
        return _PART_OF[low]
    for part, endings in _SUFFIXES:
        if len(low) > 4 and low.endswith(endings):
            return part
    return "NAME" if word[:1].isupper() else "N"


@cache
def stemmer() -> Any:
    """The English Snowball stemmer."""
    try:
        import snowballstemmer
    except ImportError as problem:
        raise _missing("snowballstemmer") from problem
    return snowballstemmer.stemmer("english")


@cache
def languages() -> Any:
    """A function text -> (language code, score)."""
    try:
        import py3langid
    except ImportError as problem:
        raise _missing("py3langid") from problem
    return py3langid.classify


@cache
def lexicon() -> dict[str, float]:
    """The sentiment of words in lower case, from -4 to 4, in tenths."""
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as problem:
        raise _missing("vaderSentiment") from problem
    known = SentimentIntensityAnalyzer().lexicon
    return {word: value for word, value in known.items() if word.isalpha() and word == word.lower()}


def _missing(package: str) -> HeadgateError:
    return HeadgateError(
        f"the sentiment flow needs {package}; install it with: pip install 'headgate-lab[examples]'"
    )
