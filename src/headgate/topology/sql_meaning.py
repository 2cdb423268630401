"""What SQL means for a stream's columns: a tree becomes an expression of pyarrow, types checked.

Results are those of Spark with its defaults (ANSI mode, time zone UTC): `/` divides as double, a
number that overflows or a division by zero is an error, NaN equals NaN and is larger than any
number, a null makes null. pyarrow computes all operands of AND, OR, CASE and coalesce, where Spark
computes those that matter; so what may fail there gets null in the rows that do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import DeclarationError, SchemaMismatch, UnknownColumn
from headgate.topology.arrow_expressions import type_of
from headgate.topology.schema import to_type
from headgate.topology.sql import Call, Case, Cast, Constant, Name, Tree

types = pa.types
BOOL, F64, I64 = pa.bool_(), pa.float64(), pa.int64()
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}  # as decimals in Spark
_INTEGERS = tuple(_DIGITS)
_PLAIN_CASTS = {
    *((BOOL, kind) for kind in _INTEGERS),
    *((kind, pa.string()) for kind in (*_INTEGERS, BOOL, pa.date32())),
}


@dataclass(frozen=True)
class Typed:
    """An expression, its type, and its value if it is a constant."""

    expression: pc.Expression
    type: pa.DataType
    constant: pa.Scalar | None = None


def meaning_of(tree: Tree, schema: pa.Schema) -> pc.Expression:
    """The expression of a tree over the columns of a schema."""
    return Meaning(schema).of(tree).expression


class Meaning:
    """Translates trees over one schema. `needed`: where it is true the value matters."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._needed: pc.Expression | None = None

    def of(self, tree: Tree) -> Typed:
        if isinstance(tree, Name):
            return self._column(tree.parts)
        if isinstance(tree, Constant):
            return constant(tree.value)
        if isinstance(tree, Cast):
            return self.cast(self.of(tree.value), to_type(tree.kind))
        if isinstance(tree, Case):
            return self._case(tree)
        special = _SPECIAL.get(tree.name)
        if special is not None:
            return special(self, tree)
        from headgate.topology.sql_functions import call  # which is made of what is here

        return call(self, tree.name, [self.of(argument) for argument in tree.arguments])

    def typed(self, expression: pc.Expression) -> Typed:
        """The expression with the type that pyarrow gives it."""
        return Typed(expression, type_of(expression, self.schema))

    def if_needed(self, value: Typed) -> pc.Expression:
        """The operand of something that may fail: null in rows where nobody asks for the result."""
        if self._needed is None:
            return value.expression
        return pc.if_else(self._needed, value.expression, pa.scalar(None, value.type))

    @contextmanager
    def only_where(self, condition: pc.Expression) -> Iterator[None]:
        before = self._needed
        self._needed = condition if before is None else before & condition
        try:
            yield
        finally:
            self._needed = before

    def _column(self, parts: tuple[str, ...]) -> Typed:
        """Names differ in more than upper and lower case, so these need not be right."""
        found: list[str] = []
        fields = list(self.schema)
        kind: pa.DataType | None = None
        for part in parts:
            field = next((f for f in fields if f.name.lower() == part.lower()), None)
            if field is None:
                raise UnknownColumn(
                    f"reads column {'.'.join(parts)!r}, but the stream has "
                    f"{', '.join(self.schema.names)} (a text is put in quotes: 'text')",
                    column=".".join(parts),
                )
            found.append(field.name)
            kind = field.type
            fields = list(kind) if types.is_struct(kind) else []
        assert kind is not None
        return Typed(pc.field(*found), kind)

    # --- operators -----------------------------------------------------------------------------
    def arithmetic(self, name: str, left: Typed, right: Typed) -> Typed:
        """+, - and *; of times and intervals too."""
        if any(types.is_temporal(side.type) for side in (left, right)):
            if name == "*" or types.is_date(left.type) or types.is_date(right.type):
                raise mismatch(name, left, right, "cast a date to timestamp to reckon with it")
            return self.typed(_apply(name, left.expression, right.expression))
        left, right = self.numbers(name, left, right)
        operand = left.expression if types.is_floating(left.type) else self.if_needed(left)
        return self.typed(_apply(name, operand, right.expression))

    def numbers(self, name: str, left: Typed, right: Typed) -> tuple[Typed, Typed]:
        """Both sides as numbers that pyarrow combines as Spark does."""
        for side in (left, right):
            if not (is_number(side.type) or types.is_null(side.type)):
                raise mismatch(name, left, right, "cast(... as double) makes a number of a text")
        kinds = {left.type, right.type}
        if any(types.is_floating(k) for k in kinds) and kinds != {pa.float32()}:
            return self.double(left), self.double(right)
        if any(types.is_decimal(k) for k in kinds):
            return self._decimal(left), self._decimal(right)
        # Said outright: of a literal and a column pyarrow would narrow the literal.
        left, right = self.alike(name, (left, right))
        return left, right

    def _decimal(self, value: Typed) -> Typed:
        if value.constant is not None and value.type in _DIGITS:
            digits = len(str(abs(value.constant.as_py())))
            known = Decimal(value.constant.as_py())
            return constant(pa.scalar(known, pa.decimal128(digits, 0)))
        if value.type not in _DIGITS:
            return value
        kind = pa.decimal128(_DIGITS[value.type], 0)
        return Typed(value.expression.cast(kind), kind)

    def double(self, value: Typed) -> Typed:
        if value.type == F64:
            return value
        if value.constant is not None:
            known = value.constant.as_py()
            return constant(pa.scalar(None if known is None else float(known), F64))
        return Typed(value.expression.cast(F64, safe=False), F64)

    def compare(self, name: str, left: Typed, right: Typed) -> Typed:
        left, right = self._comparable(name, left, right)
        a, b = left.expression, right.expression
        if name == "<=>":
            same = self.compare("=", left, right).expression
            missing = a.is_null() | b.is_null()
            return Typed(pc.if_else(missing, a.is_null() & b.is_null(), same), BOOL)
        if name == "!=":
            return Typed(~self.compare("=", left, right).expression, BOOL)
        found = _compared(name, a, b)
        if types.is_floating(left.type) or types.is_floating(right.type):
            found = _with_nan(name, left, right, found)
        self.typed(found)  # raises if it cannot be
        return Typed(found, BOOL)

    def _comparable(self, name: str, left: Typed, right: Typed) -> tuple[Typed, Typed]:
        if types.is_string(left.type) != types.is_string(right.type):
            text, other = (left, right) if types.is_string(left.type) else (right, left)
            if text.constant is not None and types.is_temporal(other.type):
                moment = constant(moment_of(text.constant.as_py(), other.type))
                return (moment, right) if text is left else (left, moment)
            if not types.is_null(other.type):
                raise mismatch(name, left, right, "cast one side, or leave the quotes out")
        if is_number(left.type) and is_number(right.type) and left.type != right.type:
            return self.numbers(name, left, right)
        return left, right

    def boolean(self, tree: Tree, what: str) -> pc.Expression:
        value = self.of(tree)
        if types.is_null(value.type):
            return pc.scalar(pa.scalar(None, BOOL))
        if not types.is_boolean(value.type):
            raise SchemaMismatch(f"has a {value.type} where {what} needs a condition")
        return value.expression

    # --- what does not need all of its operands --------------------------------------------------
    def both(self, tree: Call) -> Typed:
        left, right = tree.arguments
        first = self.boolean(left, tree.name.upper())
        is_and = tree.name == "and"
        with self.only_where(pc.coalesce(first if is_and else ~first, pc.scalar(True))):
            second = self.boolean(right, tree.name.upper())
        return Typed(first & second if is_and else first | second, BOOL)

    def negation(self, tree: Call) -> Typed:
        return Typed(~self.boolean(tree.arguments[0], "NOT"), BOOL)

    def _case(self, tree: Case) -> Typed:
        branches: list[tuple[pc.Expression, Typed]] = []
        left: pc.Expression | None = None  # rows that no branch before has taken
        for when, then in tree.branches:
            with self.only_where(left) if left is not None else _everywhere():
                taken = pc.coalesce(self.boolean(when, "WHEN"), pc.scalar(False))
            mine = taken if left is None else left & taken
            with self.only_where(mine):
                branches.append((taken, self.of(then)))
            left = ~taken if left is None else left & ~taken
        assert left is not None
        with self.only_where(left):
            otherwise = self.of(tree.otherwise)
        *values, last = self.alike("CASE", [*(value for _, value in branches), otherwise])
        made = last.expression
        for (taken, _), value in reversed(list(zip(branches, values, strict=True))):
            made = pc.if_else(taken, value.expression, made)
        return Typed(made, last.type)

    def first_of(self, tree: Call) -> Typed:
        """coalesce, ifnull, nvl."""
        values: list[Typed] = []
        missing: pc.Expression | None = None
        for argument in tree.arguments:
            with self.only_where(missing) if missing is not None else _everywhere():
                values.append(self.of(argument))
            null = values[-1].expression.is_null()
            missing = null if missing is None else missing & null
        if not values:
            raise DeclarationError(f"calls {tree.name}() without arguments")
        values = self.alike(tree.name, values)
        return Typed(pc.coalesce(*(value.expression for value in values)), values[0].type)

    def one_of(self, tree: Call) -> Typed:
        """IN, with null where that is the answer."""
        value, *given = (self.of(argument) for argument in tree.arguments)
        if not given:
            raise DeclarationError("has an empty list after IN")
        sides = [self._comparable("IN", value, other) for other in given]
        constants = [other.constant for _, other in sides]
        plain = all(c is not None and c.is_valid and c.type == value.type for c in constants)
        if not plain:
            equal = [self.compare("=", value, other).expression for other in given]
            return Typed(reduce(or_, equal), BOOL)
        wanted = pa.array([c.as_py() for c in constants if c is not None], value.type)
        found = value.expression.isin(wanted)
        return Typed(pc.if_else(value.expression.is_valid(), found, pa.scalar(None, BOOL)), BOOL)

    def condition(self, tree: Call) -> Typed:
        """CASE as a call: if(condition, then, otherwise)."""
        if len(tree.arguments) != 3:
            raise DeclarationError("calls if() with other than three arguments")
        when, then, otherwise = tree.arguments
        return self._case(Case(((when, then),), otherwise))

    # --- types ---------------------------------------------------------------------------------
    def alike(self, where: str, values: Sequence[Typed]) -> list[Typed]:
        """Values of one type: what differs in width is widened, all else refused."""
        kinds = {value.type for value in values if not types.is_null(value.type)}
        if len(kinds) < 2 and all(value.type in kinds or not kinds for value in values):
            return list(values)
        if len(kinds) > 1:
            if not all(types.is_integer(k) or types.is_floating(k) for k in kinds):
                found = ", ".join(sorted(str(kind) for kind in kinds))
                raise SchemaMismatch(f"has values of several types in {where}: {found}; cast them")
            wide = any(types.is_floating(kind) for kind in kinds)
            kind = F64 if wide else max(kinds, key=lambda k: k.bit_width)
        else:
            (kind,) = kinds
        return [
            value
            if value.type == kind
            else constant(pa.scalar(value.constant.as_py(), kind))
            if value.constant is not None
            else Typed(value.expression.cast(kind, safe=False), kind)
            for value in values
        ]

    def cast(self, value: Typed, kind: pa.DataType) -> Typed:
        """CAST where pyarrow's result is Spark's; else refused."""
        of = value.type
        if of == kind:
            return value
        if types.is_null(of):
            return constant(pa.scalar(None, kind))
        if value.constant is not None and types.is_string(of) and types.is_temporal(kind):
            return constant(moment_of(value.constant.as_py(), kind))
        if is_number(of) and types.is_floating(kind):
            made = value.expression.cast(kind, safe=False)
        elif types.is_floating(of) and types.is_integer(kind):
            made = pc.trunc(self.if_needed(value)).cast(kind)
        elif types.is_string(of) and (is_number(kind) and not types.is_decimal(kind)):
            made = pc.utf8_trim_whitespace(self.if_needed(value)).cast(kind)
        elif types.is_integer(of) and (types.is_integer(kind) or types.is_decimal(kind)):
            made = self.if_needed(value).cast(kind)
        elif (of, kind) in _PLAIN_CASTS:
            made = value.expression.cast(kind)
        elif types.is_timestamp(of) and types.is_date32(kind):
            made = pc.floor_temporal(value.expression, unit="day").cast(kind, safe=False)
        elif types.is_timestamp(of) and kind == I64:
            made = _whole_seconds(value.expression)
        else:
            raise SchemaMismatch(
                f"casts {of} to {kind}, which does not give here what it gives in Spark; compute "
                "it in map(...)"
            )
        return Typed(made, kind)


