"""What becomes of stored state when the flow has changed: carried on, or refused with a way out.

The last manifest describes the flow that its state belongs to. A start compares that with the flow
it declares and either refuses, or says how the state is carried on: which operators and sources
have other names now, which begin from nothing, and how the columns of state tables are found in
files that were written before. Nothing is rewritten: files are converted as they are read
(`state/state_file.py`), and what a start says becomes true with the first epoch that it commits. So
a driver may die anywhere, and start again with the same words.

A value column keeps the name that it has in files (`Stored.name`) for good, so that an old file
cannot be mistaken however often columns were renamed, given up and added since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.commit.changed_state import (
    NOTHING,
    Changes,
    Columns,
    Json,
    Kind,
    Several,
    aggregates_of,
    bare,
    said,
)
from headgate.commit.described import parse_type
from headgate.commit.manifest import Manifest
from headgate.errors import DeclarationError, ForeignCheckpoint, IncompatibleFlow, UnknownName
from headgate.operator.totals import TOTALS
from headgate.slot.held_back import table_of
from headgate.slot.program import Kept, Program
from headgate.state.widening import widens


@dataclass(frozen=True)
class Carried:
    """How stored state is carried on: names by what they were, what begins from nothing, columns.

    `kept` says, by state table, how its columns are found in older files.
    """

    operators: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    begins: frozenset[str] = frozenset()
    kept: Mapping[str, Kept] = field(default_factory=dict)

    def of(self, last: Manifest | None) -> Manifest | None:
        """The last manifest, as if the flow had been this one."""
        if last is None or not (self.operators or self.sources or self.begins):
            return last

        def named(by_operator: Mapping[str, Any]) -> dict[str, Any]:
            return {self._now(name): value for name, value in by_operator.items()}

        def held(by_operator: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: value
                for name, value in named(by_operator).items()
                if self.begins.isdisjoint((name, name.partition("@")[0]))
            }

        return replace(
            last,
            tables=named(last.tables),
            costs=named(last.costs),
            instances=named(last.instances),
            chains=held(last.chains),
            due=held(last.due),
            sources={self.sources.get(name, name): time for name, time in last.sources.items()},
        )

    def _now(self, table: str) -> str:
        operator, at, part = table.partition("@")
        return f"{self.operators.get(operator, operator)}{at}{part}"


def offers_of(program: Program) -> dict[str, dict[str, str | None]]:
    """By operator, columns that may be added to its state, with what older rows hold in them."""
    found = {}
    for node in program.stateful:
        fields = node.spec.state_fields(program.input_schema(node.id), node.key)
        kinds = {column.name: column.type for column in fields.values}
        found[node.name] = {
            column: _as_text(value, kinds[column], node.name, column)
            for column, value in fields.defaults.items()
            if column in kinds
        }
    return found


def evolve(
    stored: Json | None,
    declared: Json,
    uri: str,
    changes: Changes = NOTHING,
    *,
    dropped: Collection[str] = (),
    offers: Mapping[str, Mapping[str, str | None]] | None = None,
    empty: Collection[str] = (),
) -> Carried:
    """How the declared flow goes on from the stored one; raises if it cannot.

    `dropped` are names that earlier starts dropped, so that a start can be repeated as it was;
    `empty` are state tables without a file.
    """
    sinks = () if stored is None else stored.get("sinks", ())
    for told in changes.drop_state:
        name = told.removeprefix("operator:")
        if name in declared["operators"] and (name not in sinks or told != name):
            raise DeclarationError(
                f"drop_state names {told!r}, which the flow still has: its state would be kept. "
                "Leave it out; or, to begin from nothing, give the operator another name=",
                operator=name,
            )
    for name in changes.reset:
        if name not in declared["operators"]:
            raise UnknownName(
                f"reset names {name!r}, but the flow has no such stateful operator; it has "
                f"{', '.join(declared['operators']) or 'none'}",
                name=name,
                known=list(declared["operators"]),
            )
    if stored is None:
        return Carried()
    if stored["flow"] != declared["flow"]:
        raise ForeignCheckpoint(
            f"checkpoint {uri} belongs to flow {stored['flow']!r}, not {declared['flow']!r}",
            found=stored["flow"],
            wanted=declared["flow"],
        )
    _check_kinds(stored, declared, changes)
    carried = _Comparison(stored, declared, uri, changes, offers or {}, empty).carried()
    _check_names(stored, declared, changes, dropped)
    return carried


@dataclass(frozen=True)
class _Comparison:
    stored: Json
    declared: Json
    uri: str
    changes: Changes
    offers: Mapping[str, Mapping[str, str | None]]
    empty: Collection[str]

    def carried(self) -> Carried:
        names = self._renamed("operators") | self._renamed("stateless")
        problems: list[str] = []
        begins: set[str] = set()
        kept: dict[str, Kept] = {}
        for before, told in self.stored["operators"].items():
            name = names.get(before, before)
            after = self.declared["operators"].get(name)
            if after is None:
                if before not in self.changes.drops("operator"):
                    old = said("operator", before, self.stored.get("sources", ()))
                    its_name = said("operator", before, self.stored.get("sinks", ()))
                    problems.append(
                        f"operator {before!r} is gone and its state with it (if it has another "
                        f"name now: renamed={{{old!r}: 'its name'}}; start with "
                        f"drop_state=[{its_name!r}] if its state may go)"
                    )
                continue
            mine: dict[str, Kept] = {}
            found = list(self._operator(before, name, told, after, mine))
            if found and name in self.changes.reset:
                begins.add(name)
                continue
            problems += found
            kept |= mine
            if told != after and TOTALS in told.get("tables", {}):
                begins.add(table_of(name, TOTALS))  # they follow from panes, and are made anew
        problems += self._sinks()
        if problems:
            raise IncompatibleFlow(
                f"the flow changed in a way its state in {self.uri} cannot follow: "
                f"{'; '.join(problems)}. Undo the change; say what only has another name now "
                "(renamed={'old': 'new'}); let operators begin from nothing (reset=['name']); or "
                "start with a new checkpoint folder",
                changes=problems,
            )
        return Carried(names, self._renamed("sources"), frozenset(begins), kept)

    def _renamed(self, what: str) -> dict[str, str]:
        """Operators or sources that have another name now."""
        pairs = self.changes.names_of(_WHERE[what])
        return {old: pairs[old] for old in _fits(pairs, self.stored, self.declared, what)}

    def _operator(
        self, before: str, name: str, old: Json, new: Json, kept: dict[str, Kept]
    ) -> Iterator[str]:
        """What the state of one operator cannot follow; `kept` gets how it follows the rest."""
        offers = self.offers.get(name, {})
        several = Several(before, name, old["settings"], new["settings"], self.changes)
        yield from several.problems(offers)
        old, new = ({**told, "settings": s} for told, s in zip((old, new), several.shared))
        for what in ("key", "settings", "ttl_ms"):
            if new[what] not in (old[what], self.changes.all_now(old[what], before)):
                yield f"{what} of {name!r} was {old[what]}, is now {new[what]}"
        places = [told["state"].get("near", []) for told in (old, new)]
        if places[0] != places[1]:
            near = [", ".join(new["key"][place] for place in some) or "nothing" for some in places]
            yield f"the key of {name!r} was near {near[0]}, is now near {near[1]}"
        parts = {name: (old["state"], new["state"])}
        for part, told in old.get("tables", {}).items():
            if part == TOTALS or table_of(before, part) in self.empty:
                continue
            if part not in new.get("tables", {}):
                yield f"{name!r} has no {part} state now, and rows of it are kept"
            else:
                parts[f"{name}@{part}"] = told, new["tables"][part]
        order = old.get("order_by")
        now = self.changes.all_now(order, before)
        waits = order is not None and f"{before}@waiting" not in self.empty
        if waits and new.get("order_by") not in (order, now):
            yield f"order_by of {name!r} was {order!r}, is now {new.get('order_by')!r}"
        for table, (was, is_now) in parts.items():
            columns = Columns(before, name, was, is_now, self.changes, table == name)
            yield from columns.keys()
            mine = offers if table == name else {}
            yield from columns.values(mine, several.differing)
            kept[table] = columns.kept(mine)

    def _sinks(self) -> Iterator[str]:
        """Published rows are read in the columns of today: none may be read as null instead."""
        before = self.stored.get("published_columns", {})
        for sink, columns in self.declared.get("published_columns", {}).items():
            was, now = dict(before.get(sink, ())), dict(columns)
            gone, new = [c for c in was if c not in now], [c for c in now if c not in was]
            way_out = "give the sink another name= (and path), so that they stay apart"
            if gone and new:
                yield (
                    f"sink {sink!r} had {_listed(gone)}, and has {_listed(new)} instead: rows that "
                    f"are published would be read as null there. Keep the names, or {way_out}"
                )
            for column in (c for c in now if c in was and was[c] != now[c]):
                if not widens(parse_type(was[column]), parse_type(now[column])):
                    yield (
                        f"column {column!r} of sink {sink!r} was {was[column]}, is now "
                        f"{now[column]}, which published rows are not: cast it, or {way_out}"
                    )


_WHERE: Mapping[str, Kind] = {
    "operators": "operator",
    "stateless": "operator",
    "sources": "source",
}


_AMONG = {
    "operator:": "operators",
    "source:": "sources",
    "sink:": "operators and sources (a sink that is called otherwise is another sink)",
}


def _fits(pairs: Mapping[str, str], stored: Json, declared: Json, what: str) -> list[str]:
    """Old names of operators or sources that are gone while the new ones have come."""
    before, after = stored.get(what, ()), declared.get(what, ())
    return [
        old
        for old, new in pairs.items()
        if old in before and old not in after and new in after and new not in before
    ]


def _check_kinds(stored: Json, declared: Json, changes: Changes) -> None:
    """A name that could be that of an operator, and of a source or a sink, must say which."""
    plain = {old: new for old, new in changes.renamed.items() if old == bare(old)}
    by_kind = {what: {*_fits(plain, stored, declared, what)} for what in _WHERE}
    for old in (by_kind["operators"] | by_kind["stateless"]) & by_kind["sources"]:
        new = plain[old]
        raise DeclarationError(
            f"renamed says that {new!r} was {old!r}, and both an operator and a source were called "
            f"so: say which with {{'operator:{old}': {new!r}}} or {{'source:{old}': {new!r}}}, or "
            "give both",
            operator=old,
        )
    for what, kind in _WHERE.items():
        fits = _fits(changes.names_of(kind), stored, declared, what)
        news = [changes.names_of(kind)[old] for old in fits]
        if twice := sorted({new for new in news if news.count(new) > 1}):
            raise DeclarationError(
                f"renamed says that {twice[0]!r} was {' and '.join(map(repr, fits))}: only one of "
                f"these {kind}s can be called so now",
                operator=twice[0],
            )
    operators, sinks = stored["operators"], stored.get("sinks", ())
    for name in changes.drop_state:
        if name in operators and name not in declared["operators"] and name in sinks:
            raise DeclarationError(
                f"drop_state names {name!r}, which is an operator that is gone, and a sink: say "
                f"which may lose what it has with 'operator:{name}' or 'sink:{name}', or give both",
                operator=name,
            )


def _check_names(stored: Json, declared: Json, changes: Changes, dropped: Collection[str]) -> None:
    """Whatever a start names must be there; it may say again what has been done before."""
    operators, sinks = stored["operators"], stored.get("sinks", {})
    columns = [
        f"{op}.{name}"
        for op, told in operators.items()
        for name in (*(c for c, _ in told["state"]["values"]), *aggregates_of(told["settings"]))
    ]
    known = [*operators, *sinks]
    kinds = [f"operator:{name}" for name in operators] + [f"sink:{name}" for name in sinks]
    for name in changes.drop_state:
        if name not in (*known, *kinds, *columns, *dropped):
            raise UnknownName(
                f"drop_state names {name!r}, but the checkpoint holds no such operator or sink; "
                f"it holds {', '.join(known) or 'none'}",
                name=name,
                known=known,
            )
    names: Mapping[str, set[str]] = {
        "operator:": {*operators, *stored.get("stateless", ())},
        "source:": {*stored.get("sources", ())},
        "sink:": set(),
    }
    words = set().union(*names.values())
    for told in operators.values():
        words |= {*_words(told), *aggregates_of(told["settings"])}
    for old, new in changes.renamed.items():
        kind = old.removesuffix(bare(old))
        whole = {bare(old), new}
        parts = whole if kind else whole | {name.rpartition(".")[2] for name in whole}
        if names.get(kind, words).isdisjoint(parts):
            raise UnknownName(
                f"renamed says that {new!r} was {old!r}, but the checkpoint knows neither among "
                f"its {_AMONG.get(kind, 'operators, sources, columns and functions')}",
                name=old,
                known=sorted(names.get(kind, words)),
            )
    for what in ("operators", "sources"):
        pairs = changes.names_of(_WHERE[what])
        elsewhere = {o for w in _WHERE if w != what for o in _fits(pairs, stored, declared, w)}
        for old, new in pairs.items():
            both = old in declared[what] and new in declared[what] and old not in elsewhere
            if both and old in stored[what] and new not in stored[what]:
                raise DeclarationError(
                    f"renamed says that {new!r} was {old!r}, but the flow still has {old!r}: which "
                    "of the two goes on from what is stored? Give the other another name=",
                    operator=old,
                )


def _words(told: Any) -> Iterator[str]:
    """All texts in what a checkpoint tells."""
    if isinstance(told, str):
        yield told
    elif isinstance(told, Mapping | list):
        for value in told.values() if isinstance(told, Mapping) else told:
            yield from _words(value)


def _as_text(value: Any, kind: pa.DataType, operator: str, column: str) -> str | None:
    """A default as it is kept in the checkpoint; it must come back as it was."""
    if value is None:
        return None
    try:
        given = pa.scalar(value, kind)
        text = str(given.cast(pa.string()).as_py())
        if pa.scalar(text, pa.string()).cast(kind) == given:
            return text
        problem = "it would not come back from text as it was"
    except (pa.ArrowException, TypeError, ValueError) as error:
        problem = str(error)
    raise DeclarationError(
        f"default {value!r} of state column {column!r} ({kind}) of {operator!r}: {problem}. Give "
        "another, or None for null",
        operator=operator,
        column=column,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
