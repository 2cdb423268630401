"""Hot keys: when keys are placed anew or cut, what is split, and what the journal says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate import Count, Flow
from headgate.commit.facts import EpochFacts, PlanFacts
from headgate.commit.planning import Decides, Decision, Observed
from headgate.commit.routing_in_use import TableFiles, TablesInUse
from headgate.control.hot_keys import HotKeys, HotKeySettings, operators_that_hold_rows
from headgate.control.loop import STATISTICS_BYTES, DecisionLoop, plan_with
from headgate.control.policy import Proposal, View
from headgate.control.settings import Manager
from headgate.planner.hot_keys import expected_loads
from headgate.routing.hashing import mix
from headgate.routing.route import Here, HereUnlessPinned, Shares, Spread
from headgate.routing.space_saving import PairSketch
from headgate.routing.table import RoutingTable, hash_table
from headgate.slot.compile import compile_flow
from headgate.slot.program import Program
from headgate.slot.statistics import TaskStatistics
from headgate.state.storage import Storage
from headgate.testing import ListSource, LocalRun
from headgate.topology.graph import KeyGrouping
from strategies import run_quickly

FOLDS = Manager(
    warm_up_epochs=99, born_local=False
)  # folds rows where that pays, and places no key
SLOTS = 4
KEYS = np.sort(mix(np.arange(200, dtype=np.uint64)))


def spread_of(decision: Proposal | Decision) -> Spread:
    assert decision.dispatch is not None
    dispatch = decision.dispatch["op"]
    assert isinstance(dispatch, Shares)
    return dispatch.spread


def program(grouping: KeyGrouping = "hash") -> Program:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", []))
    rows.key_by("k", grouping=grouping).process(Count(), name="op").to_memory("out")
    return compile_flow(flow.graph())


def epoch(rows: Sequence[float], number: int = 0, slots: int = SLOTS) -> list[Observed]:
    """An epoch in which KEYS had these rows, all counted by slot 0."""
    sketch = PairSketch(1 << 10)
    sketch.update(KEYS, np.zeros(len(KEYS), np.uint64), np.asarray(rows))
    total = round(float(np.sum(rows)))
    loads = {"op": (total,) + (0,) * (slots - 1)}
    facts = EpochFacts(number, rows=total, slots=slots, loads=loads)
    return [Observed(facts, [TaskStatistics(0, loads={"op": sketch})])]


def one_hot(key: int, share: float = 0.5, rows: float = 10_000) -> np.ndarray:
    loads = np.full(len(KEYS), (1 - share) * rows / (len(KEYS) - 1))
    loads[key] = share * rows
    return loads


def told(hot: HotKeys, table: RoutingTable, rows: np.ndarray | None) -> Proposal:
    """What is proposed after an epoch with these rows, or after none."""
    observed = [] if rows is None else epoch(rows)
    return hot.propose(observed, View({"op": table}, table.slots))


def why(proposal: Proposal) -> tuple[str, ...]:
    return () if proposal.plan is None else proposal.plan.hot_keys or ()


# --- placed by load -------------------------------------------------------------------------
def test_a_hot_key_is_cut_once_and_then_all_is_settled() -> None:
    hot = HotKeys(program("cut"), SLOTS)
    table = hash_table(SLOTS)
    assert why(told(hot, table, None)) == ()  # nothing was counted

    first = told(hot, table, one_hot(7))
    made = first.tables["op"]

    assert spread_of(first).cut.tolist() == [KEYS[7]]
    assert made.version == table.version + 1
    assert int(made.route(KEYS[7:8])[0]) in spread_of(first).shares_of(int(KEYS[7]))
    (reason,) = why(first)
    assert reason.startswith("op placed by load: imbalance ") and "-> 1.0" in reason
    loads = expected_loads(KEYS, one_hot(7), 10_000, made, spread_of(first))
    assert loads.max() / loads.mean() < 1.03

    second = told(hot, made, one_hot(7))
    assert (second.tables, why(second)) == ({}, ())
    assert spread_of(second) is spread_of(first)  # it stays in force


def test_another_key_gets_hot() -> None:
    hot = HotKeys(program("cut"), SLOTS)
    tables: dict[str, RoutingTable] = {"op": hash_table(SLOTS)}
    for _ in range(3):
        tables.update(told(hot, tables["op"], one_hot(7)).tables)
    cut = []
    for _ in range(8):
        decision = told(hot, tables["op"], one_hot(11, share=0.4))
        tables.update(decision.tables)
        cut.append(set(spread_of(decision).cut.tolist()))

    assert cut[-1] == {int(KEYS[11])}
    loads = expected_loads(KEYS, one_hot(11, 0.4), 10_000, tables["op"], spread_of(decision))
    assert loads.max() / loads.mean() < 1.1


def test_dkg_learns_first_and_cuts_nothing() -> None:
    hot = HotKeys(program("dkg"), SLOTS)
    table = hash_table(SLOTS)
    few = one_hot(7, rows=0.9 * HotKeySettings().learning_rows)
    assert why(told(hot, table, few)) == ()

    made = told(hot, table, one_hot(7))

    assert made.dispatch == {}
    mine = made.tables["op"].route(KEYS) == made.tables["op"].route(KEYS[7:8])
    assert mine.sum() == 1  # the hot key has a slot to itself


def test_one_slot_has_nothing_to_place() -> None:
    hot = HotKeys(program("cut"), 1)
    assert told(hot, hash_table(1), one_hot(7)).tables == {}


# --- with a manager of placement --------------------------------------------------------------
class Placing:
    statistics_bytes = 4096
    born_local = frozenset({"placed"})

    def __init__(self) -> None:
        self.seen: list[set[str]] = []

    def step(self, observed: Sequence[Observed], tables: Any) -> Decision:
        self.seen += [set(task.loads) for o in observed for task in o.statistics]
        return Decision(plan=PlanFacts(why="because", planner="mine"))


def two_operators() -> Program:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint, n bigint", []))
    first = rows.key_by("n").process(Count(emit="rows"), name="placed")
    first.key_by("k", grouping="cut").process(Count(), name="op").to_memory("out")
    return compile_flow(flow.graph())


def loop_of(manager: Any, flow: Program) -> Decides:
    planning = plan_with(manager, flow, SLOTS, beside=False)
    assert planning is not None
    return planning.manager


def test_a_manager_of_placement_does_not_see_what_is_not_its_to_place() -> None:
    placing = Placing()
    both = loop_of(placing, two_operators())
    (one,) = epoch(one_hot(7))
    other = PairSketch(4)
    other.update(KEYS[:1], np.zeros(1, np.uint64))
    (task,) = one.statistics
    one = replace(one, statistics=[replace(task, loads={**task.loads, "placed": other})])
    tables = {"op": hash_table(SLOTS), "placed": hash_table(SLOTS)}

    decision = both.step([one], tables)

    assert placing.seen == [{"placed"}]
    assert set(decision.tables) == {"op"} and decision.dispatch is not None
    plan = decision.plan
    assert plan is not None and plan.planner == "mine" and plan.spread == {"op": 1}
    assert str(plan.why).startswith("because; op placed by load")
    assert (both.statistics_bytes, both.born_local) == (4096, {"placed"})


def test_other_slots_are_another_problem() -> None:
    both = loop_of(None, program("cut"))
    assert both.statistics_bytes == STATISTICS_BYTES
    before = both.step(epoch(one_hot(7)), {"op": hash_table(SLOTS)})
    assert before.dispatch is not None and max(spread_of(before).slots) < SLOTS

    void = both.step(epoch(one_hot(7)), {"op": hash_table(2)})  # counted with four slots
    assert void.dispatch == {} and void.tables == {}
    anew = both.step(epoch(one_hot(7), slots=2), {"op": hash_table(2)})
    assert anew.dispatch is not None and set(spread_of(anew).slots.tolist()) <= {0, 1}


def test_who_needs_it() -> None:
    assert plan_with(None, program(), 2) is None
    assert plan_with(None, program("pkg"), 2) is None  # tasks choose by themselves
    assert plan_with(None, program("auto"), 2) is None  # folded early only by a manager
    for special in (program("dkg"), program("cut")):
        planning = plan_with(None, special, 2, beside=False)
        assert planning is not None and planning.manager.statistics_bytes > 0
    assert plan_with(Placing(), program("pkg"), 2) is None  # its keys are nobody's to place


# --- split if it pays, through the engine -----------------------------------------------------
def counted(epochs: list[pa.Table], **options: Any) -> LocalRun:
    flow = Flow("auto")
    rows = flow.source(ListSource("k bigint", epochs))
    rows.key_by("k", grouping="auto").process(Count(), name="op").to_memory("out")
    done = run_quickly(flow, slots=3, partitions=3, check_purity=False, manager=FOLDS, **options)
    truth = Counter(k for table in epochs for k in table["k"].to_pylist())
    assert {row["k"]: row["count"] for row in done.state("op")} == truth
    return done


def drawn(keys: int, epochs: int, seed: int = 0) -> list[pa.Table]:
    rng = np.random.default_rng(seed)
    return [pa.table({"k": rng.integers(0, keys, 600)}) for _ in range(epochs)]


def reasons(done: LocalRun) -> list[str]:
    return [line["why"] for line in done.journal if line["kind"] == "plan"]


def test_few_keys_are_split_and_the_journal_says_why() -> None:
    done = counted(drawn(12, 4))

    assert [record["split"] for record in done.records] == [[], ["op"], ["op"], ["op"]]
    (why,) = reasons(done)
    assert why.startswith("op split: 72 rows' worth of partials")
    assert [sum(e["remote_rows"] for e in r["edges"].values()) for r in done.records[1:]] == [0] * 3
    assert all(record["merge_rows"]["op"] == 36 for record in done.records[1:])


def test_nearly_distinct_keys_stay_by_key() -> None:
    done = counted(drawn(10**6, 3))

    assert [record["split"] for record in done.records] == [[], [], []]
    assert not any("op split" in why for why in reasons(done))


def test_a_stream_that_changes_is_split_and_put_together_again() -> None:
    done = counted(drawn(12, 3) + drawn(10**6, 6))

    split = [bool(record["split"]) for record in done.records]
    assert split[1] and not split[-1]
    first, last = reasons(done)
    assert first.startswith("op split: ") and last.startswith("op by key again: ")


@pytest.mark.parametrize("few", [True, False])
def test_an_operator_with_few_keys_makes_its_edge_local(few: bool) -> None:
    rng = np.random.default_rng(1)
    epochs = [
        pa.table({"a": rng.integers(0, 300, 600), "b": rng.integers(0, 8 if few else 10**6, 600)})
        for _ in range(3)
    ]
    flow = Flow("chain")
    rows = flow.source(ListSource("a bigint, b bigint", epochs))
    first = rows.key_by("a").process(Count(emit="rows"), name="first")
    first.key_by("b", grouping="auto").process(Count(), name="second").to_memory("out")

    done = run_quickly(flow, slots=3, check_purity=False, manager=FOLDS)

    shares = [record["edges"]["first->second"]["locality"] for record in done.records]
    assert shares[0] < 0.5
    assert (shares[-1] == 1.0) == few


def test_what_is_folded_goes_before_born_local(tmp_path: Path) -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k bigint", []))
    first = rows.key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("k", grouping="auto").process(Count(), name="op").to_memory("out")
    tables = TablesInUse(
        compile_flow(flow.graph()), TableFiles(Storage.at(str(tmp_path))), slots=2, buckets=16,
        chosen={}, stored={},
    )  # fmt: skip

    assert tables.routes({"op": Here()}, {"op"})["op"].dispatch == Here()
    assert isinstance(tables.routes({}, {"op"})["op"].dispatch, HereUnlessPinned)


def test_the_loop_forgets_what_a_policy_no_longer_dispatches() -> None:
    class Says:
        units_of = born_local = frozenset[str]()
        said = iter([Proposal(dispatch={"op": Here()}), Proposal(), Proposal(dispatch={})])

        def slots_changed(self, slots: int) -> None: ...

        def propose(self, observed: Sequence[Observed], view: View) -> Proposal:
            return next(self.said)

    loop = DecisionLoop(placing=Says())

    told = [loop.step(epoch(one_hot(7)), {"op": hash_table(SLOTS)}).dispatch for _ in range(3)]
    assert told == [{"op": Here()}, {"op": Here()}, {}]


def test_consumers_that_share_batches_may_be_folded_in_some_epochs() -> None:
    epochs = [pa.table({"k": t["k"], "j": t["k"]}) for t in drawn(12, 3) + drawn(10**6, 6)]
    flow = Flow("shared")
    rows = flow.source(ListSource("k bigint, j bigint", epochs))
    for key in ("k", "j"):
        rows.key_by(key, grouping="auto").process(Count(), name=key).to_memory(f"{key}_out")
    assert compile_flow(flow.graph()).share_groups

    done = run_quickly(flow, slots=3, partitions=3, manager=FOLDS, sharing="shared")

    truth = Counter(k for table in epochs for k in table["k"].to_pylist())
    for key in ("k", "j"):
        assert {row[key]: row["count"] for row in done.state(key)} == truth
    is_shared = [any("shared" in name for name in r["batches"]) for r in done.records]
    assert is_shared[0] and not is_shared[1] and is_shared[-1]


def test_a_sink_is_not_taken_for_the_operator_of_its_name() -> None:
    flow = Flow("f")
    rows = flow.source(ListSource("k string", []), name="rows")
    rows.key_by("k").process(Count(), name="same").to_memory("out")
    rows.to_memory("same")

    found = operators_that_hold_rows(compile_flow(flow.graph()))
    assert found == {"rows": frozenset(), "same": frozenset({"same"})}
