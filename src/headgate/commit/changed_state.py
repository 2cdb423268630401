"""One operator's settings and state columns, before a flow changed and now.

What has another name, what is new and what is gone; whether the state can follow; and how the
columns of now are found in files of before (`evolution.py` puts it together).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from headgate.commit.described import parse_type
from headgate.slot.program import Kept
from headgate.state.layout import Stored
from headgate.state.widening import widens

Json = Mapping[str, Any]
Kind = Literal["operator", "source", "sink"]


@dataclass(frozen=True)
class Changes:
    """What a start says about how its flow has changed (see `Options`).

    A name stands for an operator, a source or a sink, whichever there is; "operator:name" and so on
    say which.
    """

    drop_state: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    reset: Collection[str] = ()

    def names_of(self, kind: Kind) -> dict[str, str]:
        """What operators or sources are called now, by their old names."""
        told = {old: new for old, new in self.renamed.items() if old.startswith(f"{kind}:")}
        plain = {old: new for old, new in self.renamed.items() if old == bare(old)}
        return plain | {bare(old): new for old, new in told.items()}

    def drops(self, kind: Kind) -> frozenset[str]:
        """The operators or sinks that may go."""
        return frozenset(
            bare(name)
            for name in self.drop_state
            if name.startswith(f"{kind}:") or name == bare(name)
        )

    def now(self, name: str, owner: str) -> str:
        """What is called `name` in the state of an operator, as the flow calls it now."""
        new = self.renamed.get(f"{owner}.{name}", self.renamed.get(name, name))
        return new.removeprefix(f"{owner}.")

    def column_now(self, column: str, owner: str) -> str:
        """The same of a state column, which may be that of one aggregate among several."""
        aggregate, dot, part = column.rpartition(".")
        new = self.now(column, owner)
        return f"{self.now(aggregate, owner)}.{part}" if dot and new == column else new

    def all_now(self, told: Any, owner: str) -> Any:
        """The same of every text in what a checkpoint tells of an operator."""
        if isinstance(told, str):
            return self.now(told, owner)
        if isinstance(told, Mapping):
            return {name: self.all_now(value, owner) for name, value in told.items()}
        return [self.all_now(value, owner) for value in told] if isinstance(told, list) else told


NOTHING = Changes()


def bare(name: str) -> str:
    """A name without what says of which kind it is.

    Examples:
        >>> bare("source:orders"), bare("orders")
        ('orders', 'orders')
    """
    kind, colon, rest = name.partition(":")
    return rest if colon and kind in get_args(Kind) else name


def said(kind: Kind, name: str, others: Collection[str]) -> str:
    """How `drop_state` is to name it, if others have the same name.

    Examples:
        >>> said("sink", "counts", ["counts"]), said("sink", "counts", [])
        ('sink:counts', 'counts')
    """
    return f"{kind}:{name}" if name in others else name


@dataclass(frozen=True)
class Several:
    """The settings of an operator before and now, if it has several aggregates by name.

    Each has state columns of its own, `NAME.part`; so one may come, go, or be called otherwise
    while the others stay.
    """

    before: str
    operator: str
    was: Json
    now: Json
    changes: Changes

    @property
    def differing(self) -> set[str]:
        """Those that only one of the two flows has, by the names that each calls them."""
        old, new = (aggregates_of(settings) for settings in (self.was, self.now))
        called = {self._called(name) for name in old}
        return {n for n in old if self._called(n) not in new} | {n for n in new if n not in called}

    @property
    def shared(self) -> tuple[Json, Json]:
        """Both settings, without what only one of them has, by the names of now."""
        if not aggregates_of(self.was) or not aggregates_of(self.now):
            return self.was, self.now
        gone = self.differing
        old = {self._called(n): s for n, s in aggregates_of(self.was).items() if n not in gone}
        new = {n: s for n, s in aggregates_of(self.now).items() if n not in gone}
        return {**self.was, "aggregates": old}, {**self.now, "aggregates": new}

    def problems(self, offers: Collection[str]) -> Iterator[str]:
        if not aggregates_of(self.was) or not aggregates_of(self.now):
            return
        offered = {owner_of(column) for column in offers}
        for name in sorted(self.differing):
            if name in aggregates_of(self.now) and name not in offered:
                yield (
                    f"{name!r} of {self.operator!r} is new, and nothing says what the keys that "
                    f"are there hold in it (Aggregate(..., defaults={{{name!r}: None}}) lets it "
                    f"begin from nothing in them; if it had another name: renamed={{'old': "
                    f"{name!r}}})"
                )
            whole = f"{self.before}.{name}"
            if name in aggregates_of(self.was) and whole not in self.changes.drop_state:
                yield (
                    f"{name!r} of {self.operator!r} is gone (start with drop_state=[{whole!r}] if "
                    "its values may go)"
                )

    def _called(self, name: str) -> str:
        """What one of before is called now."""
        return name if name in aggregates_of(self.now) else self.changes.now(name, self.before)


def aggregates_of(settings: Json) -> Json:
    found: Json = settings.get("aggregates", {})
    return found


@dataclass(frozen=True)
class Columns:
    """One state table before and now; `counts`: columns that are gone must be given up by name."""

    before: str
    operator: str
    was: Json
    now: Json
    changes: Changes
    counts: bool

    def keys(self) -> Iterator[str]:
        for part in ("key", "sub"):
            old, new = self.was[part], self.now[part]
            if len(old) != len(new):
                if part == "sub" or not self.counts:
                    yield self._told(part)
                continue
            for (before, kind), (after, wanted) in zip(old, new, strict=True):
                if part == "sub" and after not in (before, self.changes.now(before, self.before)):
                    yield f"state of {self.operator!r}: {before!r} is {after!r} now"
                if not widens(parse_type(kind), parse_type(wanted), key=True):
                    yield (
                        f"state of {self.operator!r}: {part} column {after!r} was {kind}, is now "
                        f"{wanted}, and its values would be others"
                    )

    def values(self, offers: Collection[str], settled: Collection[str]) -> Iterator[str]:
        """`settled`: aggregates about whose columns all has been said."""
        was, found = dict(self.was["values"]), self._found()
        for column, kind in self.now["values"]:
            old = found.get(column)
            if old is None and column not in offers and owner_of(column) not in settled:
                yield (
                    f"state of {self.operator!r}: column {column!r} is new, and nothing says what "
                    f"older rows hold in it (give it a default, or keep it in an operator of its "
                    f"own, which begins empty; if it had another name: renamed={{'old': "
                    f"{column!r}}})"
                )
            elif old is not None and not widens(parse_type(was[old]), parse_type(kind)):
                yield (
                    f"state of {self.operator!r}: column {column!r} was {was[old]}, is now {kind}, "
                    "which does not hold all its values exactly (cast the input to what it was)"
                )
        for column in self._gone():
            name = f"{self.before}.{column}"
            given_up = name in self.changes.drop_state or owner_of(column) in settled
            if self.counts and not given_up:
                yield (
                    f"state of {self.operator!r}: column {column!r} is gone (start with "
                    f"drop_state=[{name!r}] if its values may go)"
                )

    def kept(self, offers: Mapping[str, str | None]) -> Kept:
        """How the columns of now are found in files, for good."""
        known = {told[0]: Stored(*told) for told in self.was.get("stored", ())}
        known = {c: known.get(c, Stored(c, c)) for c, _ in self.was["values"]}
        gone = [known[column].name for column in self._gone()] if self.counts else []
        retired = [*self.was.get("retired", ()), *gone]
        taken, found = {*retired, *(column.name for column in known.values())}, self._found()
        stored = []
        for column, _ in self.now["values"]:
            if column in found:
                mine = replace(known[found[column]], column=column)
            else:
                mine = Stored(column, _fresh(column, taken), True, offers.get(column))
                taken.add(mine.name)
            if mine != Stored(column, column):
                stored.append(mine)
        return tuple(stored), tuple(retired)

    def _found(self) -> dict[str, str]:
        """The columns of now that were there before, with the names they had."""
        was, now = [c for c, _ in self.was["values"]], [c for c, _ in self.now["values"]]
        moved = {self.changes.column_now(c, self.before): c for c in was if c not in now}
        found = {column: column if column in was else moved.get(column) for column in now}
        return {column: old for column, old in found.items() if old is not None}

    def _gone(self) -> list[str]:
        found = self._found().values()
        return [column for column, _ in self.was["values"] if column not in found]

    def _told(self, part: str) -> str:
        return f"state of {self.operator!r} was {self.was[part]}, is now {self.now[part]}"


def owner_of(column: str) -> str:
    """The aggregate among several that a state column belongs to."""
    return column.rpartition(".")[0]


def _fresh(column: str, taken: Collection[str]) -> str:
    """A name for a column in files that no other has, or had."""
    name, number = column, 1
    while name in taken:
        number += 1
        name = f"{column}~{number}"
    return name
