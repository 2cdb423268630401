"""A planner is the same in a running flow and in `headgate replay`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.scenario.like_replay import chain, schema_of

from headgate import Manager
from headgate.offline.replay_owners import NO_ENTRY, Owners, Trace
from headgate.offline.replay_planners import ReplayOptions, make_planner
from headgate.routing.table import RoutingTable
from headgate.testing import ListSource, run

SLOTS, PERIOD, PERIODS = 3, 400, 4
KEYS = ("a", "b")


def drawn(seed: int) -> dict[str, pa.Array]:
    """Keys that go together by twelve, and drift: a third of them is new in each period."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 12, PERIOD * PERIODS) + 4 * np.repeat(np.arange(PERIODS), PERIOD)
    a, b = (group * 5 + rng.integers(0, 5, len(group)) for _ in KEYS)
    return {"a": pa.array(a), "b": pa.array(np.where(rng.random(len(b)) < 0.2, b[::-1], b))}


def of_the_manager(rows: dict[str, pa.Array], planner: str, epochs: int) -> list[RoutingTable]:
    """The tables after each plan, in a flow whose manager plans after every period."""
    each = PERIOD // epochs
    cut = [pa.table(rows).slice(at, each) for at in range(0, PERIOD * PERIODS, each)]
    source = ListSource(schema_of(KEYS), cut)
    manager = options_of(planner, epochs).manager
    flow = chain(source, KEYS)
    done = run(flow, slots=SLOTS, manager=manager, check_purity=False, clock=lambda: 0)
    return [done.coordinator.tables[key] for key in KEYS]


def options_of(planner: str, epochs: int) -> ReplayOptions:
    return ReplayOptions(planner, PERIOD, PERIOD, slots=SLOTS, epoch=PERIOD // epochs)


def of_the_replay(rows: dict[str, pa.Array], planner: str, epochs: int) -> list[dict[int, int]]:
    """The entries with which the last epoch ran."""
    trace, options = Trace.of(rows), options_of(planner, epochs)
    made = make_planner(options)
    owners = Owners(trace, SLOTS, born_local=options.born_local)
    for first in range(0, trace.rows - options.epoch, options.epoch):
        for change in made.epoch(owners, owners.route(first, first + options.epoch)):
            owners.install(*change)
    return [
        {int(h): int(s) for h, s in zip(column.h, entry, strict=True) if s != NO_ENTRY}
        for column, entry in zip(trace.keys, owners.entry, strict=True)
    ]


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize(
    "planner",
    ["headgate", "hash", "offline", "online", "online-estimated", "online-kway", "worst-case"],
)
def test_equal_rows_give_equal_tables_in_a_flow_and_in_replay(planner: str, epochs: int) -> None:
    rows = drawn(seed=len(planner))

    tables = of_the_manager(rows, planner, epochs)

    pins = [dict(zip(t.pinned_h.tolist(), t.pinned_slots.tolist(), strict=True)) for t in tables]
    assert pins == of_the_replay(rows, planner, epochs)
    assert bool(pins[0]) == (planner != "hash")


def test_the_planner_hash_only_measures() -> None:
    rows = drawn(seed=1)
    cut = [pa.table(rows).slice(at, PERIOD) for at in range(0, PERIOD * PERIODS, PERIOD)]
    source = ListSource(schema_of(KEYS), cut)

    done = run(chain(source, KEYS, grouping="auto"), slots=SLOTS, manager=Manager("hash"))
    alone = run(chain(source, KEYS, grouping="hash"), slots=SLOTS)

    measured, plain = (
        [{name: record[name] for name in ("edges", "loads", "merge_rows")} for record in x.records]
        for x in (done, alone)
    )
    assert measured == plain
    assert not any(len(table.pinned_h) for table in done.coordinator.tables.values())


def test_alpha_is_the_managers() -> None:
    rows = drawn(seed=2)

    def imbalance(alpha: float) -> float:
        cut = [pa.table(rows).slice(at, PERIOD) for at in range(0, 2 * PERIOD, PERIOD)]
        flow = chain(ListSource(schema_of(KEYS), cut), KEYS)
        done = run(flow, slots=SLOTS, manager=Manager("online", alpha=alpha), check_purity=False)
        plan = next(line for line in done.journal if line["kind"] == "plan")
        return max(plan["predicted_imbalance"].values())

    assert imbalance(1.02) < imbalance(1.6)
