"""Runs in which operators are born local: the plan names them, whoever would have decided it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from headgate.control.coordinator import Coordinator
from headgate.slot.plan import EpochPlan
from headgate.slot.program import Program

Choose = Callable[[Program, int], frozenset[str]]


@contextmanager
def born_local(choose: Choose = lambda program, epoch: program.splittable) -> Iterator[None]:
    """Every coordinator made in here plans its epochs with the chosen operators away."""
    real = Coordinator.plan

    def plan(self: Coordinator, *given: int) -> EpochPlan:
        made = real(self, *given)
        return replace(made, away=choose(self.program, made.epoch))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "plan", plan)
        yield