@contextmanager
def _everywhere() -> Iterator[None]:
    yield


def constant(value: pa.Scalar) -> Typed:
    return Typed(pc.scalar(value), value.type, value)


def is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def mismatch(name: str, left: Typed, right: Typed, way_out: str) -> SchemaMismatch:
    return SchemaMismatch(f"has {left.type} {name} {right.type}; {way_out}")


def moment_of(text: str, kind: pa.DataType) -> pa.Scalar:
    """A time that is written as a text; without a zone it is one of the column's."""
    given = pa.scalar(text.strip())
    try:
        if not types.is_timestamp(kind) or kind.tz is None:
            return given.cast(kind)
        try:
            return given.cast(kind)
        except pa.ArrowInvalid:
            naive = pa.array([text.strip()]).cast(pa.timestamp(kind.unit))
            return pc.assume_timezone(naive, kind.tz)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise SchemaMismatch(
            f"has {text!r} as a {kind}, which it is not; write it as '2026-01-31 12:00:00'"
        ) from problem


def _whole_seconds(expression: pc.Expression) -> pc.Expression:
    seconds = pc.floor_temporal(expression, unit="second")
    return seconds.cast(pa.timestamp("s"), safe=False).cast(I64)


def _apply(name: str, a: pc.Expression, b: pc.Expression) -> pc.Expression:
    return a + b if name == "+" else a - b if name == "-" else a * b


