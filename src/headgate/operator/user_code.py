"""Errors of user code in words: what went wrong, and on which line of the user's own code."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable
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
    reason.where = _line_of(theirs) or _beginning_of(function)
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


def _line_of(frames: list[traceback.FrameSummary]) -> str:
    """The innermost line outside of installed packages; else the first inside, which we called."""
    own = [frame for frame in frames if not _INSTALLED.search(frame.filename)]
    if not frames:
        return ""
    frame = own[-1] if own else frames[0]
    line = f": {frame.line}" if frame.line else ""  # a worker may not have the file
    return _cut(f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}{line}")


def _beginning_of(function: Callable[..., Any] | None) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return _cut(f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} in {code.co_name}")


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS_MAX else text[: LINE_CHARACTERS_MAX - 1] + "…"
