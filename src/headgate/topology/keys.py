"""The columns of a key, and which of them say near what it lives.

A key is known, and its state found, by all of its columns. Where it lives follows from all of
them, too, unless some are *near* columns: then keys that agree in those share a bucket, so they
live in one slot and move together, until a plan gives one of them an owner of its own. A file, a
folder or a partition that holds such keys alone can be read where they live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headgate.errors import DeclarationError


class Key(tuple[str, ...]):
    """Names of the key's columns; `near`: the places, among them, of the near columns.

    Keys of different `near` are different: their hashes are.
    """

    near: tuple[int, ...]

    def __new__(cls, names: Iterable[str] = (), near: Iterable[int] = ()) -> Key:
        key = super().__new__(cls, names)
        key.near = tuple(near)
        return key

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.near == getattr(other, "near", ())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    @classmethod
    def of(cls, names: Sequence[str]) -> Key:
        """The key itself, or one of these names without near columns."""
        return names if isinstance(names, Key) else cls(names)

    def called(self, names: Iterable[str]) -> Key:
        """The same key where its columns have these names."""
        return Key(names, self.near)

    @property
    def near_names(self) -> tuple[str, ...]:
        return tuple(self[place] for place in self.near)


NO_KEY = Key()


def near_of(key: Sequence[str], near: Any) -> tuple[int, ...]:
    """The places in the key of the columns that the user calls near; raises if they do not fit."""
    names = (near,) if isinstance(near, str) else tuple(near)
    shown = ", ".join(key)
    for name in names:
        if name not in key:
            raise DeclarationError(
                f"near={name!r} is no column of the key ({shown}). Keys that agree in the near "
                f"columns live together, so those are part of it: key_by({name!r}, ..., "
                f"near={name!r})"
            )
    if len(set(names)) == len(key):
        raise DeclarationError(
            f"near= names every column of the key ({shown}), and keys that agree in all of them "
            "are one key; leave near= out, or name some of the columns"
        )
    return tuple(place for place, name in enumerate(key) if name in names)
