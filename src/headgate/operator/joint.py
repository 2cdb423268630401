"""Several aggregates at once, over the same rows and in one row of state per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, get_args

import pyarrow as pa

from headgate.errors import DeclarationError
from headgate.operator.aggregates import Count, Sum
from headgate.operator.base import Emit, StateFields
from headgate.operator.first_and_last import Last
from headgate.operator.measure import Measure, Measuring
from headgate.operator.picked import Latest
from headgate.operator.window import Window
from headgate.topology.arguments import check_choice

_OWN = ("emit", "window", "ttl", "ordered")  # what is said once, for all of them


@dataclass(frozen=True, init=False)
class Aggregate(Measuring):
    """Several aggregates of every key, and window if there is one: a column each, by its keyword.

    Each may have its own `where=`. `emit`, `window`, `ttl` and `ordered` are said once, here. All
    of them share one row of state, and the rows are grouped once; so it costs as much as the single
    aggregates do without their fixed part of 20 to 30 ns per row. Mergeable if all of them are.
    A row that would take one sum out of the 64-bit range is refused for all.

    A mapping as first argument takes names that are no keyword, such as "window".

    An aggregate may be added to a state that is there already if `defaults` names it: None lets it
    begin from nothing in keys that are there, so it tells what came since; a value is what those
    keys hold, of aggregates that keep no more than their result (Count, Sum, Min, Max, Any, All).

    Examples:
        >>> import headgate as hg, pyarrow.compute as pc
        >>> hg.Aggregate(n=hg.Count(), high=hg.Max("x", where=pc.field("x") < 9))
        Aggregate(n=Count(), high=Max('x', where=(x < 9)))
    """

    instead: ClassVar[str] = "choose another keyword"

    given: Mapping[str, Measure]
    defaults: Mapping[str, Any] = field(repr=False)
    emit: Emit
    window: Window | None
    ttl: str | timedelta | None = field(repr=False)
    ordered: bool = field(repr=False)
    ends_epochs: bool = field(repr=False)

    def __init__(
        self,
        aggregates: Mapping[str, Measure] | None = None,
        /,
        *,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        emit: Emit = "updates",
        window: Window | None = None,
        ttl: str | timedelta | None = None,
        ordered: bool = False,
        **more: Measure,
    ) -> None:
        given = {
            name: _prepared(name, measure)
            for name, measure in {**(aggregates or {}), **more}.items()
        }
        if not given:
            raise DeclarationError(
                "Aggregate got no aggregates; write Aggregate(n=Count(), total=Sum('x'))",
                operator="Aggregate",
            )
        told = {
            "given": given, "defaults": dict(defaults), "emit": emit, "window": window, "ttl": ttl,
            "ordered": ordered, "ends_epochs": window is not None,
        }  # fmt: skip
        for attribute, value in told.items():
            object.__setattr__(self, attribute, value)
        check_choice(emit, "Aggregate: emit", get_args(Emit), operator="Aggregate")
        self.check_emit()
        for name, value in self.defaults.items():
            _check_default(name, given.get(name), value, window)

    def state_fields(self, rows: pa.Schema, key: Sequence[str]) -> StateFields:
        added = {
            kept.name: value
            for name, value in self.defaults.items()
            for kept in self.given[name].kept(rows)
        }
        return replace(super().state_fields(rows, key), defaults=added)

    @property
    def measures(self) -> Mapping[str, Measure]:
        return self.given

    def __repr__(self) -> str:
        told = [f"{name}={_told(measure)}" for name, measure in self.given.items()]
        if self.emit != "updates":
            told.append(f"emit={self.emit!r}")
        if self.window is not None:
            told.append(f"window={self.window!r}")
        return f"Aggregate({', '.join(told)})"

    def describe(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.describe()
        each = {}
        for name, measure in self.given.items():
            each[name] = measure.describe()
            del each[name]["window"]
        told = {"operator": "Aggregate", "aggregates": each, "window": window}
        return told | ({"tells": True} if self.tells else {})


def _prepared(name: str, measure: Any) -> Measure:
    """The aggregate as it is kept beside others."""
    if isinstance(measure, Last):
        measure = _latest(name, measure)
    if not isinstance(measure, Measure) or not measure.joins:
        raise DeclarationError(
            f"Aggregate: {name}={measure!r} is none of the aggregates that share a row of state "
            "(Count, Sum, Max, First, ...); give it a process(...) of its own",
            operator="Aggregate",
        )
    defaults = {f.name: f.default for f in fields(measure)}
    for setting in _OWN:
        if getattr(measure, setting) != defaults[setting]:
            raise DeclarationError(
                f"Aggregate: {name} has {setting}={getattr(measure, setting)!r}; {setting}= is "
                "said once, to Aggregate",
                operator="Aggregate",
            )
    mine = replace(measure, name=name)
    object.__setattr__(mine, "prefix", f"{name}.")
    return mine


def _check_default(name: str, measure: Measure | None, value: Any, window: Window | None) -> None:
    """Raise unless state of before there was this aggregate can hold the default."""
    if measure is None:
        raise DeclarationError(
            f"Aggregate: defaults names {name!r}, and it has no aggregate of that name",
            operator="Aggregate",
        )
    if value is not None and not measure.is_its_state:
        raise DeclarationError(
            f"Aggregate: defaults={{{name!r}: {value!r}}}, and {type(measure).__name__} keeps more "
            f"than its result, which does not say what rows it is of; write {{{name!r}: None}}: it "
            "begins from nothing then",
            operator="Aggregate",
        )

    if value and isinstance(measure, Count | Sum) and window is not None and window.needs_merge:
        raise DeclarationError(
            f"Aggregate: defaults={{{name!r}: {value!r}}}, and a result of {window!r} is added up "
            f"from several rows of state, each of which would hold it; write {{{name!r}: None}}: "
            "it begins from nothing then",
            operator="Aggregate",
        )


def _latest(name: str, last: Last) -> Measure:
    if len(last.columns) > 1:
        raise DeclarationError(
            f"Aggregate: {name}={last!r} has several columns; give each a Last of its own",
            operator="Aggregate",
        )
    settings = {setting: getattr(last, setting) for setting in ("emit", "ttl", "ordered")}
    return Latest(last.columns[0], by=last.by, **settings)


def _told(measure: Measure) -> str:
    """The declaration, without what is as usual."""
    told = []
    for f in fields(measure):
        value = getattr(measure, f.name)
        if f.name == "column" and value is not None:
            told.append(repr(value))
        elif f.name == "where" and value is not None:
            told.append(f"where={value}")
        elif f.init and f.name not in ("column", "where", "name") and value != f.default:
            told.append(f"{f.name}={value!r}")
    return f"{type(measure).__name__}({', '.join(told)})"
