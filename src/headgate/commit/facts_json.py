"""Dataclasses as JSON and back, by their type hints alone.

Reading is lenient, so that files of other versions open: an entry that nobody knows is passed over,
one that is missing or null gets the field's default.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast

from headgate.state.state_file import StateFile

T = TypeVar("T")
Json = dict[str, Any]
SPARSE = "sparse"  # a field that JSON has no entry for while it has its default
INLINE = "inline"  # a dataclass whose entries stand among those of the one that has it
Sparse = Annotated[T | None, SPARSE]


def to_json(value: Any) -> Json:
    """A dataclass as a JSON object."""
    made: Json = {}
    kind: Any = type(value)
    for name, _, default, marks in _fields(kind):
        found = getattr(value, name)
        if INLINE in marks:
            made |= to_json(found)
        elif SPARSE not in marks or found != default:
            made[name] = _encode(found)
    return made


def from_json(kind: type[T], stored: Mapping[str, Any]) -> T:
    """The dataclass of this kind; KeyError if an entry is missing that has no default."""
    given, of = {}, cast(Hashable, kind)
    for name, decode, default, marks in _fields(of):
        if INLINE in marks:
            given[name] = decode(stored)
        elif stored.get(name) is not None:
            given[name] = decode(stored[name])
        elif default is MISSING:
            given[name] = stored[name]
    return kind(**given)


def _encode(value: Any) -> Any:
    if hasattr(value, "to_json"):  # more than its fields
        return value.to_json()
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    return [*map(_encode, value)] if isinstance(value, tuple | list) else value


@cache
def _fields(kind: Any) -> list[tuple[str, Callable[[Any], Any], Any, tuple[str, ...]]]:
    """Name, how it is read, default and marks of each field."""
    hints, marked = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True)
    return [
        (
            f.name,
            _decoder(hints[f.name]),
            f.default if f.default_factory is MISSING else f.default_factory(),
            getattr(marked[f.name], "__metadata__", ()),
        )
        for f in fields(kind)
    ]


@cache
def _decoder(hint: Hashable) -> Callable[[Any], Any]:
    """How values of a type are read; made once per type, as a journal has many."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, UnionType):
        (some,) = (arg for arg in args if arg is not NoneType)
        return _decoder(some)
    if origin is tuple:
        inner = _decoder(args[0])
        return tuple if inner is _as_is else lambda values: tuple(map(inner, values))
    if origin is Mapping:
        key, inner = args[0], _decoder(args[1])
        if inner is _as_is and key is str:
            return dict
        return lambda entries: {key(name): inner(entry) for name, entry in entries.items()}
    if hint is StateFile:
        return StateFile.from_json
    return partial(from_json, hint) if is_dataclass(hint) else _as_is


def _as_is(value: Any) -> Any:
    return value
