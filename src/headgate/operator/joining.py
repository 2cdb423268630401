"""How a join is declared: which kind, by which times, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pyarrow as pa

from headgate.errors import DeclarationError, SchemaMismatch
from headgate.operator.as_of import AsOf
from headgate.operator.changelog_join import ChangelogJoin
from headgate.operator.fixed_windows import FixedWindow
from headgate.operator.joins import Join, Within
from headgate.operator.session_window import Session
from headgate.operator.window import CHANGE, Late, Window
from headgate.state.layout import layout_of
from headgate.topology.arguments import check_choice, duration_us, positive_us
from headgate.topology.changelog import Changelog
from headgate.topology.joining import LEFT, RIGHT, Asked, How, Sides, sides_of, words_of
from headgate.topology.schema import key_of, time_of

WHO = "join(...)"


def join_operator(
    asked: Asked,
    schemas: tuple[pa.Schema, pa.Schema],
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    event_times: tuple[frozenset[str], frozenset[str]],
    told: tuple[Changelog | None, Changelog | None] = (None, None),
) -> Any:
    """The operator that does what was asked, or a DeclarationError that says why there is none.

    `event_times` are the columns by which the sources of each side measure event time, `told` what
    each side tells of changes.
    """
    check_choice(asked.how, f"{WHO}: how", get_args(How))
    check_choice(asked.late, f"{WHO}: late", get_args(Late))
    _check_kind(asked)
    if asked.as_of:
        return _as_of(asked, schemas, keys, event_times)
    if told != (None, None):
        return _of_changes(asked, schemas, keys, told)
    names = _time_names(asked, schemas, event_times)
    within = None
    if asked.within is not None:
        within = _within(asked.within, schemas[LEFT])
    own = [{name} if name is not None else set() for name in names]
    if within is not None and within.until is not None:
        own[LEFT].add(within.until)
    sides = sides_of(schemas, keys, asked.suffixes, WHO)
    _check_held(sides, schemas)
    sides = Sides(sides.keys, sides.names, (frozenset(own[LEFT]), frozenset(own[RIGHT])))
    keep_us = None if asked.ttl is None else positive_us(asked.ttl)
    lateness_us = duration_us(asked.allowed_lateness or timedelta(0))
    return Join(sides, asked.how, within, asked.window, names, keep_us, asked.late, lateness_us)


def _as_of(
    asked: Asked,
    schemas: tuple[pa.Schema, pa.Schema],
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    event_times: tuple[frozenset[str], frozenset[str]],
) -> AsOf:
    if asked.how not in ("inner", "left"):
        raise DeclarationError(
            f"{WHO}: as_of=True looks up what held for each left row; how= is 'inner' or 'left', "
            f"not {asked.how!r}"
        )
    left, right = _time_names(asked, schemas, event_times)
    assert left is not None and right is not None
    sides = sides_of(schemas, keys, asked.suffixes, WHO)
    _check_held(sides, schemas)
    told = schemas[RIGHT]
    deletes = CHANGE.name in told.names and told.field(CHANGE.name).type == CHANGE.type
    own = frozenset({right, CHANGE.name} if deletes else {right})
    sides = Sides(sides.keys, sides.names, (frozenset({left}), own))
    lateness_us = duration_us(asked.allowed_lateness or timedelta(0))
    return AsOf(sides, asked.how, (left, right), deletes, asked.late, lateness_us)


def _of_changes(
    asked: Asked,
    schemas: tuple[pa.Schema, pa.Schema],
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    told: tuple[Changelog | None, Changelog | None],
) -> ChangelogJoin:
    """A regular join with a side that tells changes."""
    sides = sides_of(schemas, keys, asked.suffixes, WHO, (told[0] is not None, told[1] is not None))
    _check_held(sides, schemas)
    own: list[frozenset[str]] = []
    for side, log in enumerate(told):
        if log is not None:
            where = f"{WHO}: rows of {words_of(side)} are taken back by their values, and"
            try:
                key_of(schemas[side], log.known_by, WHO)
            except SchemaMismatch as refused:
                raise SchemaMismatch(
                    f"{where} {refused.message.partition(';')[0]}; leave it out with select(...) "
                    "before the join",
                    operator=WHO,
                ) from None
        own.append(frozenset() if log is None else frozenset({*log.known_by, CHANGE.name}))
    sides = replace(sides, own=(own[LEFT], own[RIGHT]))
    known = tuple(None if log is None else log.known_by for log in told)
    whole = tuple(log is not None and log.whole for log in told)
    return ChangelogJoin(sides, asked.how, known_by_side=known, whole=whole)


def _check_kind(asked: Asked) -> None:
    if asked.within is not None and asked.window is not None:
        raise DeclarationError(
            f"{WHO} got within= and window=; an interval join and a window join are two things: "
            "give one of them"
        )
    if asked.as_of and (asked.within, asked.window, asked.ttl) != (None, None, None):
        raise DeclarationError(
            f"{WHO}: as_of=True finds the latest right row up to each left row's time; leave out "
            "within=, window= and ttl="
        )
    timed = asked.as_of or asked.within is not None or asked.window is not None
    if timed and asked.ttl is not None:
        raise DeclarationError(
            f"{WHO} got ttl= beside within= or window=, by which rows leave the state already; "
            "leave it out"
        )
    if not timed and asked.times is not None:
        raise DeclarationError(
            f"{WHO} got times=, and compares none; give within= or window=, or leave it out"
        )
    if not timed and (asked.late != "drop" or asked.allowed_lateness is not None):
        raise DeclarationError(
            f"{WHO}: a join without within=, window= or as_of= does not go by event time, so no "
            "row is late; leave out late= and allowed_lateness="
        )
    window = asked.window
    if window is None:
        return
    if isinstance(window, Session):
        raise DeclarationError(
            f"{WHO}: a session of two streams is one of their rows together, and over when no row "
            f"of either comes. left.union(right) has such sessions: .process(hg.Aggregate(..., "
            f"window={window!r})), with where= for each side. Pairs of rows no further apart than "
            "the gap are those of within=(-gap, gap); sessions of each side by itself are joined "
            "by window_start and window_end as keys"
        )
    if not isinstance(window, FixedWindow) or window.time is None or window.lateness_us:
        what = "a Window" if isinstance(window, Window) else repr(window)
        raise DeclarationError(
            f"{WHO}: window= takes Tumbling(size, time='ts') or Sliding(size, slide, time='ts') "
            f"in event time; not {what}. allowed_lateness= is given to the join itself"
        )
    if window.late != "drop":
        raise DeclarationError(
            f"{WHO}: give late= to the join itself, not to its window: join(..., "
            "late='dead_letters')"
        )


def _time_names(
    asked: Asked,
    schemas: Sequence[pa.Schema],
    event_times: tuple[frozenset[str], frozenset[str]],
) -> tuple[str | None, str | None]:
    """The columns of times of both sides."""
    if asked.within is None and asked.window is None and not asked.as_of:
        return (None, None)
    names: list[str] = []
    given = asked.times
    if isinstance(given, str):
        given = (given, given)
    for side in (LEFT, RIGHT):
        where = f"{WHO} on {words_of(side)}"
        if given is not None:
            name = given[side]
        elif asked.window is not None and asked.window.time in schemas[side].names:
            name = asked.window.time
        else:
            found = sorted(event_times[side] & {*schemas[side].names})
            if len(found) != 1:
                has = " and ".join(map(repr, found)) or "no column of event times of a source"
                raise DeclarationError(
                    f"{where} has {has}; say by which columns rows meet, as in times=('ts', 'ts') "
                    "for left and right"
                )
            name = found[0]
        time_of(schemas[side], name, where)
        names.append(name)
    return names[LEFT], names[RIGHT]


def _within(given: Any, left: pa.Schema) -> Within:
    """Bounds as users write them: durations, negative ones with a minus."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DeclarationError(
            f"{WHO}: within={given!r}; give how far the right row's time may be from the left "
            "row's, as in within=('-10 minutes', '0 minutes')"
        )
    low_us = signed_us(given[0])
    if isinstance(given[1], str) and given[1] in left.names:
        time_of(left, given[1], f"{WHO}: the end of within=")
        return Within(low_us, 0, given[1])
    high_us = signed_us(given[1])
    if low_us > high_us:
        raise DeclarationError(
            f"{WHO}: within={given!r} ends before it begins; give the earlier bound first"
        )
    return Within(low_us, high_us)


def signed_us(given: str | timedelta) -> int:
    """A duration that may be negative, in microseconds.

    Examples:
        >>> signed_us("-10 minutes"), signed_us("0 minutes")
        (-600000000, 0)
    """
    if isinstance(given, str) and given.strip().startswith("-"):
        return -duration_us(given.strip()[1:])
    if isinstance(given, timedelta) and given < timedelta(0):
        return -duration_us(-given)
    return duration_us(given)


def _check_held(sides: Sides, schemas: Sequence[pa.Schema]) -> None:
    """Raise if a column is of a type that the state cannot hold."""
    for side in (LEFT, RIGHT):
        for name, _ in sides.names[side]:
            try:
                layout_of(name, schemas[side].field(name))
            except SchemaMismatch as refused:
                raise SchemaMismatch(
                    f"{WHO} holds the rows of {words_of(side)}: {refused}; or leave it out with "
                    "select(...) before the join",
                    column=name,
                ) from None
