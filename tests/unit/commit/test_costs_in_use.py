"""Models change only when an instance says so, are saved before use and survive a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.commit.parts import coordinator, quiet
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Flow
from headgate.commit.costs_in_use import CostFiles, CostsInUse, cost_shapes
from headgate.errors import StateFileError
from headgate.routing.costs import CostSketch
from headgate.routing.hashing import mix
from headgate.slot.plan import Control
from headgate.slot.statistics import TaskStatistics
from headgate.state.storage import Storage


def program(epsilon=0.005):
    flow = Flow("f")
    rows = source(flow, "k bigint").shuffle(grouping="cost", attribute="k", epsilon=epsilon)
    rows.map(lambda b: b, "k bigint", name="work").to_memory("out")
    return compiled(flow)


def epoch_of(costs, slots, rows=40, seed=0, speeds=None):
    """What the slots' tasks of an epoch report."""
    draw = np.random.default_rng(seed)
    shape = cost_shapes(program())["work"]
    told = []
    for slot in range(slots):
        values = draw.integers(0, len(costs), rows)
        sketch = CostSketch(shape)
        factor = 1.0 if speeds is None else speeds[slot]
        sketch.update(mix(values.astype(np.uint64)), costs[values] * factor)
        told.append(TaskStatistics(slot, costs={"work": sketch}))
    return [TaskStatistics.from_bytes(task.to_bytes()) for task in told]


def files(folder: Path) -> CostFiles:
    return CostFiles(Storage.at(str(folder)))


COSTS = np.linspace(1, 60, 25)
VALUES = mix(np.arange(25, dtype=np.uint64))


def test_a_model_appears_when_stable_and_is_on_storage(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    costs.observe(epoch_of(COSTS, 2), 2)
    assert not costs.models, "one epoch cannot be stable"
    for seed in range(1, 8):
        costs.observe(epoch_of(COSTS, 2, seed=seed, speeds=[1, 3]), 2)
    model = costs.models["work"]
    assert model.times_ms(VALUES)[:, 0] == pytest.approx(COSTS, rel=0.5)
    assert model.speed[1] > 1.5 * model.speed[0]
    stored = files(tmp_path).load(costs.names["work"])
    assert (stored.times_ms(VALUES) == model.times_ms(VALUES)).all()


def test_models_are_replaced_seldom_while_nothing_changes(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    for seed in range(60):
        costs.observe(epoch_of(COSTS, 2, seed=seed), 2)
    assert len(files(tmp_path).storage.list()) <= 16, "two instances, each about log2 of 60 times"


def test_a_restart_begins_with_what_was_measured(tmp_path):
    before = CostsInUse(program(), files(tmp_path), {})
    for seed in range(6):
        before.observe(epoch_of(COSTS, 2, seed=seed), 2)
    after = CostsInUse(program(), files(tmp_path), before.names)
    assert after.names == before.names
    assert (after.models["work"].times_ms(VALUES) == before.models["work"].times_ms(VALUES)).all()
    after.fit(3)
    assert after.models["work"].instances == 3
    assert files(tmp_path).load(after.names["work"]).instances == 3
    assert len(CostsInUse(program(0.05), files(tmp_path), before.names).models) == 0


def test_a_lost_file_costs_the_measurements_and_nothing_else(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {"work": "work-0.arrow", "gone": "x.arrow"})
    assert not costs.models
    with pytest.raises(StateFileError, match="it is missing"):
        files(tmp_path).load("work-0.arrow")


def test_no_flipped_bit_of_a_model_goes_unseen_and_costs_more_than_the_measurements(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    for seed in range(6):
        costs.observe(epoch_of(COSTS, 2, seed=seed), 2)
    path = tmp_path / costs.names["work"]
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        after = CostsInUse(program(), files(tmp_path), costs.names)
        assert not after.models and after.damaged["work"].file == path.name


def test_a_start_without_its_model_says_so_in_the_journal(tmp_path):
    first = coordinator(tmp_path, of=program())
    first.run_epoch(0, "q", quiet)
    first.checkpoint.commit(replace(first.last, epoch=1, costs={"work": "work-0.arrow"}))

    again = coordinator(tmp_path, of=program())

    (noted,) = [record for record in again.journal.read() if record["kind"] == "damage"]
    assert (noted["operator"], noted["file"]) == ("work", "work-0.arrow")
    again.run_epoch(1, "q", quiet)


def test_the_record_holds_estimates_against_measurements(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    told = epoch_of(COSTS, 2, rows=5)
    plan = plan_for(program(), slots=2)
    first = costs.record(plan, Control(), told)["work"]
    assert first.estimated_ms == (None, None) and first.rows == (5, 5)
    assert first.measured_ms[0] == pytest.approx(told[0].costs["work"].total_ms, abs=1e-3)
    for seed in range(6):
        costs.observe(epoch_of(COSTS, 2, seed=seed), 2)
    plan = plan_for(program(), slots=2, costs=costs.models)
    control = Control(estimated_us={"work": {"0": 1500}})
    second = costs.record(plan, control, [])["work"]
    assert second.estimated_ms == (1.5, 0.0)
    assert second.speed is not None and len(second.speed) == 2 and second.sketches_sent >= 1
