"""Any slot may leave: the others take its number, and what they hold is found under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.commit.planning import Decision, Observed
from headgate.routing.table import RoutingTable
from headgate.testing import ListSource, LocalRun, run

KEYS, SLOTS = 60, 4


class Leaving:
    """After the second epoch slots are emptied, after the third they leave."""

    statistics_bytes = 1 << 16
    born_local = frozenset[str]()

    def __init__(self, gone: tuple[int, ...], *, drained: bool = True) -> None:
        self.gone, self.drained = gone, drained
        self.owners: dict[str, Any] = {}

    def step(self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]) -> Decision:
        epoch = observed[-1].facts.epoch
        stay = np.array([s for s in range(SLOTS) if s not in self.gone], np.int32)
        if epoch == 1 and self.drained:
            found = {}
            for operator, table in tables.items():
                owners = table.all_units()[1]
                leaves = np.isin(owners, self.gone)
                owners[leaves] = stay[np.arange(int(leaves.sum())) % len(stay)]
                found[operator] = table.with_owners(owners)
            return Decision(found)
        if epoch == 2:
            self.owners = {op: table.all_units()[1] for op, table in tables.items()}
            return Decision(slots=len(stay), gone=self.gone, scaling="they leave")
        return Decision()


def epochs(count: int = 7, rows: int = 200) -> list[list[dict[str, int]]]:
    draw = np.random.default_rng(3)
    made = draw.integers(0, KEYS, (count, rows, 2)).tolist()
    return [[{"a": a, "b": b, "at": 1000 * e} for a, b in part] for e, part in enumerate(made)]


def declared(given: list[list[dict[str, int]]]) -> hg.Flow:
    flow = hg.Flow("leaving")
    rows = flow.source(ListSource("a long, b long, at long", given))
    first = rows.key_by("a", grouping="hash").process(hg.Count(emit="rows"), name="first")
    first.key_by("b", grouping="hash").process(hg.Count(), name="second").to_memory("out")
    return flow


def check(done: LocalRun, given: list[list[dict[str, int]]]) -> None:
    rows = [row for part in given for row in part]
    for operator, key in (("first", "a"), ("second", "b")):
        fold = Counter(row[key] for row in rows)
        assert {r[key]: r["count"] for r in done.state(operator)} == fold


@pytest.mark.parametrize("gone", [(0,), (1, 3), (0, 1), (0, 2, 3), (2, 3)])
@pytest.mark.parametrize("warm", [True, False])
def test_what_stays_is_found_under_its_new_number_and_does_not_move(
    gone: tuple[int, ...], warm: bool, tmp_path: Path
) -> None:
    given, manager = epochs(), Leaving(gone)
    where = str(tmp_path / "warm") if warm else "off"
    done = run(
        declared(given),
        slots=SLOTS,
        manager=manager,
        checkpoint=tmp_path / "c",
        warm_dir=where,
    )

    check(done, given)
    moved = [sum(record["moved_rows"].values()) for record in done.records]
    assert moved[2] > 0 and not any(moved[3:]), "drained, then nothing moves"
    assert [record["slots"] for record in done.records] == [4] * 4 + [4 - len(gone)] * 3
    (scaled,) = [record for record in done.journal if record["kind"] == "scale"]
    assert tuple(scaled["gone"]) == gone
    for operator, table in done.coordinator.tables.items():
        owners = manager.owners[operator]
        same = [len({*owners[table.all_units()[1] == slot]}) for slot in range(table.slots)]
        assert same == [1] * table.slots, "who had one owner has one owner"


def test_what_was_not_drained_moves_when_they_leave(tmp_path: Path) -> None:
    given = epochs()
    done = run(declared(given), slots=SLOTS, manager=Leaving((0, 2), drained=False))

    check(done, given)
    moved = [sum(record["moved_rows"].values()) for record in done.records]
    assert moved[4] > 0 and sum(moved) == moved[4]


def test_a_restart_after_it_goes_on_under_the_new_numbers(tmp_path: Path) -> None:
    given = epochs()
    run(declared(given[:5]), slots=SLOTS, manager=Leaving((1,)), checkpoint=tmp_path / "c")
    done = run(declared(given), slots=SLOTS - 1, manager=Leaving((0,)), checkpoint=tmp_path / "c")

    check(done, given)
    assert not any(sum(record["moved_rows"].values()) for record in done.records)


def test_who_leaves_of_other_slots_than_there_are_is_not_obeyed() -> None:
    """Somebody has asked for other slots meanwhile."""
    given = epochs()

    class Late(Leaving):
        def step(self, observed: Any, tables: Any) -> Decision:
            if observed[-1].facts.epoch == 2:
                return Decision(slots=3, gone=(0, 1), scaling="late")
            return Decision()

    done = run(declared(given), slots=SLOTS, manager=Late(()))

    check(done, given)
    (scaled,) = [record for record in done.journal if record["kind"] == "scale"]
    assert "gone" not in scaled and scaled["slots"] == 3
