"""Declarations in which mergeable operators are split, whatever the flow's author wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from headgate.topology.stream import Stream

Choose = Callable[[str], bool]


@contextmanager
def splitting(choose: Choose = lambda name: True) -> Iterator[None]:
    """Every stateful operator declared in here is split if it can be and `choose(name)` says so."""
    real = Stream.process

    def process(self: Stream, operator: Any, *, name: str | None = None, **options: Any) -> Stream:
        if operator.mergeable(self.schema, self.grouping.key) and choose(str(name)):
            self = replace(self, grouping=replace(self.grouping, by="partial"))
        return real(self, operator, name=name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "process", process)
        yield
