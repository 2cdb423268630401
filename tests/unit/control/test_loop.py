"""The decision loop: one decision of several proposals, one owner of the number of slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.commit.facts import EpochFacts, PlanFacts, StateSize, TuningFacts
from headgate.commit.planning import Decision, Observed
from headgate.control.loop import DecisionLoop
from headgate.control.placement import HeadgatePlacement, KeyPlacement, PlacementSettings
from headgate.control.policy import Proposal, View, compare
from headgate.control.settings import Manager
from headgate.control.units import UnitPlacement
from headgate.planner.placing import Task
from headgate.planner.tuning.rescaler import Wanted
from headgate.routing.route import Here, Shares, Spread
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.statistics import TaskStatistics
from headgate.testing import ListSource, run

SLOTS, BUCKETS = 4, 64
TABLES = {"op": hash_table(SLOTS, BUCKETS)}


class Says:
    """A policy that proposes what it is given, and remembers what it saw."""

    units_of: frozenset[str] = frozenset()
    born_local: frozenset[str] = frozenset()

    def __init__(self, *proposals: Proposal) -> None:
        self.proposals = list(proposals)
        self.seen: list[int] = []
        self.changes: list[int] = []

    def slots_changed(self, slots: int) -> None:
        self.changes.append(slots)

    def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
        self.seen.append(len(observed))
        return self.proposals.pop(0) if self.proposals else Proposal()


class Sizes:
    """A tuner that says what it is given, one epoch after the other."""

    def __init__(self, *advice: TuningFacts | None) -> None:
        self.advice = list(advice)
        self.changing: list[bool] = []

    def observe(self, epoch: EpochFacts, *, changing: bool = False) -> TuningFacts | None:
        self.changing.append(changing)
        return self.advice.pop(0) if self.advice else None


def seen(epoch: int = 0, slots: int = SLOTS, **facts: Any) -> Observed:
    return Observed(EpochFacts(epoch, slots=slots, **facts), [])


def loop_of(placing: Any = None, sizing: Any = None) -> DecisionLoop:
    return DecisionLoop(placing=placing, sizing=sizing)


def test_what_was_promised_is_held_against_what_came_once_it_is_known() -> None:
    placing = Says(
        Proposal(plan=PlanFacts(why="a"), promised={"locality": 0.8}),
        Proposal(),
        Proposal(achieved={"locality": 0.75}),
        Proposal(achieved={"locality": 0.75}),
    )
    loop = loop_of(placing)

    outcomes = [loop.step([seen(epoch)], TABLES).outcome for epoch in range(4)]

    assert outcomes[:2] == [None, None]
    assert outcomes[2] is not None and outcomes[2].error == pytest.approx(0.05)
    assert outcomes[3] is None, "a promise is compared once"


def test_epochs_that_ran_with_other_slots_are_nobodys_business() -> None:
    placing = Says(Proposal(promised={"locality": 0.8}), Proposal(achieved={"locality": 0.1}))
    loop = loop_of(placing)
    loop.step([seen(0)], TABLES)

    after = loop.step([seen(1), seen(2, slots=2)], {"op": hash_table(2, BUCKETS)})

    assert (placing.seen, placing.changes) == ([1, 1], [2])
    assert after.outcome is None, "what was promised for four slots does not bind two"


def test_more_slots_win_over_fewer() -> None:
    """The placement would let slots go, the tuner needs more: nobody takes away what is needed."""
    placing = Says(Proposal(slots=Wanted(2, "drained")))
    loop = loop_of(placing, Sizes(TuningFacts(0, slots=6, why="rows wait")))

    decision = loop.step([seen()], TABLES)

    assert (decision.slots, decision.scaling) == (6, "rows wait")


def test_while_slots_are_on_their_way_the_tuner_knows_of_it() -> None:
    """Of epochs that come in one go, those after a wish ran before it could be carried out."""
    sizes = Sizes(
        TuningFacts(0, slots=6, why="rows wait"), TuningFacts(1, note="6 slots did not come")
    )
    loop = loop_of(sizing=sizes)

    decision = loop.step([seen(0), seen(1)], TABLES)

    assert sizes.changing == [False, True]
    assert decision.slots == 6 and decision.tuning is not None and decision.tuning.slots == 6
    assert decision.tuning.note == "", "the wish is the last word of this turn"
    loop.step([Observed(EpochFacts(2, slots=SLOTS), [], changing=True)], TABLES)
    assert sizes.changing == [False, True, True], "somebody, maybe the user, changes them"


def test_only_one_figure_of_a_plan_is_compared() -> None:
    both = compare({"locality": 0.5, "distance_pct": 3.0}, {"distance_pct": 4.5})

    assert both is not None and both.predicted_locality is None
    assert (both.predicted_distance_pct, both.achieved_distance_pct, both.error) == (3.0, 4.5, -1.5)


# --- keys, and units where slots stay uneven ------------------------------------------------
def headgate() -> HeadgatePlacement:
    settings = Manager(warm_up_epochs=0, migration_seconds_max=60.0)
    task = Task(("op",), (), SLOTS, 1.05, 1000, 1000, frozenset({"op"}), 5, 0)
    units = UnitPlacement(("op",), settings)
    return HeadgatePlacement(
        KeyPlacement(task, settings), units, PlacementSettings(patience_epochs=3, rest_turns=2)
    )


class World:
    """A slot's time is that of its buckets; statistics are counted as the placement asks."""

    def __init__(self, placing: HeadgatePlacement, weight: Any) -> None:
        self.placing, self.weight = placing, np.asarray(weight, float)
        self.tables: dict[str, RoutingTable] = {"op": hash_table(SLOTS, BUCKETS)}
        self.epoch = 0
        self.by_unit: list[bool] = []
        self.slots_asked: list[int] = []

    def run(self, epochs: int) -> None:
        loop = loop_of(self.placing)
        for _ in range(epochs):
            self.by_unit.append(bool(self.placing.units_of))
            decision = loop.step([self._observed()], dict(self.tables))
            self.tables.update(decision.tables)
            if decision.slots is not None:
                self.slots_asked.append(decision.slots)

    @property
    def spent(self) -> Any:
        return np.bincount(self.tables["op"].bucket_slots, self.weight, SLOTS)

    def _observed(self) -> Observed:
        table, by_unit = self.tables["op"], bool(self.placing.units_of)
        ids = table.all_units()[0][:BUCKETS]
        tasks, state = [], {}
        for slot in range(SLOTS):
            mine = table.bucket_slots == slot
            sketch = PairSketch(4 * BUCKETS)
            none = np.zeros(int(mine.sum()), np.uint64)
            sketch.update(ids[mine] if by_unit else none, none, self.weight[mine])
            tasks.append(TaskStatistics(slot, loads={"op": sketch}, state={"op": sketch}))
            state[slot] = StateSize(int(mine.sum()), 1000 * int(mine.sum()))
        spent = tuple(self.spent.tolist())
        self.epoch += 1
        facts = EpochFacts(
            self.epoch,
            slots=SLOTS,
            now_ms=1000 * self.epoch,
            rows=int(self.weight.sum()),
            loads={"op": tuple(int(x) for x in spent)},
            operator_ms={"op": spent},
            state={"op": state},
        )
        return Observed(facts, tasks, counted_units=by_unit)


