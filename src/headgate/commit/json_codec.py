"""Frozen dataclasses as JSON objects and back, told by their type hints alone.

Fields are entries of the same name. Reading is lenient, so that files of other versions open: an
entry that nobody knows is passed over, one that is missing or null gets the field's default.
Values of plain types are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Json = dict[str, Any]

SPARSE = "sparse"  # a field that JSON has no entry for while it has its default
INLINE = "inline"  # a dataclass whose entries stand among those of the one that has it
Sparse = Annotated[T | None, SPARSE]


def to_json(value: Any) -> Json:
    """A dataclass as a JSON object."""
    kind: Any = type(value)
    told: Json = _coder(kind).encode(value)
    return told


def from_json(kind: type[T], told: Mapping[str, Any]) -> T:
    """The dataclass of this kind; KeyError if an entry is missing that has no default."""
    of: Any = kind
    value: T = _coder(of).decode(told)
    return value


# --- inside ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Coder:
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_AS_IS = _Coder(lambda value: value, lambda value: value)


@cache
def _coder(hint: Hashable) -> _Coder:
    """How values of a type are written and read; made once per type, so an epoch pays little."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _coder_of_fields(hint)
    if origin in (Union, UnionType):
        (inner,) = (_coder(arg) for arg in args if arg is not type(None))
        if inner is _AS_IS:
            return _AS_IS
        return _Coder(_unless_none(inner.encode), _unless_none(inner.decode))
    if origin is tuple:
        inner = _coder(args[0])
        if inner is _AS_IS:
            return _Coder(list, tuple)
        return _Coder(lambda v: [*map(inner.encode, v)], lambda v: tuple(map(inner.decode, v)))
    if origin is Mapping:
        key, inner = args[0], _coder(args[1])
        if inner is _AS_IS and key is str:
            return _Coder(dict, dict)
        return _Coder(  # keys of JSON are texts
            lambda v: {str(k): inner.encode(x) for k, x in v.items()},
            lambda v: {key(k): inner.decode(x) for k, x in v.items()},
        )
    return _AS_IS


def _unless_none(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else change(value)


def _coder_of_fields(kind: Any) -> _Coder:
    hints, marks = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    parts = [
        (f.name, _coder(hints[f.name]), _default(f), getattr(marks[f.name], "__metadata__", ()))
        for f in fields(kind)
    ]

    def encode(value: Any) -> Json:
        told: Json = {}
        for name, coder, default, mark in parts:
            found = getattr(value, name)
            if INLINE in mark:
                told |= coder.encode(found)
            elif SPARSE not in mark or found != default:
                told[name] = coder.encode(found)
        return told

    def decode(told: Mapping[str, Any]) -> Any:
        given = {}
        for name, coder, default, mark in parts:
            if INLINE in mark:
                given[name] = coder.decode(told)
            elif told.get(name) is not None:
                given[name] = coder.decode(told[name])
            elif default is MISSING:
                given[name] = told[name]
        return kind(**given)

    return _Coder(encode, decode)


def _default(part: Field[Any]) -> Any:
    return part.default if part.default_factory is MISSING else part.default_factory()
