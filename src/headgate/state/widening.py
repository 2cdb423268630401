"""Which types hold all values of another, so that state may be read as the wider one.

A value column may become any type that keeps every value exactly. A key column must keep its hash
besides (`routing/hashing.py`), or the rows of a key would lie where nobody looks for them: whole
numbers stay whole numbers, decimals keep their scale, and times their unit.
"""

from __future__ import annotations

import pyarrow as pa

_UNITS = ("s", "ms", "us")  # to ns a date far off does not fit
_EXACT_BITS = {16: 8, 32: 16, 64: 32}  # integers that a float of so many bits holds exactly


def widens(before: pa.DataType, after: pa.DataType, *, key: bool = False) -> bool:
    """Does `after` hold every value of `before`, and a key its hash?

    Examples:
        >>> widens(pa.int32(), pa.int64()), widens(pa.int64(), pa.float64())
        (True, False)
        >>> widens(pa.timestamp("ms"), pa.timestamp("us"), key=True)
        False
    """
    types = pa.types
    if before == after:
        return True
    if types.is_integer(before) and types.is_integer(after):
        return _holds_integers(before, after)
    if types.is_floating(before) and types.is_floating(after):
        return bool(before.bit_width < after.bit_width)
    if types.is_decimal(before) and types.is_decimal(after):
        return _holds_decimals(before, after, key)
    if types.is_string(before) or types.is_binary(before):
        large = pa.large_string() if types.is_string(before) else pa.large_binary()
        return bool(after == large)
    if key:
        return False
    if types.is_integer(before) and types.is_floating(after):
        return bool(before.bit_width <= _EXACT_BITS[after.bit_width])
    if types.is_timestamp(before) and types.is_timestamp(after):
        return before.tz == after.tz and _finer(before.unit, after.unit)
    return False


def _holds_integers(before: pa.DataType, after: pa.DataType) -> bool:
    if pa.types.is_signed_integer(before) == pa.types.is_signed_integer(after):
        return bool(before.bit_width < after.bit_width)
    return bool(pa.types.is_signed_integer(after) and before.bit_width < after.bit_width)


def _holds_decimals(before: pa.DataType, after: pa.DataType, key: bool) -> bool:
    if key and (before.scale != after.scale or before.bit_width != after.bit_width):
        return False
    whole = after.precision - after.scale >= before.precision - before.scale
    return bool(after.scale >= before.scale and whole)


def _finer(before: str, after: str) -> bool:
    return before in _UNITS and after in _UNITS and _UNITS.index(before) < _UNITS.index(after)
