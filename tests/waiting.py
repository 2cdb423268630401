"""Waiting in tests: for a condition, never for time, and longer than the busiest machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0  # spent only where a test is about to fail


def wait_until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.02)
