"""Declarations in which mergeable operators get a grouping for hot keys, whatever their author
wrote; and plans that split and spread at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.routes import dispatched, with_few_instances
from tests.scenario.oracle import Case

from headgate.commit.coordinator import Coordinator
from headgate.routing.hashing import hash_columns
from headgate.routing.route import TO_OWNER, Dispatch, Here, Shares, Spread
from headgate.slot.plan import EpochPlan
from headgate.topology.stream import Stream

Choose = Callable[[str], str]
WAYS = ("pkg", "d_choices", "w_choices", "cut", "dkg", "auto", "hash")


@contextmanager
def choosing(choose: Choose) -> Iterator[None]:
    """`choose(name)` is a grouping for every operator declared in here."""
    real = Stream.process

    def process(self: Stream, operator: Any, *, name: str | None = None, **options: Any) -> Stream:
        chosen = choose(str(name))
        keyed = self.grouping.kind == "fields"
        if not operator.mergeable(self.schema, self.grouping.key) or operator.ordered:
            chosen = "hash"
        if keyed or chosen in ("auto", "hash"):
            self = replace(self, grouping=replace(self.grouping, by=chosen))
        return real(self, operator, name=name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "process", process)
        yield


@contextmanager
def restless_plans(case: Case, seed: int, *, few: bool = False) -> Iterator[None]:
    """Every epoch's plan splits some of the operators that may be, and spreads some keys.

    `few`: most operators have instances in some slots only.
    """
    real = Coordinator.plan

    def plan(self: Coordinator, *given: int) -> EpochPlan:
        made = real(self, *given)
        coin = random.Random(f"{seed} {made.epoch}")
        chosen: dict[str, Dispatch] = {}
        for name in sorted(self.program.operators(lambda may: may.be_folded)):
            chosen[name] = Here() if coin.random() < 0.5 else TO_OWNER
        for name in sorted(self.program.operators(lambda may: may.be_cut)):
            if coin.random() < 0.7:
                chosen[name] = Shares(_spread(coin, case, name, made.slots_of(name)))
        made = dispatched(self.program, made, chosen)
        return with_few_instances(self.program, made, coin) if few else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "plan", plan)
        yield


def _spread(coin: random.Random, case: Case, operator: str, slots: Sequence[int]) -> Spread:
    if operator not in case.keys:
        return Spread()
    schema, keys = case.keys[operator]
    columns = [pa.array([key[i] for key in keys], field.type) for i, field in enumerate(schema)]
    shares = {}
    for h in hash_columns(columns, len(keys), case.near.get(operator, ())).tolist():
        if coin.random() < 0.5:
            among = coin.sample(slots, coin.randint(1, len(slots)))
            shares[h] = [(slot, coin.uniform(0.1, 1)) for slot in among]
    return Spread.of(shares)
