"""Two streams that are joined: how their columns share one schema, and what the join puts out.

A join is one operator with two inputs. Rows of both sides travel in the columns that they have; in
the slot they are *widened* to one schema: the key under its names on the left, which side a row is
of, then the other columns of both sides, null in rows of the other one. So one state, one routing
table and one unit hold what belongs to a key, whichever side it came from.

The output has the key columns once, under their names on the left, then the other columns of the
left side and of the right side. Of names that both sides have, suffixes make two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from headgate.errors import DeclarationError, NameClash, SchemaMismatch
from headgate.topology.keys import Key
from headgate.topology.schema import check_columns

How = Literal["inner", "left", "right", "full"]
SIDE = "@side"
CHANGE = "change"  # the column of operators that tell changes
LEFT, RIGHT = 0, 1
_WORDS = ("left", "right")
_PREFIXES = ("@l.", "@r.")


@dataclass(frozen=True)
class Asked:
    """What a user asked for, as it was given to `Stream.join`."""

    how: Any = "inner"
    as_of: bool = False
    within: Any = None
    window: Any = None
    times: Any = None
    ttl: Any = None
    suffixes: Any = None
    late: Any = "drop"
    allowed_lateness: Any = None


@dataclass(frozen=True)
class Sides:
    """How the columns of two streams share one schema.

    `keys` are the key columns of each side, `names` the other columns of each side as pairs (name
    there, name in the output), `own` what the join itself reads of a side, besides the key.
    Of a side that tells changes the column that says so comes, too, and is not passed on.
    """

    keys: tuple[Key, Key]
    names: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    own: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    told: tuple[bool, bool] = (False, False)

    @property
    def key(self) -> Key:
        """The key's names in the wide schema and in the output."""
        return self.keys[LEFT]

    def needs(self, side: int, wanted: set[str]) -> set[str]:
        """The columns that must come on a side if consumers want these of the output."""
        passed = {name for name, output in self.names[side] if output in wanted}
        return passed | {*self.keys[side]} | self.own[side]

    def came(self, side: int) -> list[str]:
        """The columns of a side besides its key."""
        return [*(name for name, _ in self.names[side]), *([CHANGE] if self.told[side] else [])]

    def wide(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """The schema of rows of both sides."""
        key = [
            left.field(mine).with_nullable(left.field(mine).nullable or right.field(other).nullable)
            for mine, other in zip(*self.keys, strict=True)
        ]
        others = [
            schema.field(name).with_name(_PREFIXES[side] + name).with_nullable(True)
            for side, schema in enumerate((left, right))
            for name in self.came(side)
            if name in schema.names
        ]
        return pa.schema([*key, pa.field(SIDE, pa.int8(), nullable=False), *others])

    def widened(self, side: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of one side in the wide schema."""
        rows, prefix = batch.num_rows, _PREFIXES[side]
        columns = [batch.column(name) for name in self.keys[side]]
        columns.append(pa.repeat(pa.scalar(side, pa.int8()), rows))
        for field in list(schema)[len(columns) :]:
            mine = field.name.startswith(prefix)
            name = field.name.removeprefix(prefix)
            columns.append(batch.column(name) if mine else pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def columns(self, side: int, wide: pa.Schema) -> dict[str, str]:
        """The columns that came on a side besides the key: name there -> name in the wide schema.

        Which of them came depends on what consumers want.
        """
        prefix = _PREFIXES[side]
        return {
            field.name.removeprefix(prefix): field.name
            for field in wide
            if field.name.startswith(prefix)
        }

    def column(self, batch: pa.RecordBatch, side: int, name: str) -> pa.Array:
        """A column of a side in wide rows, which may be one of its key."""
        if name in self.keys[side]:
            return batch.column(self.key[self.keys[side].index(name)])
        return batch.column(self.columns(side, batch.schema)[name])

    def passed(self, side: int, wide: pa.Schema) -> dict[str, str]:
        """Those that the join passes on: name there -> name in the output."""
        came = self.columns(side, wide)
        return {name: output for name, output in self.names[side] if name in came}

    def output(self, wide: pa.Schema, how: How, more: Iterable[pa.Field] = ()) -> pa.Schema:
        """What the join puts out; `more` are columns of its own, behind the key."""
        fields = [*(wide.field(name) for name in self.key), *more]
        for side, missing in ((LEFT, ("right", "full")), (RIGHT, ("left", "full"))):
            for name, output in self.passed(side, wide).items():
                field = wide.field(_PREFIXES[side] + name).with_name(output)
                fields.append(field.with_nullable(True) if how in missing else field)
        return pa.schema(fields)

    def describe(self) -> dict[str, Any]:
        return {"keys": [list(key) for key in self.keys]}


def sides_of(
    schemas: Sequence[pa.Schema],
    keys: Sequence[tuple[str, ...]],
    suffixes: tuple[str, str] | None,
    who: str,
    told: tuple[bool, bool] = (False, False),
) -> Sides:
    """The sides of a join of streams with these schemas and keys; raises if they do not fit."""
    left, right = map(Key.of, keys)
    shown = f"{', '.join(left)} and {', '.join(right)}"
    if len(left) != len(right):
        raise DeclarationError(
            f"{who}: the left side is keyed by {len(left)} columns and the right one by "
            f"{len(right)} ({shown}); key both by what must be equal, in the same order",
            operator=who,
        )
    for mine, other in zip(left, right, strict=True):
        kinds = schemas[LEFT].field(mine).type, schemas[RIGHT].field(other).type
        if kinds[0] != kinds[1]:
            raise SchemaMismatch(
                f"{who}: key {mine!r} of the left side is {kinds[0]}, and {other!r} of the right "
                f"one {kinds[1]}; cast one of them in a map() before",
                operator=who,
                column=mine,
            )
    if left.near != right.near:
        near = [
            f"near={', '.join(key.near_names)}" if key.near else "no near=" for key in (left, right)
        ]
        raise DeclarationError(
            f"{who}: the left side has {near[LEFT]} and the right one {near[RIGHT]}, so rows of "
            "equal keys would not meet; give key_by of both the same columns as near=",
            operator=who,
        )
    others = [
        [name for name in schema.names if name not in key and not (tells and name == CHANGE)]
        for schema, key, tells in zip(schemas, keys, told, strict=True)
    ]
    taken = [{*others[RIGHT]}, {*left, *others[LEFT]}]
    clashing = sorted(taken[LEFT] & taken[RIGHT])
    if suffixes is None and clashing:
        raise NameClash(
            f"{who}: both sides have a column {', '.join(map(repr, clashing))}; tell them apart "
            "with suffixes=('_left', '_right'), or leave one out with select(...) before",
            column=clashing[0],
            operator=who,
        )
    names = tuple(
        tuple((n, n + (suffixes or ("", ""))[side] if n in taken[side] else n) for n in mine)
        for side, mine in enumerate(others)
    )
    outputs = [output for mine in names for _, output in mine]
    made = pa.schema([(name, pa.null()) for name in (*left, *outputs)])
    check_columns(made, f"what {who} puts out (suffixes={suffixes})")
    return Sides((left, right), (names[LEFT], names[RIGHT]), told=told)


def words_of(side: int) -> str:
    return f"the {_WORDS[side]} side"
