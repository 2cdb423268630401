"""What may stand where in a declaration; every refusal says what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from headgate.errors import DeclarationError, MissingKey
from headgate.topology.arguments import check_choice, unknown_name
from headgate.topology.expressions import Columns
from headgate.topology.graph import SEVERAL_SLOTS, KeyGrouping

if TYPE_CHECKING:
    from headgate.topology.stream import Stream


_CHANGE = "change"  # the column of operators that tell changes


def check_joined(sides: tuple[Stream, Stream], *, as_of: bool = False) -> None:
    """Raise unless two streams of one flow are keyed so that a join can have them."""
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
        teller = None if as_of else _teller(stream)
        if teller is not None:
            raise DeclarationError(
                f"the {side} side of join(...) tells changes of {teller!r} (column 'change'), and "
                "a join keeps all rows that came: those that were replaced or deleted would go on "
                "meeting others. Join before that operator, or have it emit what is final; "
                "as_of=True takes changes, on the right. If each change is a row of its own, call "
                "the column otherwise, as in select('id', what='change')",
                operator=teller,
            )
    if left.grouping.by != right.grouping.by:
        raise DeclarationError(
            f"the sides of a join are grouped by {left.grouping.by!r} and {right.grouping.by!r}; "
            "give both the same grouping="
        )


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


def _teller(stream: Stream) -> str | None:
    """The operator whose changes these are, as far as it can be seen: functions do anything."""
    if _CHANGE not in stream.schema.names:
        return None
    nodes, edges = stream.flow._nodes, stream.flow._edges
    waiting = list(stream.producers)
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind == "stateful" and getattr(node.spec, "tells", False):
            return node.name
        function = getattr(node.spec, "function", None)
        same = isinstance(function, Columns) and function.source_of(_CHANGE) == _CHANGE
        if node.kind == "filter" or same:
            waiting += [edge.producer for edge in edges if edge.consumer == node.id]
    return None
