"""Epoch records in, advice out: growing, giving back, and settings worth saving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import headgate as hg
from headgate.commit.facts import EdgeFacts, EngineFacts, EpochFacts, TuningFacts
from headgate.control.demand import load_between
from headgate.control.tuner import (
    RETUNE_EPOCHS,
    SavedTuning,
    Tuner,
    load_tuning,
    save_tuning,
)
from headgate.control.tuning_history import REFUSED_EPOCHS
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import (
    Calibration,
    EngineCosts,
    FlowModel,
    Probe,
    Step,
    Stream,
)
from headgate.planner.tuning.epochs import EpochModel
from headgate.planner.tuning.tuned import tune_epochs
from headgate.slot.compile import compile_flow
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
    fixed_ms: float = FIXED_MS,
    changing: bool = False,
):
    """Epochs that took so long, and what the tuner says to each."""
    said = []
    for number in range(start, start + count):
        rows = 1_000 if not uneven or number % 2 else 300
        facts = EpochFacts(
            epoch=number,
            slots=slots,
            rows=rows,
            source_rows={"in": rows},
            sink_rows={"out": 10},
            operator_rows={"in": rows, "op": rows},
            operator_ms={"in": (1.0,) * slots, "op": (5.0,) * slots},
            edges={"in->op": EdgeFacts(remote_rows=rows, remote_bytes=8_000)},
            now_ms=number * every_ms,
            engine=EngineFacts(
                plan_ms=0.0,
                job_ms=fixed_ms + busy_ms,
                levels_ms={0: source_share * busy_ms, 1: (1 - source_share) * busy_ms},
            ),
        )
        said.append(tuner.observe(facts, changing=changing))
    return said


def tuner(slots: int = 2, **options: Any) -> Tuner:
    chosen = {"cores": 8, "scaling": hg.Scaling(max_slots=8), "costs": COSTS} | options
    return Tuner(program(), slots=slots, **chosen)


def test_busy_epochs_bring_more_slots():
    said = epochs(tuner(), 4, slots=2, busy_ms=990.0, every_ms=1_000)

    assert slots_asked(said) == [3]


def slots_asked(said):
    return [a.slots for a in said if a is not None and a.slots is not None]


def test_while_a_change_is_under_way_no_other_is_asked_for():
    watching = tuner()
    epochs(watching, 4, slots=2, busy_ms=990.0, every_ms=1_000)

    later = epochs(watching, 15, slots=2, busy_ms=990.0, every_ms=1_000, start=4, changing=True)

    assert slots_asked(later) == []


def test_a_change_that_failed_is_told_and_tried_again_after_a_while():
    """It was waited for for ever."""
    watching = tuner()
    epochs(watching, 4, slots=2, busy_ms=990.0, every_ms=1_000)

    later = epochs(watching, 200, slots=2, busy_ms=990.0, every_ms=1_000, start=4)

    notes = [a.note for a in later if a is not None and a.note]
    assert notes[0] == "3 slots did not come; going on from 2"
    assert 1 <= len(slots_asked(later)) <= 3
    again = next(i for i, a in enumerate(later) if a is not None and a.slots is not None)
    assert again >= REFUSED_EPOCHS


def test_slots_that_somebody_else_has_changed_are_followed():
    """After `query.rescale(3)` nothing was rescaled any more."""
    watching = tuner()
    epochs(watching, 4, slots=2, busy_ms=300.0, every_ms=1_000)

    said = epochs(watching, 12, slots=3, busy_ms=990.0, every_ms=1_000, start=4)

    assert slots_asked(said) == [4]
    notes = [a.note for a in said if a is not None and a.note]
    assert notes[0] == "others have changed the slots to 3; going on from there"


def test_a_calibration_of_a_busy_engine_gives_no_busy_slots_away():
    """Its fixed cost alone is longer than the epochs, and tasks fill two thirds of them."""
    busy = EngineCosts(3e-5, 5e-8, task_s=0.26, epoch_s=0.0, level_s=0.318)
    watching = tuner(slots=4, costs=busy, cores=4, scaling=hg.Scaling(max_slots=4))

    said = epochs(watching, 150, slots=4, busy_ms=650.0, every_ms=1_000)

    assert slots_asked(said) == []


def test_what_was_measured_takes_the_place_of_the_calibration():
    """Epochs of two sizes show that they cost 0.3 s without rows, not 0.9 s."""
    cold = replace(COSTS, epoch_s=0.8)
    watching = tuner(costs=cold, scaling=None)
    record = epochs(watching, RETUNE_EPOCHS, slots=2, busy_ms=0.0, every_ms=1_000, uneven=True)

    assert record is not None
    assert watching._found.job_fixed_s(2) == pytest.approx(FIXED_MS / 1e3, rel=0.05)


def test_a_tiny_epoch_says_little_about_the_large_one_behind_it():
    """50 ms that a single row seems to have cost would be demand for fifty slots."""
    tiny = EpochFacts(0, slots=2, rows=1, engine=EngineFacts(job_ms=350.0))

    load = load_between(tiny, EpochFacts(1, rows=1_000, now_ms=500), 0.3, 2)

    assert load.rate == 2_000
    assert load.demand == pytest.approx(2 * 2 * 0.05 / 0.5)


def test_cores_are_those_of_the_epoch():
    """Eight slots of which two ran at a time have two cores' worth of work at the most."""
    before = EpochFacts(0, slots=8, rows=100, engine=EngineFacts(job_ms=1_000.0))
    after = EpochFacts(1, rows=100, now_ms=1_000)

    found = [load_between(before, after, 0.0, cores) for cores in (2, 8)]

    assert [load.demand for load in found] == pytest.approx([2.0, 8.0])


