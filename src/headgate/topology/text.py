"""Text for terminals, for other programs, and for errors of user code."""

from __future__ import annotations

import json
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from typing import Any

LINE_CHARACTERS_MAX = 100  # of a line of user code in an error
FRAMES_MAX = 20  # of a stack in an error: the innermost
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_JAVA_STACK = re.compile(r"\n\s+(?:at \S+\(|\.\.\. \d+ more).*|\n+JVM stacktrace:")
_COMPILED = (".pyx", ".pxi", ".pxd")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]([^\\/.]+)")
_UNDER_US = {"numpy", "pandas", "py4j", "pyarrow", "pyspark"}


def plain_text(value: object) -> str:
    r"""`str(value)` on one line, which a terminal shows and does not obey.

    Control characters, line ends, bidirectional overrides and invisible marks become what a Python
    string literal says for them. All else, backslashes too, stays as it is.

    Examples:
        >>> plain_text("né 日本 \x1b[31m\u202e\n")
        'né 日本 \\x1b[31m\\u202e\\n'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def json_text(value: Any, *, default: Callable[[Any], Any] = str, **options: Any) -> str:
    """The value as JSON that every reader takes: NaN and infinities, which JSON lacks, as text.

    `default` and other options are those of `json.dumps`.

    Examples:
        >>> json_text({"x": float("nan"), "y": [1.5, float("-inf")], "z": None})
        '{"x": "NaN", "y": [1.5, "-Infinity"], "z": null}'
    """
    return json.dumps(_finite(value), default=default, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {_finite(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


class Reason(str):
    """Why rows were refused; `where` is the line of user code, `trace` the stack that led there."""

    where: str = ""
    trace: str = ""


def reason_of(problem: BaseException, function: Callable[..., Any] | None = None) -> Reason:
    """What went wrong and where; if it was not inside the user's `function`, where that begins.

    Costs some 100 µs: for the one error that is reported, not for every bad row.
    """
    reason = Reason(describe(problem))
    stack = traceback.extract_tb(problem.__traceback__)
    theirs = [frame for frame in stack if _is_theirs(frame.filename)]
    reason.where = _line_of(theirs, getattr(function, "__code__", None))
    shown = traceback.format_list((theirs or stack)[-FRAMES_MAX:])
    said = traceback.format_exception_only(problem)
    reason.trace = "".join(["Traceback (most recent call last):\n", *shown, *said])
    return reason


def describe(problem: BaseException) -> str:
    """Kind and words of an error, without the Java stack that Spark's have."""
    return without_addresses(_JAVA_STACK.sub("", f"{type(problem).__name__}: {problem}"))


def without_addresses(text: str) -> str:
    """The text, the same in every process: objects are often shown with where they lie in memory.

    Examples:
        >>> without_addresses("no <Order object at 0x7f3c5e0a10>, only 0xff")
        'no <Order object at 0x…>, only 0xff'
    """
    return _ADDRESS.sub("at 0x…", text)


def _is_theirs(file: str) -> bool:
    if file.startswith((_OURS, "<frozen")) or file.endswith(_COMPILED):
        return False
    package = _INSTALLED.search(file)
    return package[1] not in _UNDER_US if package else not file.startswith(_STANDARD)


def _line_of(frames: list[traceback.FrameSummary], code: Any) -> str:
    """The innermost line outside of installed packages, else the first inside; else the code."""
    own = [frame for frame in frames if not _INSTALLED.search(frame.filename)]
    if frames:
        frame = own[-1] if own else frames[0]
        text = f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"
        text += f": {frame.line}" if frame.line else ""  # a worker may not have the file
    elif code is not None:
        text = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"
    else:
        return ""
    cut = text[: LINE_CHARACTERS_MAX - 1] + "…"
    return text if len(text) <= LINE_CHARACTERS_MAX else cut
