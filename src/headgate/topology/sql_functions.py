"""The functions of SQL text that give here what they give in Spark, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import DeclarationError, SchemaMismatch
from headgate.topology.sql_meaning import BOOL, F64, I64, Meaning, Typed, is_number, mismatch

types = pa.types
Function: TypeAlias = Callable[..., Typed]
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def call(meaning: Meaning, name: str, arguments: Sequence[Typed]) -> Typed:
    found = _FUNCTIONS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, known(), 1)
        hint = f"did you mean {near[0]}()? Else " if near else ""
        raise DeclarationError(
            f"calls {name}(), which is not known here: {hint}compute it in map(...), or on the "
            "DataFrame before flow.source(...)"
        )
    least, most, function = found
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise DeclarationError(f"calls {name}() with {len(arguments)} arguments; it takes {wanted}")
    return function(meaning, *arguments)


def known() -> list[str]:
    """Names of all functions."""
    return sorted({*_FUNCTIONS, "coalesce", "ifnull", "nvl", "if", "iff"})


# --- arithmetic ---------------------------------------------------------------------------------


def _of_numbers(name: str) -> Function:
    return lambda m, a, b: m.arithmetic(name, a, b)


def _divide(m: Meaning, a: Typed, b: Typed) -> Typed:
    kinds = a.type, b.type
    if any(map(types.is_decimal, kinds)) and not any(map(types.is_floating, kinds)):
        raise mismatch("/", a, b, "cast(... as double) one side to divide it")
    m.numbers("/", a, b)
    top, below = m.double(a), m.double(b)
    return Typed(pc.divide_checked(m.if_needed(top), below.expression), F64)


def _whole(m: Meaning, name: str, a: Typed, b: Typed) -> tuple[pc.Expression, pc.Expression]:
    if not (types.is_integer(a.type) and types.is_integer(b.type)):
        raise mismatch(name, a, b, "it takes whole numbers")
    return m.if_needed(a), b.expression


def _remainder(m: Meaning, a: Typed, b: Typed) -> Typed:
    top, below = _whole(m, "%", a, b)
    return m.typed(top - pc.divide_checked(top, below) * below)


def _positive_remainder(m: Meaning, a: Typed, b: Typed) -> Typed:
    return _remainder(m, m.arithmetic("+", _remainder(m, a, b), b), b)


def _div(m: Meaning, a: Typed, b: Typed) -> Typed:
    top, below = _whole(m, "div", a, b)
    return Typed(pc.divide_checked(top.cast(I64), below.cast(I64)), I64)


def _number(m: Meaning, what: str, a: Typed) -> Typed:
    if not is_number(a.type):
        raise SchemaMismatch(f"takes {what} of a {a.type}; cast it to a number")
    return a


def _negative(m: Meaning, a: Typed) -> Typed:
    return m.typed(pc.negate_checked(m.if_needed(_number(m, "the negative", a))))


def _abs(m: Meaning, a: Typed) -> Typed:
    return m.typed(pc.abs_checked(m.if_needed(_number(m, "abs", a))))


def _to_whole(function: Callable[[Any], Any]) -> Function:
    """Ceil and floor: of a double a bigint."""

    def made(m: Meaning, a: Typed) -> Typed:
        if types.is_integer(a.type):
            return Typed(a.expression.cast(I64), I64)
        if not types.is_floating(a.type):
            raise SchemaMismatch(f"takes floor or ceil of a {a.type}; cast it to double")
        return Typed(function(m.if_needed(a)).cast(I64), I64)

    return made


def _round(m: Meaning, a: Typed) -> Typed:
    if types.is_integer(a.type):
        return a
    if not types.is_floating(a.type):
        raise SchemaMismatch(f"rounds a {a.type}; cast it to double")
    return m.typed(pc.round(a.expression, 0, "half_towards_infinity"))


def _double(function: Callable[[Any], Any]) -> Function:
    return lambda m, a: Typed(function(m.double(_number(m, "a function", a)).expression), F64)


def _logarithm(function: Callable[[Any], Any]) -> Function:
    """Null where there is none."""

    def made(m: Meaning, a: Typed) -> Typed:
        x = m.double(_number(m, "the logarithm", a)).expression
        return Typed(function(pc.if_else(x <= 0.0, pa.scalar(None, F64), x)), F64)

    return made


def _power(m: Meaning, a: Typed, b: Typed) -> Typed:
    m.numbers("power", a, b)
    return Typed(pc.power(m.double(a).expression, m.double(b).expression), F64)


def _extreme(function: Callable[..., Any]) -> Function:
    def made(m: Meaning, *values: Typed) -> Typed:
        alike = m.alike("greatest or least", values)
        if types.is_floating(alike[0].type):
            raise SchemaMismatch("takes greatest or least of doubles; use CASE WHEN a > b THEN …")
        return m.typed(function(*(value.expression for value in alike), skip_nulls=True))

    return made


# --- nulls and comparisons ------------------------------------------------------------------------


def _compare(name: str) -> Function:
    return lambda m, a, b: m.compare(name, a, b)


def _is_nan(m: Meaning, a: Typed) -> Typed:
    x = m.double(_number(m, "isnan", a)).expression
    return Typed(pc.coalesce(pc.is_nan(x), pc.scalar(False)), BOOL)


def _null_if(m: Meaning, a: Typed, b: Typed) -> Typed:
    same = pc.coalesce(m.compare("=", a, b).expression, pc.scalar(False))
    return Typed(pc.if_else(same, pa.scalar(None, a.type), a.expression), a.type)


# --- texts ------------------------------------------------------------------------------------


def _text(what: str, a: Typed) -> pc.Expression:
    if not (types.is_string(a.type) or types.is_large_string(a.type)):
        raise SchemaMismatch(f"calls {what} on a {a.type}; cast it to string")
    return a.expression


def _of_text(
    what: str, function: Callable[..., Any], result: pa.DataType | None = None
) -> Function:
    def made(m: Meaning, a: Typed) -> Typed:
        found = function(_text(what, a))
        return m.typed(found) if result is None else Typed(found.cast(result), result)

    return made


def _literal(what: str, value: Typed, kind: type) -> Any:
    found = None if value.constant is None else value.constant.as_py()
    if not isinstance(found, kind):
        word = "text" if kind is str else "whole number"
        raise DeclarationError(
            f"calls {what} with something computed where a {word} has to be written; compute it in "
            "map(...)"
        )
    return found


def _with_pattern(what: str, function: Callable[..., Any]) -> Function:
    def made(m: Meaning, a: Typed, pattern: Typed) -> Typed:
        return m.typed(function(_text(what, a), _literal(what, pattern, str)))

    return made


def _substring(m: Meaning, a: Typed, start: Typed, length: Typed | None = None) -> Typed:
    at = _literal("substring", start, int)
    many = None if length is None else _literal("substring", length, int)
    if at < 0 or (many is not None and many < 0):
        raise DeclarationError("calls substring with a negative number; count from the beginning")
    begin = max(at - 1, 0)  # 0 is the first letter, as 1
    stop = None if many is None else begin + many
    if stop == begin:
        return m.typed(pc.utf8_slice_codeunits(_text("substring", a), 0, 0))
    return m.typed(pc.utf8_slice_codeunits(_text("substring", a), begin, stop))


def _left(m: Meaning, a: Typed, length: Typed) -> Typed:
    return m.typed(
        pc.utf8_slice_codeunits(_text("left", a), 0, max(0, _literal("left", length, int)))
    )


def _concat(m: Meaning, *values: Typed) -> Typed:
    texts = [_text("concat", m.cast(value, pa.string())) for value in values]
    return m.typed(pc.binary_join_element_wise(*texts, "", null_handling="emit_null"))


def _replace(m: Meaning, a: Typed, old: Typed, new: Typed) -> Typed:
    patterns = (_literal("replace", value, str) for value in (old, new))
    return m.typed(pc.replace_substring(_text("replace", a), *patterns))


# --- times ------------------------------------------------------------------------------------


def _part(what: str, function: Callable[..., Any], **options: Any) -> Function:
    def made(m: Meaning, a: Typed) -> Typed:
        if not (types.is_timestamp(a.type) or types.is_date(a.type)):
            raise SchemaMismatch(f"takes the {what} of a {a.type}; cast it to timestamp")
        return Typed(function(a.expression, **options).cast(pa.int32()), pa.int32())

    return made


def _date_trunc(m: Meaning, unit: Typed, a: Typed) -> Typed:
    word = _literal("date_trunc", unit, str).lower()
    if word not in _UNITS or not types.is_timestamp(a.type):
        raise DeclarationError(
            f"truncates a {a.type} to {word!r}; it takes a timestamp and one of {', '.join(_UNITS)}"
        )
    return Typed(pc.floor_temporal(a.expression, unit=word), a.type)


def _since_1970(unit: str, word: str) -> Function:
    def made(m: Meaning, a: Typed) -> Typed:
        if not types.is_timestamp(a.type):
            raise SchemaMismatch(f"counts the {word}s since 1970 of a {a.type}; cast it")
        whole = pc.floor_temporal(a.expression, unit=word)
        return Typed(whole.cast(pa.timestamp(unit), safe=False).cast(I64), I64)

    return made


def _from_1970(unit: str) -> Function:
    def made(m: Meaning, a: Typed) -> Typed:
        if not types.is_integer(a.type):
            raise SchemaMismatch(f"makes a timestamp of a {a.type}; cast it to bigint")
        kind = pa.timestamp("us", "UTC")
        moment = m.if_needed(a).cast(I64).cast(pa.timestamp(unit)).cast(pa.timestamp("us"))
        return Typed(pc.assume_timezone(moment, "UTC"), kind)

    return made


def _days(m: Meaning, a: Typed) -> Typed:
    return m.cast(a, pa.date32())


_MANY = 1000
_FUNCTIONS: dict[str, tuple[int, int, Function]] = {
    **{name: (2, 2, _of_numbers(name)) for name in ("+", "-", "*")},
    **{name: (2, 2, _compare(name)) for name in ("=", "!=", "<", "<=", ">", ">=", "<=>")},
    "/": (2, 2, _divide),
    "%": (2, 2, _remainder),
    "mod": (2, 2, _remainder),
    "pmod": (2, 2, _positive_remainder),
    "div": (2, 2, _div),
    "negative": (1, 1, _negative),
    "abs": (1, 1, _abs),
    "ceil": (1, 1, _to_whole(pc.ceil)),
    "floor": (1, 1, _to_whole(pc.floor)),
    "round": (1, 1, _round),
    "sqrt": (1, 1, _double(pc.sqrt)),
    "exp": (1, 1, _double(pc.exp)),
    "ln": (1, 1, _logarithm(pc.ln)),
    "power": (2, 2, _power),
    "pow": (2, 2, _power),
    "greatest": (2, _MANY, _extreme(pc.max_element_wise)),
    "least": (2, _MANY, _extreme(pc.min_element_wise)),
    "isnull": (1, 1, lambda m, a: Typed(a.expression.is_null(), BOOL)),
    "isnotnull": (1, 1, lambda m, a: Typed(a.expression.is_valid(), BOOL)),
    "isnan": (1, 1, _is_nan),
    "nullif": (2, 2, _null_if),
    "upper": (1, 1, _of_text("upper", pc.utf8_upper)),
    "lower": (1, 1, _of_text("lower", pc.utf8_lower)),
    "length": (1, 1, _of_text("length", pc.utf8_length, pa.int32())),
    "trim": (1, 1, _of_text("trim", lambda x: pc.utf8_trim(x, characters=" "))),
    "ltrim": (1, 1, _of_text("ltrim", lambda x: pc.utf8_ltrim(x, characters=" "))),
    "rtrim": (1, 1, _of_text("rtrim", lambda x: pc.utf8_rtrim(x, characters=" "))),
    "concat": (1, _MANY, _concat),
    "substring": (2, 3, _substring),
    "substr": (2, 3, _substring),
    "left": (2, 2, _left),
    "replace": (3, 3, _replace),
    "startswith": (2, 2, _with_pattern("startswith", pc.starts_with)),
    "endswith": (2, 2, _with_pattern("endswith", pc.ends_with)),
    "contains": (2, 2, _with_pattern("contains", pc.match_substring)),
    "like": (2, 2, _with_pattern("LIKE", pc.match_like)),
    "ilike": (2, 2, _with_pattern("ILIKE", lambda x, p: pc.match_like(x, p, ignore_case=True))),
    "rlike": (2, 2, _with_pattern("RLIKE", pc.match_substring_regex)),
    "year": (1, 1, _part("year", pc.year)),
    "quarter": (1, 1, _part("quarter", pc.quarter)),
    "month": (1, 1, _part("month", pc.month)),
    "day": (1, 1, _part("day", pc.day)),
    "dayofmonth": (1, 1, _part("day", pc.day)),
    "dayofyear": (1, 1, _part("day", pc.day_of_year)),
    "dayofweek": (
        1,
        1,
        _part("day", pc.day_of_week, count_from_zero=False, week_start=7),
    ),
    "weekofyear": (1, 1, _part("week", pc.iso_week)),
    "hour": (1, 1, _part("hour", pc.hour)),
    "minute": (1, 1, _part("minute", pc.minute)),
    "second": (1, 1, _part("second", pc.second)),
    "date": (1, 1, _days),
    "to_date": (1, 1, _days),
    "date_trunc": (2, 2, _date_trunc),
    "unix_seconds": (1, 1, _since_1970("s", "second")),
    "unix_millis": (1, 1, _since_1970("ms", "millisecond")),
    "unix_micros": (1, 1, _since_1970("us", "microsecond")),
    "timestamp_seconds": (1, 1, _from_1970("s")),
    "timestamp_millis": (1, 1, _from_1970("ms")),
    "timestamp_micros": (1, 1, _from_1970("us")),
}
