"""Models change only when an instance says so, are saved before use and survive a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.commit.parts import coordinator, quiet
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Count, Flow
from headgate.commit.costs_in_use import CostFiles, CostsAsAsked, CostsInUse, cost_shapes
from headgate.errors import StateFileError
from headgate.routing.costs import CostSketch
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts
from headgate.slot.plan import Control
from headgate.slot.report import Timing
from headgate.slot.statistics import TaskStatistics
from headgate.state.storage import Storage


def program(epsilon=0.005):
    flow = Flow("f")
    rows = source(flow, "k bigint").shuffle(grouping="cost", attribute="k", epsilon=epsilon)
    rows.map(lambda b: b, "k bigint", name="work").to_memory("out")
    return compiled(flow)


COSTS = np.linspace(1, 60, 25)
VALUES = mix(np.arange(25, dtype=np.uint64))
SHAPE = cost_shapes(program())["work"]


class Instances:
    """What the slots' tasks report, epoch by epoch; each instance decides when to send."""

    def __init__(self, slots):
        self.instances = [InstanceCosts(SHAPE) for _ in range(slots)]

    def epoch(self, rows=40, seed=0, speeds=None):
        draw = np.random.default_rng(seed)
        told = []
        for slot, instance in enumerate(self.instances):
            values = draw.integers(0, len(COSTS), rows)
            sketch = CostSketch(SHAPE)
            factor = 1.0 if speeds is None else speeds[slot]
            sketch.update(mix(values.astype(np.uint64)), COSTS[values] * factor)
            told.append(TaskStatistics(slot, spent={"work": (rows, sketch.total_ms)}))
            if instance.add(sketch):
                told[-1].costs["work"] = instance.sent
        return [TaskStatistics.from_bytes(task.to_bytes()) for task in told]


def measured(costs, epochs, slots=2, **options):
    """Costs that have seen so many epochs."""
    instances = Instances(slots)
    for seed in range(epochs):
        costs.observe(instances.epoch(seed=seed, **options), slots)
    return costs


def files(folder: Path) -> CostFiles:
    return CostFiles(Storage.at(str(folder)))


