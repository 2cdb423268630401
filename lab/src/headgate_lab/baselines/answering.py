"""A rival that stays warm: a process that answers lines, each with one line `TOLD ...`.

A question that takes too long costs the process, and the next one starts another.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from headgate_lab.baselines.result import RivalUnavailable

ENDS_S = 30


class Answering:
    """The process of a command, started when it is first asked; what it says else is skipped."""

    def __init__(self, name: str, command: Sequence[str], log: Path, longest_s: float) -> None:
        self._name, self._command, self._longest_s = name, list(command), longest_s
        self._log = log.open("w")
        self._process: subprocess.Popen[str] | None = None

    def ask(self, line: str) -> str:
        """What it tells.

        Raises:
            RivalUnavailable: when it ends, takes longer than `longest_s`, or tells an error.
        """
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = self._start()
        process, late = self._process, threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()  # a Java that it started ends when nobody holds its input any more

        timer = threading.Timer(self._longest_s, give_up)
        timer.start()
        try:
            told = _answer(process, line)
        finally:
            timer.cancel()
        if told is None:
            how = f": not done in {self._longest_s:.0f} s" if late.is_set() else "'s process ended"
            raise RivalUnavailable(f"{self._name}{how}")
        if told.startswith("ERROR"):
            raise RivalUnavailable(f"{self._name}: {told.removeprefix('ERROR ')}")
        return told

    def close(self) -> None:
        self._end()
        self._log.close()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None


def _answer(process: subprocess.Popen[str], line: str) -> str | None:
    """None: there is nobody to answer."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        process.wait()
        return None
    for said in process.stdout:
        if said.startswith("TOLD "):
            return said.removeprefix("TOLD ").strip()
    process.wait()
    return None
