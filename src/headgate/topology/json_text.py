"""JSON that every reader takes: what JSON has no word for is text.

Python writes NaN and infinities as bare words, which are not JSON; most readers stop there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def json_text(value: Any, *, default: Callable[[Any], Any] = str, **options: Any) -> str:
    """The value as JSON; `default` and other options are those of `json.dumps`.

    Examples:
        >>> json_text({"x": float("nan"), "y": [1.5, float("-inf")], "z": None})
        '{"x": "NaN", "y": [1.5, "-Infinity"], "z": null}'
    """
    return json.dumps(_finite(value), default=default, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_finite(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