def test_a_model_appears_when_stable_and_is_on_storage(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    assert not measured(costs, 1).models, "one epoch cannot be stable"
    measured(costs, 8, speeds=[1, 3])
    model = costs.models["work"]
    assert model.times_ms(VALUES)[:, 0] == pytest.approx(COSTS, rel=0.5)
    assert model.speed[1] > 1.5 * model.speed[0]
    stored = files(tmp_path).load(costs.names["work"])
    assert (stored.times_ms(VALUES) == model.times_ms(VALUES)).all()


def test_models_are_replaced_seldom_while_nothing_changes(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    measured(costs, 60)
    assert len(files(tmp_path).storage.list()) <= 16, "two instances, each about log2 of 60 times"


def test_a_restart_begins_with_what_was_measured(tmp_path):
    before = measured(CostsInUse(program(), files(tmp_path), {}), 6)
    after = CostsInUse(program(), files(tmp_path), before.names)
    assert after.names == before.names
    assert (after.models["work"].times_ms(VALUES) == before.models["work"].times_ms(VALUES)).all()
    after.fit(3)
    assert after.models["work"].instances == 3
    assert files(tmp_path).load(after.names["work"]).instances == 3
    assert len(CostsInUse(program(0.05), files(tmp_path), before.names).models) == 0


def test_tasks_read_a_model_when_they_ask_for_it(tmp_path):
    costs = measured(CostsInUse(program(), files(tmp_path), {}), 6)
    names = {**costs.names, "lost": "lost-0.arrow"}
    asked = CostsAsAsked(files(tmp_path), names)
    found = asked["work"]
    (tmp_path / costs.names["work"]).unlink()
    assert (found.times_ms(VALUES) == costs.models["work"].times_ms(VALUES)).all()
    assert asked.get("work") is found and asked.get("lost") is None and list(asked) == ["work"]
    assert "work" not in CostsAsAsked(files(tmp_path), names), "it reads nothing before it is asked"


def test_what_is_known_well_is_measured_now_and_then(tmp_path):
    """All the same, an instance that says it is unsettled is heard, and so is another number."""
    costs = CostsInUse(program(), files(tmp_path), {})
    assert not costs.unmeasured
    measured(costs, 8, rows=4_000)
    quick = TaskStatistics(0, spent={"work": (5, 1.0)})

    def after(told, plan):
        costs.judge(plan, costs.record(plan, Control(), [told]), [told])
        return costs.unmeasured

    plan = plan_for(program(), slots=2)
    assert after(quick, plan) == {"work"}
    seldom = replace(plan, unmeasured=costs.unmeasured)
    assert [after(quick, seldom) for _ in range(15)][-2:] == [{"work"}, set()]
    assert after(quick, plan) == {"work"}
    assert after(replace(quick, unsettled={"work"}), plan) == set()
    assert after(quick, plan) == {"work"}
    costs.fit(3)
    assert not costs.unmeasured


def test_of_instances_that_left_is_forgotten_what_is_not_true_any_more(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    instances = Instances(2)
    for seed in range(8):
        costs.observe(instances.epoch(rows=200, seed=seed), 2)
    costs.fit(1)
    assert costs.models["work"].former.rows >= 400
    del instances.instances[1]
    costs.observe(instances.epoch(rows=3_000, seed=20), 1)
    assert costs.models["work"].former.rows >= 400, "times are as they were"
    for seed in range(30, 36):
        costs.observe(instances.epoch(rows=200, seed=seed, speeds=[5.0]), 1)
    assert costs.models["work"].former.rows == 0


def test_a_lost_file_costs_the_measurements_and_nothing_else(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {"work": "work-0.arrow", "gone": "x.arrow"})
    assert not costs.models
    with pytest.raises(StateFileError, match="it is missing"):
        files(tmp_path).load("work-0.arrow")


def test_no_flipped_bit_of_a_model_goes_unseen_and_costs_more_than_the_measurements(tmp_path):
    costs = CostsInUse(program(), files(tmp_path), {})
    measured(costs, 6)
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
    told = Instances(2).epoch(rows=5)
    plan = plan_for(program(), slots=2)
    first = costs.record(plan, Control(), told)["work"]
    assert first.estimated_ms == (None, None) and first.rows == (5, 5)
    assert first.measured_ms[0] == pytest.approx(told[0].spent["work"][1], abs=1e-3)
    measured(costs, 6)
    plan = plan_for(program(), slots=2, costs=costs.models)
    control = Control(estimated_us={"work": {"0": 1500}})
    second = costs.record(plan, control, [])["work"]
    assert second.estimated_ms == (1.5, 0.0)
    assert second.speed is not None and len(second.speed) == 2 and second.sketches_sent >= 2


def test_what_slots_do_besides_is_shared_out_among_the_schedulers(tmp_path):
    """Of the level in which the rows are worked on, and without the chain that is scheduled."""
    flow = Flow("f")
    rows = source(flow, "k bigint").shuffle(grouping="cost", attribute="k")
    rows.map(lambda b: b, "k bigint", name="work").map(lambda b: b, "k bigint", name="then")
    other = flow.source(lambda: None, schema="k bigint", name="others")
    other.key_by("k").process(Count(), name="count").to_memory("counts")
    flow_program = compiled(flow)
    costs = CostsInUse(flow_program, files(tmp_path), {})
    (name,) = (n.name for n in flow_program.sources if n.name != "others")
    timings = [
        *(Timing(0, task, name, 9, 5_000_000) for task in (0, 1)),
        *(Timing(1, slot, "work", 9, 7_000_000) for slot in (0, 1)),
        Timing(1, 0, "then", 9, 50_000_000),
        Timing(1, 1, "count", 9, 8_000_000),
        Timing(1, 1, "moving count", 9, 80_000_000),
        Timing(2, 0, "count", 1, 30_000_000),
    ]
    costs.observe([], 2, timings)
    assert costs.beside_ms == {"work": (0.0, 4.0)}
    costs.observe([], 2, [t for t in timings if t.name != "count"])
    assert costs.beside_ms == {"work": (0.0, 2.0)}, "the last epochs count"
    costs.fit(3)
    assert not costs.beside_ms, "of other slots nothing is known"