UNEVEN = np.where(np.arange(BUCKETS) % SLOTS == 0, 30.0, 10.0)  # slot 0 has three times the work


def test_units_are_placed_where_slots_stay_uneven_and_keys_again_once_they_are_even() -> None:
    world = World(headgate(), UNEVEN)
    world.run(30)

    assert world.spent.max() / world.spent.mean() < 1.1
    assert world.by_unit[:3] == [False] * 3, "not before it has lasted"
    assert True in world.by_unit and world.by_unit[-1] is False


def test_even_slots_and_slots_too_quick_to_time_are_left_to_keys() -> None:
    for weight in (np.full(BUCKETS, 10.0), UNEVEN / 1000):
        world = World(headgate(), weight)
        world.run(12)
        assert not any(world.by_unit)


def test_slots_that_are_to_leave_are_drained_and_then_released() -> None:
    world = World(headgate(), np.full(BUCKETS, 10.0))
    world.placing.drain(2)
    world.run(8)

    assert set(world.tables["op"].bucket_slots.tolist()) == {0, 1}
    assert world.slots_asked[0] == 2


def test_fewer_slots_are_drained_first() -> None:
    placing = headgate()
    loop = loop_of(placing, Sizes(TuningFacts(0, slots=3, why="idle"), TuningFacts(1, note="x")))
    world = World(placing, np.full(BUCKETS, 10.0))

    decision = loop.step([world._observed()], TABLES)

    assert decision.slots is None and placing.is_draining


