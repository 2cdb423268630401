"""Epoch records in, advice out: growing, giving back, and settings worth saving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import headgate as hg
from headgate.control.tuner import RETUNE_EPOCHS, Advice, Tuner
from headgate.control.tuning_file import SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.calibration import Calibration
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.slot.program import compile_flow
from headgate.state.storage import Storage
from headgate.testing import ListSource

COSTS = EngineCosts(1e-4, 0.0, task_s=0.05, epoch_s=0.2)
FIXED_MS = 300.0  # of two slots on two cores: 0.2 s, and two levels of 0.05 s


def program() -> Any:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k bigint", []), name="in")
    rows.key_by("k").process(hg.Count(), name="op").to_memory("out")
    return compile_flow(flow.graph())


def epochs(
    tuner: Tuner,
    count: int,
    *,
    slots: int,
    busy_ms: float,
    every_ms: int,
    start: int = 0,
    source_share: float = 0.0,
    uneven: bool = False,
):
    """Records of epochs that took so long, and what the tuner says to each."""
    said = []
    for number in range(start, start + count):
        rows = 1_000 if not uneven or number % 2 else 300
        record = {
            "kind": "epoch",
            "epoch": number,
            "slots": slots,
            "rows": rows,
            "source_rows": {"in": rows},
            "sink_rows": {"out": 10},
            "operator_rows": {"in": rows, "op": rows},
            "operator_ms": {"in": [1.0] * slots, "op": [5.0] * slots},
            "edges": {
                "in->op": {
                    "local_rows": 0,
                    "remote_rows": rows,
                    "local_bytes": 0,
                    "remote_bytes": 8_000,
                }
            },
            "now_ms": number * every_ms,
            "plan_ms": 0.0,
            "job_ms": FIXED_MS + busy_ms,
            "levels_ms": {"0": source_share * busy_ms, "1": (1 - source_share) * busy_ms},
            "attempts": 1,
        }
        said.append(tuner.observe(record))
    return said


def tuner(slots: int = 2, **options: Any) -> Tuner:
    chosen = {"cores": 8, "slots_max": 8, "costs": COSTS} | options
    return Tuner(program(), slots=slots, **chosen)


def test_busy_epochs_bring_more_slots():
    said = epochs(tuner(), 4, slots=2, busy_ms=990.0, every_ms=1_000)

    grown = [a.rescale for a in said if a is not None and a.rescale is not None]
    assert [r.instances for r in grown] == [3]


def test_while_a_change_is_under_way_no_other_is_asked_for():
    watching = tuner()
    epochs(watching, 4, slots=2, busy_ms=990.0, every_ms=1_000)

    later = epochs(watching, 6, slots=2, busy_ms=990.0, every_ms=1_000, start=4)

    assert [a for a in later if a is not None and a.rescale is not None] == []


def test_idle_slots_are_given_back_after_a_horizon():
    watching = tuner(slots=4)

    said = epochs(watching, 30, slots=4, busy_ms=50.0, every_ms=1_000)

    given = [a.rescale for a in said if a is not None and a.rescale is not None]
    assert [r.instances for r in given] == [1]


def test_with_slots_given_nothing_is_rescaled():
    said = epochs(tuner(rescales=False), 10, slots=2, busy_ms=990.0, every_ms=1_000)

    assert said == [None] * 10


def test_settings_are_told_once_and_again_only_if_they_differ():
    watching = tuner(rescales=False)

    said = epochs(watching, 3 * RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=1_000)

    told = [a for a in said if isinstance(a, Advice)]
    assert len(told) == 1
    assert told[0].tuned.settings.rows_per_epoch > 1
    assert told[0].facts()["settings"]["bottleneck"] in ("in", "op")


def test_slots_are_no_help_where_source_tasks_take_the_time():
    said = epochs(tuner(), 10, slots=2, busy_ms=990.0, every_ms=1_000, source_share=0.9)

    assert [a for a in said if a is not None and a.rescale is not None] == []


def test_a_slot_has_only_the_time_that_source_tasks_leave():
    """Half the time is the source's; in the other half two slots are always busy."""
    said = epochs(tuner(), 4, slots=2, busy_ms=990.0, every_ms=1_000, source_share=0.5)

    assert [a.rescale.instances for a in said if a is not None] == [3]


def test_a_backlog_gets_the_slots_that_are_expected_to_be_fastest():
    """Hardly any work in small epochs, and tasks that cost a lot: one slot does it sooner."""
    costs = replace(COSTS, task_s=0.5)
    watching = tuner(slots=4, costs=costs, cores=4, slots_max=4)

    said = epochs(watching, RETUNE_EPOCHS, slots=4, busy_ms=600.0, every_ms=1_100)
    later = epochs(
        watching, RETUNE_EPOCHS, slots=1, busy_ms=1_300.0, every_ms=1_200, start=RETUNE_EPOCHS
    )

    moved = [a.rescale for a in said if a is not None and a.rescale is not None]
    assert [r.instances for r in moved] == [1]
    assert "of the backlog are expected with 1 slots" in moved[0].why
    assert [a for a in later if a is not None and a.rescale is not None] == []  # nobody undoes it


def asked(said):
    return [a.epoch_rows for a in said if a is not None and a.epoch_rows is not None]


def test_a_backlog_in_small_epochs_gets_larger_ones():
    watching = tuner(rescales=False, limits=True)

    said = epochs(watching, RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=700)

    assert [e.rows > 1_000 for e in asked(said)] == [True]
    assert "as large as the source allows" in asked(said)[0].why
    assert said[-1].facts()["rows_per_epoch"] == asked(said)[0].rows


@pytest.mark.parametrize(
    ("limits", "every_ms", "uneven"),
    [(False, 700, False), (True, 5_000, False), (True, 700, True)],
    ids=["sources cannot be told", "the flow waits for rows", "epochs take what has come"],
)
def test_rows_per_epoch_stay_where_another_limit_would_not_be_felt(limits, every_ms, uneven):
    watching = tuner(rescales=False, limits=limits)

    said = epochs(
        watching, 2 * RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=every_ms, uneven=uneven
    )

    assert asked(said) == []


def test_epochs_too_large_for_the_latency_asked_for_become_smaller():
    watching = tuner(rescales=False, limits=True, latency_s=0.6)

    said = epochs(watching, RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=2_000)

    assert [e.rows < 800 for e in asked(said)] == [True]


def test_what_is_saved_is_found_again_and_rubbish_is_not(tmp_path):
    storage = Storage.at(str(tmp_path))
    assert load_tuning(storage) is None

    saved = SavedTuning(Calibration(COSTS, (), 0.1, "Spark"))
    save_tuning(storage, saved)
    assert load_tuning(storage) == saved

    storage.write("tuning.json", b"{}")
    assert load_tuning(storage) is None
