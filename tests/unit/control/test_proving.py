"""What is recommended has been run: on a simulated engine whose workers begin cold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from headgate.control.measured_flow import Measured, measure_flow
from headgate.control.proving import TRIES, WORTH, prove
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.planner.tuning.tuned import tune_epochs
from unit.control.service_world import CHAIN, Cluster, Costs, Truth, _epoch, program

SLOTS, ROWS = 12, 20_000
COSTS = EngineCosts(2e-5, 0.0, task_s=0.05, epoch_s=0.3)
SIZES = (ROWS, ROWS // 4) * 4


class Engine:
    """Runs probes; a cold one takes so many times as long in its first probe."""

    def __init__(self, cold: float = 1.0) -> None:
        self.cold, self.cluster = cold, Cluster(noise=0.02)
        self.probed: list[tuple[int, dict[str, int]]] = []

    def probe(self, slots: int, instances: Mapping[str, int]) -> Measured:
        self.probed.append((slots, dict(instances)))
        costs = Costs()
        if len(self.probed) == 1:
            costs = Costs({op: self.cold * s for op, s in costs.cpu_s.items()}, costs.wait_s)
        truth, rng = Truth(costs, self.cluster, slots), np.random.default_rng(len(self.probed))
        few = {op: tuple(range(n)) for op, n in {"total": 1, **instances}.items() if n < slots}
        places = {op: few.get(op, tuple(range(slots))) for op in CHAIN}
        told = [_epoch(truth, rng, n, rows, places, few, n) for n, rows in enumerate(SIZES)]
        return measure_flow(program(), [facts for facts, _ in told], COSTS, self.cluster.cores)

    def takes_s(self, settings: EpochSettings) -> float:
        counts = {"total": 1, **settings.instances}
        places = {op: tuple(range(counts.get(op, settings.slots))) for op in CHAIN}
        return Truth(Costs(), self.cluster, settings.slots).epoch_s(ROWS, places)


def wish(model: EpochModel, kept: EpochSettings | None = None) -> TunedEpochs:
    slots, instances = (None, None) if kept is None else (kept.slots, kept.instances)
    return tune_epochs(model, rows_max=ROWS, max_slots=SLOTS, slots=slots, instances=instances)


@pytest.mark.parametrize("cold", [1.0, 3.0, 8.0])
def test_what_is_recommended_takes_as_long_as_predicted_however_cold_the_first_probe(
    cold: float,
) -> None:
    engine = Engine(cold)

    proved = prove(engine.probe(SLOTS, {}), wish, engine.probe)

    settings = proved.tuned.settings
    slots, instances = engine.probed[-1]
    assert settings.slots == slots and len(engine.probed) == 1 + proved.tries
    assert {op: n for op, n in settings.instances.items() if op != "total"} == {
        op: n for op, n in instances.items() if op != "total"
    }
    assert settings.rows_per_epoch == ROWS
    took = engine.takes_s(settings)
    assert proved.tuned.prediction.epoch_s == pytest.approx(took, rel=0.15)
    alike = min(engine.takes_s(EpochSettings(n, ROWS, {})) for n in range(1, SLOTS + 1))
    assert took < WORTH * alike


def test_what_was_probed_already_is_not_probed_again() -> None:
    engine = Engine()
    first = engine.probe(SLOTS, {})
    same = EpochSettings(SLOTS, ROWS, {}, first.model.instances_seen)

    proved = prove(first, lambda model, kept=None: wish(model, kept or same), engine.probe)

    assert proved.tries == 0 and proved.measured is first and len(engine.probed) == 1


def test_a_choice_that_never_stays_ends_with_the_best_of_what_was_tried() -> None:
    engine, asked = Engine(), [8, 4, 2, 1]

    def restless(model: EpochModel, kept: EpochSettings | None = None) -> TunedEpochs:
        if kept is not None:
            return wish(model, kept)
        found = wish(model, EpochSettings(asked.pop(0), ROWS, {}, {}))
        return TunedEpochs(found.settings, found.prediction.slower(0.01), {}, "call", ())

    proved = prove(engine.probe(SLOTS, {}), restless, engine.probe)

    assert proved.tries == TRIES and [slots for slots, _ in engine.probed] == [12, 8, 4]
    assert proved.tuned.settings.slots == 8  # more of them wait at once than in 4
    assert proved.measured.model.slots_seen == 8