def _compared(name: str, a: pc.Expression, b: pc.Expression) -> pc.Expression:
    made: dict[str, Callable[[], pc.Expression]] = {
        "=": lambda: a == b,
        "<": lambda: a < b,
        "<=": lambda: a <= b,
        ">": lambda: a > b,
        ">=": lambda: a >= b,
    }
    return made[name]()


def _with_nan(name: str, left: Typed, right: Typed, found: pc.Expression) -> pc.Expression:
    """NaN as in SQL; a side that is a constant number can be none."""
    if name in ("<", "<="):
        left, right, name = right, left, name.replace("<", ">")
    nans = [
        pc.scalar(False)
        if not types.is_floating(side.type) or (side.constant is not None)
        else pc.is_nan(side.expression)
        for side in (left, right)
    ]
    if name == "=":
        if left.constant is not None or right.constant is not None:
            return found
        return or_(found, and_(*nans))
    if left.constant is not None:
        return found
    above = nans[0] if right.constant is not None or name == ">=" else nans[0] & ~nans[1]
    return found | above


_SPECIAL: dict[str, Callable[[Meaning, Call], Typed]] = {
    "and": Meaning.both,
    "or": Meaning.both,
    "not": Meaning.negation,
    "in": Meaning.one_of,
    "if": Meaning.condition,
    "iff": Meaning.condition,
    "coalesce": Meaning.first_of,
    "ifnull": Meaning.first_of,
    "nvl": Meaning.first_of,
}
