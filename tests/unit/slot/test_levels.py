"""Slots get a task in the levels in which they may have work, and in no others."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.routing.route import Here, Route
from headgate.routing.table import hash_table
from headgate.slot.compile import compile_flow
from headgate.slot.levels import Levels, levels_of
from headgate.slot.program import Program
from headgate.testing import ListSource


def chain(*, grouping: Any = "hash") -> Program:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("a bigint, b bigint", []))
    first = rows.key_by("a", grouping=grouping).process(hg.Count(emit="rows"), name="first")
    second = first.key_by("b", grouping=grouping).process(hg.Count(emit="rows"), name="second")
    second.globally(grouping="hash").process(hg.Count(), name="all").to_memory("out")
    return compile_flow(flow.graph())


def routes(slots: int, **instances: tuple[int, ...]) -> dict[str, Route]:
    everywhere = {op: tuple(range(slots)) for op in ("first", "second", "all")}
    return {
        op: Route(hash_table(slots, 16, mine), slots=() if len(mine) == slots else mine)
        for op, mine in (everywhere | instances).items()
    }


def test_with_instances_everywhere_every_slot_has_a_task_in_every_level() -> None:
    assert levels_of(chain(), routes(3), 3).at_work == ((0, 1, 2),) * 3


def test_a_slot_has_tasks_where_its_operators_may_have_rows() -> None:
    """Slot 3 has `second` alone: its rows come in level 2. Those of slot 0 may come in level 1."""
    used = routes(4, first=(0, 1), second=(0, 3), all=(2,))

    assert levels_of(chain(), used, 4).at_work == ((0, 1), (0, 2, 3), (2,))


def test_slots_whose_state_moves_have_a_task_from_the_first_level_on() -> None:
    used = routes(4, first=(0, 1), second=(3,), all=(2,))

    assert levels_of(chain(), used, 4).at_work == ((0, 1), (3,), (2,))
    assert levels_of(chain(), used, 4, moved={"second"}).at_work == ((0, 1, 3), (3,), (2,))
    assert levels_of(chain(), used, 4, moved={"all"}).at_work == ((0, 1, 2), (2, 3), (2,))


def test_levels_that_folding_in_place_makes_needless_are_left_out() -> None:
    program = chain(grouping="auto")
    folded = {op: Route(route.table, Here(), route.slots) for op, route in routes(2).items()}
    folded["all"] = Route(hash_table(2, 16))

    assert program.levels == 3
    assert levels_of(program, folded, 2) == Levels(((0, 1),), dict.fromkeys(routes(2), 1))


@pytest.mark.parametrize("slots", [1, 3])
def test_a_flow_without_work_in_slots_has_one_task_to_pass_the_records_on(slots: int) -> None:
    flow = hg.Flow("f")
    flow.source(ListSource("a bigint", [])).filter(lambda batch: batch["a"]).to_memory("out")

    assert levels_of(compile_flow(flow.graph()), {}, slots).at_work == ((0,),)


def test_rows_that_have_one_slot_to_go_to_need_one_level() -> None:
    assert levels_of(chain(), routes(1), 1) == Levels(((0,),), {"first": 1, "second": 1, "all": 1})
