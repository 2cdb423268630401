"""What a start begins with: whose costs, how many slots, which rows per epoch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headgate as hg
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.settings import Settings
from headgate.control.tuner import SavedTuning, load_tuning, save_tuning
from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import Calibration, EngineCosts
from headgate.planner.tuning.epochs import EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.runtime.auto import SAVED, TYPICAL, AutoStart, costs_of, known_costs, resolve
from headgate.slot.compile import compile_flow
from headgate.slot.plan import Batching
from headgate.testing import ListSource

COSTS = EngineCosts(1e-4, 5e-9, task_s=0.02, epoch_s=0.05)
HERE = "Spark 4.1.1, local, 2 cores"


def calibration(engine: str = HERE) -> Calibration:
    return Calibration(COSTS, (), 0.0, engine)


def tuned(slots: int, **settings_of: Any) -> TunedEpochs:
    settings = EpochSettings(slots, 1_000, **({"batch_rows": {}} | settings_of))
    return TunedEpochs(settings, EpochPrediction(1, 1, 1, 1, 1), {}, "op", ())


def two_cores() -> Any:
    """As much of a session as a start that probes nothing asks for."""
    conf = SimpleNamespace(get=lambda name, default=None: default)
    driver = SimpleNamespace(id=lambda: "driver", hostPort=lambda: "here:1", totalCores=lambda: 2)
    executors = SimpleNamespace(size=lambda: 1, apply=lambda number: driver)
    spark = SimpleNamespace(
        isLocal=lambda: True,
        statusStore=lambda: SimpleNamespace(executorList=lambda only_active: executors),
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
        maxNumConcurrentTasks=lambda profile: 2,
    )
    java = SimpleNamespace(sc=lambda: spark)
    context = SimpleNamespace(master="local[2]", getConf=lambda: conf, _jsc=java)
    return SimpleNamespace(sparkContext=context, version="4.1.1")


def start(folder: Path, slots: int | hg.Scaling | None = None, **options: Any) -> AutoStart:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k bigint", []), name="in")
    rows.key_by("k").process(hg.Count(), name="op").to_memory("out")
    chosen = slots or hg.Scaling(max_slots=2)
    program = compile_flow(flow.graph())
    return resolve(program, two_cores(), checkpoint=str(folder), slots=chosen, **options)


@pytest.mark.parametrize(
    ("saved", "limits", "begins"), [(8, (1, 8), 2), (8, (1, 1), 1), (1, (1, 2), 1), (1, (2, 2), 2)]
)
def test_saved_slots_are_taken_as_far_as_there_is_room(tmp_path, saved, limits, begins):
    """Eight slots of a larger machine were taken, whatever the limits said."""
    save_tuning(Checkpoint(str(tmp_path)).storage, SavedTuning(calibration(), tuned(saved)))

    found = start(tmp_path, hg.Scaling(*limits))

    assert found.slots == begins
    assert found.rows_per_epoch == 1_000
    assert found.facts().calibrated == SAVED


def test_saved_instances_and_batches_are_what_a_start_begins_with(tmp_path):
    saved = tuned(2, batch_rows={"in->op": 500, "in->gone": 7}, instances={"op": 1})
    save_tuning(Checkpoint(str(tmp_path)).storage, SavedTuning(calibration(), saved))

    found = start(tmp_path, hg.Scaling(max_slots=2))

    assert found.instances == {"op": 1} and found.batch_rows == {"in->op": 500}
    given = start(tmp_path, hg.Scaling(max_slots=2), batch_rows={"in->op": 9})
    assert given.batch_rows == {}  # the user's word stands
    assert start(tmp_path, hg.Scaling(max_slots=2), batch_rows=9).batch_rows == {}
    assert start(tmp_path, 2).instances == {}  # so does it about slots: all operators are in them


def test_slots_that_are_given_are_not_asked_to_fit(tmp_path):
    found = start(tmp_path, 8, calibration=calibration())

    assert found.slots == 8


def probing() -> tuple[list[str], dict[str, Any]]:
    said: list[str] = []
    probe = {"probe": lambda: calibration("probed now"), "say": said.append, "elastic": False}
    return said, probe


def test_costs_of_the_same_engine_are_not_measured_again():
    said, probe = probing()
    saved = SavedTuning(calibration(), tuned(1))

    assert known_costs(saved, None, HERE, **probe) == (saved, SAVED)
    unnamed = SavedTuning(calibration(""), None)
    assert known_costs(unnamed, None, HERE, **probe) == (unnamed, SAVED)
    assert said == []


@pytest.mark.parametrize(
    "engine",
    ["Spark 4.1.1, local, 8 cores", "Spark 4.2.0, local, 2 cores", "Spark 4.1.1, spark, 2 cores"],
)
def test_costs_of_another_engine_are_not_taken_and_that_is_said(engine):
    said, probe = probing()

    found, why = known_costs(SavedTuning(calibration(engine), tuned(1)), None, HERE, **probe)

    assert found == SavedTuning(TYPICAL, tuned(1))
    assert why == f"typical costs: the checkpoint's costs are those of {engine}, this is {HERE}"
    assert said == []


def test_where_executors_come_and_go_other_cores_are_the_same_engine():
    _, probe = probing()
    saved = SavedTuning(calibration("Spark 4.1.1, spark, 2 cores"), None)
    now = "Spark 4.1.1, spark, 6 cores"

    assert known_costs(saved, None, now, **probe | {"elastic": True})[1] == SAVED
    assert known_costs(saved, None, now, **probe)[1].startswith("typical costs")


def test_a_first_start_measures_nothing_and_keeps_nothing(tmp_path):
    """So that it is quick; and costs that nobody measured are not taken for measured ones later."""
    for _ in range(2):
        found = start(tmp_path)

        assert found.saved == SavedTuning(TYPICAL)
        assert found.calibrated == "typical costs: none were measured with this checkpoint"
        assert load_tuning(found.storage) is None
    save_tuning(found.storage, SavedTuning(TYPICAL, tuned(1)))

    assert start(tmp_path).calibrated == found.calibrated and start(tmp_path).slots == 1


def test_a_start_that_chooses_nothing_still_knows_what_messages_cost(tmp_path):
    """With slots given it took 150 us a message and 3 ns a byte, whatever had been measured."""
    place = Checkpoint(str(tmp_path)).storage
    assert costs_of(two_cores(), place) == TYPICAL.costs

    save_tuning(place, SavedTuning(calibration("Spark 4.1.1, local, 8 cores")))
    assert costs_of(two_cores(), place) == TYPICAL.costs
    save_tuning(place, SavedTuning(calibration()))
    assert costs_of(two_cores(), place) == COSTS


def test_who_shares_batches_and_who_chooses_slots_begin_with_the_same_costs():
    typical = TYPICAL.costs

    for batching in (Batching(), Settings(slots=1)):
        assert (batching.message_s, batching.byte_s) == (typical.message_s, typical.byte_s)


def test_a_probe_is_made_if_asked_for_and_says_that_it_takes_a_while():
    said, probe = probing()

    found, why = known_costs(SavedTuning(calibration(), tuned(1)), "probe", HERE, **probe)

    assert found == SavedTuning(calibration("probed now"), tuned(1))
    assert why == "probed, as asked for"
    assert len(said) == 1 and "a dozen small jobs" in said[0]


@pytest.mark.parametrize("of_tune", [False, True], ids=["calibrate", "tune"])
def test_costs_come_from_a_file_and_stay_with_the_checkpoint(tmp_path, of_tune):
    told = calibration("Spark 4.0.0, local, 1 cores")
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(asdict(SavedTuning(told) if of_tune else told)))

    found = start(tmp_path / "ck", calibration=file)

    assert found.saved.calibration == told
    assert found.calibrated == f"given, made on {told.engine}; this is {HERE}"
    assert load_tuning(found.storage) == found.saved


def test_a_file_without_costs_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "costs.json").write_text("[]")

    with pytest.raises(DeclarationError, match="headgate calibrate --out"):
        start(tmp_path / "ck", calibration=str(tmp_path / "costs.json"))
    with pytest.raises(DeclarationError, match="holds no costs"):
        start(tmp_path / "ck", calibration=tmp_path / "nowhere.json")
