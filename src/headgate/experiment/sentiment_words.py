"""Words for the sentiment flow: a small lexicon of our own, phrases, and a tagger by rule.

Languages and word stems come from libraries (py3langid and snowballstemmer, both BSD). Taggers and
lexicons that could be had are heavy, not permissive, or fetch a model when first used.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from headgate.errors import HeadgateError

GOOD = (
    "good great best better love loved loves proud happy thank thanks grateful hope hopeful win "
    "wins won strong safe safer protect protects honor honored welcome congratulations success "
    "successful celebrate celebrates support supports supporting fair fairness justice peace free "
    "freedom bipartisan progress improve improves improved effective affordable brave courage hero "
    "heroes beautiful excellent wonderful glad pleased secure healthy benefit benefits reliable"
).split()
BAD = (
    "bad worse worst hate hated tragic tragedy terrible horrible fear afraid angry attack attacks "
    "attacked violence violent kill killed deadly crisis corrupt corruption fail fails failed "
    "failure wrong unfair injustice war wars threat threatens dangerous danger suffer suffering "
    "hurt hurts harm harms harmful lie lies lost loss sick shameful shame disgrace outrageous "
    "racist racism unacceptable reckless cruel devastating broken expensive abuse crime criminal"
).split()
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
_SUFFIXES = (
    ("R", ("ly",)),
    ("V", ("ing", "ed", "ize", "izes", "ify")),
    ("J", ("ous", "ful", "ive", "able", "ible", "al", "ic", "less", "ish")),
)
NOUNS = ("N", "NAME")


@cache
def tag(word: str) -> str:
    """Part of speech: determiner, pronoun, preposition, verb, adverb, adjective, name or noun."""
    low = word.lower()
    for part, words in _CLOSED.items():
        if low in words:
            return part
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
    """The sentiment of word stems."""
    stem = stemmer().stemWord
    return {stem(w): -1.0 for w in BAD} | {stem(w): 1.0 for w in GOOD}


def _missing(package: str) -> HeadgateError:
    return HeadgateError(
        f"the sentiment flow needs {package}; install it with: pip install 'headgate[examples]'"
    )
