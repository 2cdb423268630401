"""What a worker has loaded is no longer looked at when PySpark collects garbage after a task."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.runtime import worker


class Loop:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    worker._programs.clear()
    gc.unfreeze()


def _load(name: str) -> Any:
    broadcast = cast(Any, SimpleNamespace(value=pickle.dumps(name)))
    return worker._program(broadcast, name)


def test_a_loaded_program_is_kept_out_of_collections() -> None:
    assert _load("first") == "first"
    frozen = gc.get_freeze_count()
    assert frozen > 10_000  # modules, mostly
    assert _load("first") == "first"
    assert gc.get_freeze_count() <= frozen  # once per program, not per task; some may be freed


def test_what_an_earlier_program_left_behind_goes_when_the_next_is_loaded() -> None:
    garbage = Loop()
    gone = weakref.ref(garbage)
    _load("first")
    del garbage
    gc.collect()
    assert gone() is not None  # frozen while it was alive
    _load("second")
    assert gone() is None