def test_idle_slots_are_given_back_after_a_horizon():
    watching = tuner(slots=4)

    said = epochs(watching, 45, slots=4, busy_ms=50.0, every_ms=1_000)

    assert slots_asked(said) == [1]


def test_with_slots_given_nothing_is_rescaled():
    said = epochs(tuner(scaling=None), 10, slots=2, busy_ms=990.0, every_ms=1_000)

    assert said == [None] * 10


def test_settings_are_told_once_and_again_only_if_they_differ():
    watching = tuner(scaling=None)

    said = epochs(watching, 3 * RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=1_000)

    told = [a for a in said if isinstance(a, TuningFacts)]
    assert len(told) == 1
    assert told[0].settings.settings.rows_per_epoch > 1
    assert told[0].settings.bottleneck in ("in", "op")


def test_slots_are_no_help_where_source_tasks_take_the_time():
    said = epochs(tuner(), 10, slots=2, busy_ms=990.0, every_ms=1_000, source_share=0.9)

    assert [a for a in said if a is not None and a.slots is not None] == []


def test_a_slot_has_only_the_time_that_source_tasks_leave():
    """Half the time is the source's; in the other half two slots are always busy."""
    said = epochs(tuner(), 4, slots=2, busy_ms=990.0, every_ms=1_000, source_share=0.5)

    assert slots_asked(said) == [3]


def test_rows_that_wait_get_the_slots_that_are_expected_to_be_fastest():
    """Hardly any work in small epochs, and tasks that cost a lot: one slot does it sooner."""
    costs = replace(COSTS, task_s=0.5)
    watching = tuner(slots=4, costs=costs, cores=4, scaling=hg.Scaling(max_slots=4), all_there=True)
    four, one = 200 + 500 * 5 / 4, 200 + 500 * 2 / 4  # as the calibration has it

    said = epochs(watching, RETUNE_EPOCHS, slots=4, busy_ms=30.0, every_ms=1_000, fixed_ms=four)
    later = epochs(
        watching, 200, slots=1, busy_ms=120.0, every_ms=600, start=RETUNE_EPOCHS, fixed_ms=one
    )

    assert slots_asked(said) == [1]
    assert "of them are expected with 1 slots" in said[-1].why
    assert slots_asked(later) == []  # nobody undoes it


def asked(said):
    return [a.rows_per_epoch for a in said if a is not None and a.rows_per_epoch is not None]


def test_rows_that_wait_for_small_epochs_get_larger_ones():
    watching = tuner(scaling=None, limits=True, all_there=True)

    said = epochs(watching, RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=700)

    assert [rows > 1_000 for rows in asked(said)] == [True]
    assert "rows wait, and epochs have 1,000 rows" in said[-1].why_rows


@pytest.mark.parametrize(
    ("options", "every_ms", "uneven"),
    [
        ({"limits": False, "all_there": True}, 700, False),
        ({}, 5_000, False),
        ({"latency_s": 0.6}, 2_000, False),
        ({}, 700, True),
        ({}, 700, False),
    ],
    ids=[
        "sources cannot be told",
        "the flow waits for rows",
        "it waits, and is late",
        "epochs take what has come",
        "nobody knows",
    ],
)
def test_rows_per_epoch_stay_where_another_limit_would_not_be_felt(options, every_ms, uneven):
    watching = tuner(**({"scaling": None, "limits": True} | options))

    said = epochs(
        watching, 2 * RETUNE_EPOCHS, slots=2, busy_ms=400.0, every_ms=every_ms, uneven=uneven
    )

    assert asked(said) == []


def test_epochs_too_large_for_the_latency_asked_for_become_smaller():
    watching = tuner(scaling=None, limits=True, all_there=True, latency_s=4.0)

    said = epochs(watching, RETUNE_EPOCHS, slots=2, busy_ms=4_000.0, every_ms=4_500)

    assert [400 < rows < 600 for rows in asked(said)] == [True]  # of 2 s, 1.7 are for rows


def test_epochs_that_took_no_time_by_the_clock_are_no_reason_for_anything():
    said = epochs(tuner(), RETUNE_EPOCHS + 1, slots=2, busy_ms=0, every_ms=0, fixed_ms=0)

    assert not any(said)


def test_a_latency_of_nothing_is_refused_at_the_start():
    with pytest.raises(DeclarationError, match="give a latency above zero"):
        tuner(latency_s=0.0)


def test_what_is_saved_is_found_again_and_rubbish_is_not(tmp_path):
    storage = Storage.at(str(tmp_path))
    assert load_tuning(storage) is None

    probes = (Probe(1, 2, 2, 8_000, 64_000, 0.5),)
    flow = FlowModel((Step("in", source_rate=1.0), Step("op", 1e-6)), (Stream("in", "op"),))
    tuned = tune_epochs(EpochModel(flow, COSTS, levels=1, cores=2), rate=10_000)
    saved = SavedTuning(Calibration(COSTS, probes, 0.1, "Spark"), tuned)
    save_tuning(storage, saved)
    assert load_tuning(storage) == saved

    whole = storage.read("tuning.json")
    damaged = [whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :] for at in range(len(whole))]
    for data in (*damaged, whole[:-1], b"{}", b"", b"\xff", b"[]", b'{"calibration": {}}'):
        storage.write("tuning.json", data)
        assert load_tuning(storage) is None, data
    for data in (b"[]", b"\xff", b'{"calibration": []}', b'{"calibration": {"costs": 1}}'):
        storage.write("tuning.json", data)
        assert load_tuning(storage, plain=True) is None, data
