"""Which rows of a stream tell changes, and by which columns a row is known that changes.

An operator that tells changes says so in the column `change`. A join has to know: rows that were
replaced would go on meeting others. So it asks here, and what stands between the operator and the
join is gone through step by step: a step that could lose a change is named, with the reason.

There are two kinds. An aggregate's row is *known by* its key (and window, and rank): a change says
what holds from now on. A join's rows are taken back *whole*, with all their values.

An aggregate that does not tell changes (`emit="updates"`) puts out results that replace each other
all the same, and a join could not know: `updater_of` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.topology.expressions import Columns, Condition
from headgate.topology.graph import Edge
from headgate.topology.joining import CHANGE
from headgate.topology.lookup import Lookup


@dataclass(frozen=True)
class Changelog:
    """Changes of the operator `teller`, of rows that `known_by` tells from others.

    `whole`: a row is taken back with its values, and equal rows count each. `lost`: what made it
    impossible to follow the changes to here, half a sentence.
    """

    teller: str
    known_by: tuple[str, ...]
    whole: bool
    lost: str = ""


def changelog_of(
    nodes: Sequence[Any], edges: Sequence[Edge], at: Sequence[int]
) -> Changelog | None:
    """What comes out of these nodes together; None: rows that nothing replaces.

    Functions of Python may do anything: behind them `change` is a column like others.
    """
    found = [_behind(nodes, edges, node) for node in at]
    told = [one for one in found if one is not None]
    if told and len(found) > 1:
        return _lost(told[0], "they are united with other rows")
    return told[0] if told else None


def _behind(nodes: Sequence[Any], edges: Sequence[Edge], at: int) -> Changelog | None:
    node = nodes[at]
    if CHANGE not in node.schema.names or node.kind == "source":
        return None
    inputs = [edge for edge in edges if edge.consumer == at]
    if node.kind == "stateful" and node.spec.tells:
        known: tuple[str, ...] | None = node.spec.known_by(node.key)
        every = tuple(name for name in node.schema.names if name != CHANGE)
        return Changelog(node.name, every if known is None else known, known is None)
    came = changelog_of(nodes, edges, [edge.producer for edge in inputs if edge.side == 0])
    if came is None:
        return None
    if node.kind == "stateful":
        return _lost(came, f"{node.name!r} stands between, and may let some rows through only")
    function = node.spec.function
    if isinstance(function, Columns):
        return _chosen(came, function, node.name)
    if isinstance(function, Lookup):
        names = dict(function.left)
        if names[CHANGE] != CHANGE:
            return None
        if function.how == "inner":
            return _lost(came, f"{node.name!r} leaves rows out by a table that may change")
        return replace(came, known_by=tuple(names[name] for name in came.known_by))
    if isinstance(function, Condition):
        return _filtered(came, function, node.name)
    return _lost(came, f"{node.name!r} filters them") if node.kind == "filter" else None


def updater_of(nodes: Sequence[Any], edges: Sequence[Edge], at: Sequence[int]) -> str | None:
    """The operator whose results come out of one of these nodes as they change, if one does.

    Its rows replace earlier ones, and nothing in them says so. Again functions of Python may do
    anything, and so may operators with state: behind them a row is one of its own.
    """
    for node in (nodes[one] for one in at):
        if node.kind == "stateful" and node.spec.replaces:
            return str(node.name)
        if node.kind == "filter" or isinstance(
            getattr(node.spec, "function", None), Columns | Lookup
        ):
            before = [edge.producer for edge in edges if edge.consumer == node.id]
            found = updater_of(nodes, edges, before)
            if found is not None:
                return found
    return None


def _chosen(came: Changelog, made: Columns, name: str) -> Changelog | None:
    """Behind `select` and `with_columns`, which say what each column is made of."""
    if made.source_of(CHANGE) != CHANGE:
        return None
    by: Mapping[str, str] = {c.source: c.field.name for c in made.columns if c.source is not None}
    if came.whole:  # equal rows stay equal, whatever is made of them
        pure = [c.field.name for c in made.columns if c.reads <= {*came.known_by}]
        return replace(came, known_by=tuple(pure))
    gone = [known for known in came.known_by if known not in by]
    if gone:
        which = ", ".join(map(repr, gone))
        return _lost(came, f"{name!r} leaves out {which}, by which it is known what changed")
    return replace(came, known_by=tuple(by[known] for known in came.known_by))


def _filtered(came: Changelog, condition: Condition, name: str) -> Changelog:
    """A filter passes a change on if it did so with the row that is changed."""
    unsure = sorted(condition.reads - {*came.known_by})
    if not unsure:
        return came
    return _lost(came, f"{name!r} filters by {unsure[0]!r}, and would leave out changes of rows "
                       "that it let through")  # fmt: skip


def _lost(came: Changelog, why: str) -> Changelog:
    return replace(came, lost=came.lost or why)
