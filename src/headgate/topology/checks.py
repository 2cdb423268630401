"""What may stand where in a declaration; every refusal says what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from headgate.errors import DeclarationError, MissingKey
from headgate.topology.arguments import check_choice, unknown_name
from headgate.topology.changelog import Changelog, changelog_of, updater_of
from headgate.topology.graph import SEVERAL_SLOTS, KeyGrouping
from headgate.topology.joining import CHANGE, Asked

if TYPE_CHECKING:
    from headgate.topology.stream import Stream


def check_joined(
    sides: tuple[Stream, Stream], asked: Asked
) -> tuple[Changelog | None, Changelog | None]:
    """Raise unless two streams of one flow are keyed so that a join can have them.

    Returns what each side tells of changes.
    """
    left, right = sides
    if not isinstance(right, type(left)):
        raise DeclarationError(
            f"join(...) takes another stream of the flow, keyed, not {type(right).__name__}"
        )
    if left.flow is not right.flow:
        raise DeclarationError("join of streams that belong to two different flows")
    for stream, side in zip(sides, ("left", "right"), strict=True):
        stream._refuse_dead_letters()
        if stream.grouping.kind != "fields":
            raise MissingKey(
                f"join(...) brings rows of equal keys together, and the {side} side has no key; "
                "put key_by(...) after it, as in left.key_by('id').join(right.key_by('id'))"
            )
        if stream.grouping.by in ("partial", *SEVERAL_SLOTS):
            raise DeclarationError(
                f"grouping={stream.grouping.by!r} of the {side} side folds rows of a key in "
                "several slots, and those of a join have to meet in one; leave it out"
            )
    told = (_told(left, "left", asked), _told(right, "right", asked))
    if left.grouping.by != right.grouping.by:
        raise DeclarationError(
            f"the sides of a join are grouped by {left.grouping.by!r} and {right.grouping.by!r}; "
            "give both the same grouping="
        )
    return told


def check_operator(operator: Any, options: Mapping[str, object]) -> None:
    """Raise unless it is a stateful operator, without options, and say what to write instead."""
    for name, value in options.items():
        said = unknown_name("process", name, ["name"])
        if name == "split":
            word = "auto" if value == "auto" else "partial" if value else "hash"
            before = f"key_by(..., grouping={word!r}) or globally(grouping={word!r})"
            said = f"process takes no split=; give {before} before it"
        raise DeclarationError(said, option=name)
    if isinstance(operator, type):
        who = operator.__name__
        raise DeclarationError(f"process({who}) got a class; make an operator of it: {who}(...)")
    if hasattr(operator, "declared"):
        return
    if callable(operator):
        raise DeclarationError(
            f"process(...) got the function {getattr(operator, '__name__', operator)!r}; wrap it: "
            "process(hg.Update(function, output='k string, ...'))"
        )
    raise DeclarationError(
        f"process(...) takes a stateful operator such as hg.Count(), not {operator!r}"
    )


def check_folded(stream: Stream, operator: Any, who: str) -> None:
    """Raise if an aggregate would count rows that replace others, and does not ask which do."""
    if not operator.adds_rows or CHANGE not in stream.schema.names:
        return
    told = changelog_of(stream.flow._nodes, stream.flow._edges, stream.producers)
    if told is None or CHANGE in operator.needs(stream.schema, stream.grouping.key, set()):
        return
    raise DeclarationError(
        f"{who} would count each change that {told.teller!r} tells (column 'change') as a row of "
        "its own, beside the one that it replaces. Aggregate before that operator, or have it emit "
        "what is final; where=\"change = 'insert'\" says which changes count. If each is a row of "
        "its own, call the column otherwise, as in select('id', what='change')",
        operator=who,
    )


def check_grouping(grouping: object, known: Sequence[str]) -> None:
    """Raise unless it is one of the words for how rows find the slots of their keys."""
    if grouping == "split":
        raise DeclarationError(
            "grouping='split' has another name: give grouping='cut' to share the rows of heavy "
            "keys among several slots, or 'partial' to fold all rows in the task that has them"
        )
    if grouping in get_args(KeyGrouping) and grouping not in known:
        raise DeclarationError(
            f"globally(grouping={grouping!r}): there is only one key; choose {', '.join(known)}"
        )
    check_choice(grouping, "grouping", known)


def _told(stream: Stream, side: str, asked: Asked) -> Changelog | None:
    """The changes that a side tells, if the join can follow them; raises if it cannot."""
    if asked.as_of:
        return None
    nodes, edges = stream.flow._nodes, stream.flow._edges
    timed = asked.within is not None or asked.window is not None
    told = changelog_of(nodes, edges, stream.producers)
    if told is None:
        updater = None if timed else updater_of(nodes, edges, stream.producers)
        if updater is not None:
            raise _updates(updater, side)
        return None
    why = told.lost
    other = [name for name in stream.grouping.key if name not in told.known_by]
    if timed:
        why = "a join with within= or window= keeps all rows that came, also those replaced"
    elif asked.ttl is not None:
        why = "with ttl= rows would be forgotten that have to be taken back; leave it out"
    elif other and not why:
        known = ", ".join(told.known_by) or "nothing, as there is one row"
        why = (
            f"key {other[0]!r} is a value that changes, so the row that it replaces may live "
            f"elsewhere; key by what it is known by ({known})"
        )
    if not why:
        return told
    raise DeclarationError(
        f"the {side} side of join(...) tells changes of {told.teller!r} (column 'change'), which "
        f"cannot be followed: {why}. Join right behind that operator without within=, window= and "
        "ttl=, join before it, or have it emit what is final; as_of=True takes changes, on the "
        "right. If each change is a row of its own, call the column otherwise, as in "
        "select('id', what='change')",
        operator=told.teller,
    )


def _updates(updater: str, side: str) -> DeclarationError:
    """Results that replace each other, and do not say so, cannot be joined at any time."""
    return DeclarationError(
        f"the {side} side of join(...) gets each result of {updater!r} so far (emit='updates'), "
        "one per key and epoch: the join would keep all of them, also those that were replaced, "
        "and pairs would depend on how rows fall into epochs. Give that operator emit='changes': "
        "then pairs of results that were replaced are taken back (of Global leave out the window). "
        "Or join before it, or give it a window= that ends. If each result is a row of its own, "
        "emit='changes' and select('id', what='change') say so",
        operator=updater,
    )