# --- slots without an instance --------------------------------------------------------------
def test_what_names_a_slot_without_an_instance_is_left_out_and_the_plan_says_so() -> None:
    """Whoever proposes it; the rest of the decision holds."""
    tables = {op: hash_table(SLOTS, BUCKETS, (0, 1)) for op in ("op", "other")}
    everywhere = hash_table(SLOTS, BUCKETS)
    fine = tables["other"].with_buckets(np.zeros(BUCKETS, np.int32))
    spread = {"op": Shares(Spread.of({7: [(0, 1.0), (3, 1.0)]})), "other": Here()}
    placing = Says(
        Proposal({"op": everywhere, "other": fine}, spread, PlanFacts(why="mine")), Proposal()
    )
    loop = loop_of(placing)
    facts = {"instances": {"op": (0, 1), "other": (0, 1)}}

    decision = loop.step([seen(0, **facts)], tables)

    assert set(decision.tables) == {"other"} and decision.dispatch == {"other": Here()}
    assert decision.plan is not None and decision.plan.why == (
        "mine; the table of op is left out: it names slots 2, 3, and op has an instance in slots "
        "0, 1 only; the spread of op is left out: it names slot 3, and op has an instance in slots "
        "0, 1 only"
    )
    again = loop.step([seen(1, **facts)], tables)
    assert again.plan is None and again.dispatch == {"other": Here()}, "it is told once"


def test_tables_follow_instances_that_change_with_them() -> None:
    tables = {op: hash_table(SLOTS, BUCKETS, (0, 1)) for op in ("op", "other")}
    there, elsewhere = hash_table(SLOTS, BUCKETS, (2, 3)), hash_table(SLOTS, BUCKETS, (0,))
    chosen = {"op": (3, 2), "other": (1,)}
    placing = Says(Proposal({"op": there, "other": elsewhere}, instances=chosen))

    decision = loop_of(placing).step([seen(instances={"op": (0, 1), "other": (0, 1)})], tables)

    assert decision.instances == {"op": (2, 3), "other": (1,)}
    assert set(decision.tables) == {"op"}


@pytest.mark.parametrize("wanted", [(), (0, SLOTS), (-1,)])
def test_instances_in_slots_that_do_not_exist_are_refused(wanted: tuple[int, ...]) -> None:
    loop = loop_of(Says(Proposal(instances={"op": wanted})))

    decision = loop.step([seen()], TABLES)

    assert not decision.instances and decision.plan is not None
    assert "op keeps its instances" in str(decision.plan.why)


def test_tables_of_another_shape_or_of_nobody_are_refused() -> None:
    wrong = {"op": hash_table(SLOTS, 2 * BUCKETS), "nobody": TABLES["op"]}
    decision = loop_of(Says(Proposal(wrong))).step([seen()], TABLES)

    assert not decision.tables and decision.plan is not None
    assert str(decision.plan.why).count("no operator has such a table") == 2


def test_epochs_that_ran_with_other_instances_are_nobodys_business() -> None:
    placing = Says()
    before, after = {"op": (0, 1)}, {"op": (2,)}
    tables = {"op": hash_table(SLOTS, BUCKETS, (2,))}
    loop_of(placing).step([seen(0, instances=before), seen(1, instances=after)], tables)

    assert placing.seen == [1]


def test_after_a_change_of_slots_an_operator_is_where_it_owns_keys() -> None:
    """What the last epoch says of its instances holds for another number of slots."""
    tables = {"op": hash_table(2, BUCKETS, (1,))}
    placing = Says(Proposal({"op": hash_table(2, BUCKETS)}))

    decision = loop_of(placing).step([seen(instances={"op": (1, 3)})], tables)

    assert not decision.tables


class Decider:
    """Somebody else's code, which knows nothing of instances."""

    statistics_bytes = 1 << 16
    born_local: frozenset[str] = frozenset()

    def step(self, observed: Sequence[Observed], tables: Any) -> Decision:
        return Decision({op: hash_table(SLOTS, BUCKETS) for op in tables}, PlanFacts(why="mine"))


def test_a_flow_goes_on_whatever_somebody_elses_decider_says() -> None:
    flow = hg.Flow("f")
    epochs = [[{"k": k} for k in range(40)]] * 4
    rows = flow.source(ListSource("k bigint", epochs)).key_by("k", grouping="hash")
    rows.process(hg.Count(), name="op", parallelism=2).to_memory("out")

    done = run(flow, slots=SLOTS, buckets=BUCKETS, manager=Decider())

    assert {row["k"]: row["count"] for row in done.state("op")} == dict.fromkeys(range(40), 4)
    plans = [r for r in done.journal if r["kind"] == "plan"]
    assert plans and all("the table of op is left out" in r["why"] for r in plans)
    assert not any("failed" in r for r in plans)


def test_instances_that_the_tuner_asks_for_hold_at_once_and_tables_of_old_ones_do_not() -> None:
    table = hash_table(SLOTS, BUCKETS)
    other = {**TABLES, "other": table}
    spread = {"op": Shares(Spread.of({7: [(0, 1.0), (1, 1.0)]})), "other": Here()}
    placing = Says(Proposal({"op": table, "other": table}, dispatch=spread))
    asked = TuningFacts(0, instances={"op": (0, 1)}, batch_rows={"a->b": 7})
    loop = loop_of(placing, Sizes(asked))

    decision = loop.step([seen()], other)

    assert decision.instances == {"op": (0, 1)}
    assert set(decision.tables) == {"other"}
    assert decision.dispatch == {"other": Here()}
    assert decision.tuning is not None and decision.tuning.batch_rows == {"a->b": 7}


def test_instances_of_other_slots_come_with_these_slots() -> None:
    asked = TuningFacts(0, slots=6, why="rows wait", instances={"op": (0, 5)})

    decision = loop_of(sizing=Sizes(asked)).step([seen()], TABLES)

    assert (decision.slots, decision.instances) == (6, {})
    assert decision.instances_then == {"op": (0, 5)}


def test_instances_for_slots_that_somebody_else_outbids_are_left_out() -> None:
    asked = TuningFacts(0, slots=6, why="rows wait", instances={"op": (0, 5)})
    placing = Says(Proposal(slots=Wanted(8, "uneven")))

    decision = loop_of(placing, Sizes(asked)).step([seen()], TABLES)

    assert (decision.slots, decision.instances, decision.instances_then) == (8, {}, {})


def test_a_promise_for_other_instances_is_not_held_against_anybody() -> None:
    placing = Says(
        Proposal(plan=PlanFacts(why="a"), promised={"locality": 0.8}),
        Proposal(achieved={"locality": 0.2}),
    )
    loop = loop_of(placing)
    loop.step([seen()], TABLES)

    assert loop.step([seen(1, instances={"op": (0, 1)})], TABLES).outcome is None
