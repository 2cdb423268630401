"""A start begins with its checkpoint's settings, else with those of `headgate tune`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.console import write_json
from headgate.cli.kept_tuning import begin_with, keep_costs, kept_in, load_costs, tuning_lines
from headgate.commit.facts import TuningFacts
from headgate.control.tuning_file import SavedTuning, load_tuning, save_tuning
from headgate.planner.tuning.calibration import Calibration
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epoch_model import EpochPrediction, EpochSettings
from headgate.planner.tuning.epochs import TunedEpochs
from headgate.state.storage import Storage


def costs(message_s: float) -> Calibration:
    return Calibration(EngineCosts(message_s, 5e-9), (), 0.0)


def settings(slots: int) -> TunedEpochs:
    chosen = EpochSettings(slots, 5_000, {})
    return TunedEpochs(chosen, EpochPrediction(1, 1, 1, 1, 1), {}, "count", ())


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.chdir(tmp_path)
    return Storage.at(str(tmp_path / "ck"))


def test_without_anything_the_engine_is_measured_as_it_runs(checkpoint: Storage) -> None:
    assert "measured as it runs" in begin_with(checkpoint, "trends")
    assert load_tuning(checkpoint) is None


def test_the_result_of_tune_is_taken_over(checkpoint: Storage) -> None:
    kept = SavedTuning(costs(1e-4), settings(3))
    write_json(kept_in("trends"), kept.to_json())

    said = begin_with(checkpoint, "trends")

    assert "artifacts/trends/tuning.json: 3 slots, 5,000 rows per epoch" in said
    assert load_tuning(checkpoint) == kept
    assert "measured as it runs" in begin_with(Storage.at(str(Path("other").resolve())), "posts")


def test_settings_of_the_checkpoint_come_first(checkpoint: Storage) -> None:
    write_json(kept_in("trends"), SavedTuning(costs(1e-4), settings(3)).to_json())
    known = SavedTuning(costs(2e-4), settings(1))
    save_tuning(checkpoint, known)

    assert "in its checkpoint: 1 slot, " in begin_with(checkpoint, "trends")
    assert load_tuning(checkpoint) == known


def test_costs_of_the_checkpoint_stay_with_settings_of_tune(checkpoint: Storage) -> None:
    keep_costs(checkpoint, costs(2e-4))
    assert "what the engine costs is in its checkpoint" in begin_with(checkpoint, "trends")
    write_json(kept_in("trends"), SavedTuning(costs(1e-4), settings(3)).to_json())

    begin_with(checkpoint, "trends")

    assert load_tuning(checkpoint) == SavedTuning(costs(2e-4), settings(3))


def test_new_costs_leave_the_settings_of_a_checkpoint(checkpoint: Storage) -> None:
    save_tuning(checkpoint, SavedTuning(costs(1e-4), settings(3)))

    keep_costs(checkpoint, costs(9e-4))

    assert load_tuning(checkpoint) == SavedTuning(costs(9e-4), settings(3))


def test_costs_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    write_json(tmp_path / "costs.json", costs(1e-4).to_json())

    assert load_costs(tmp_path / "costs.json") == costs(1e-4)


def test_changes_while_running_are_told_for_epochs_of_this_run() -> None:
    journal = [
        {"kind": "tuning", "epoch": 3, "slots": 2, "why": "too few"},
        {"kind": "epoch", "epoch": 16},
        {"kind": "tuning", "epoch": 16, "slots": 1, "why": "too many"},
        {"kind": "tuning", "epoch": 17, "rows_per_epoch": 9_000, "why_rows": "a backlog"},
        TuningFacts(18, settings=settings(2), note="2 slots did not come").to_json(),
    ]

    assert list(tuning_lines(journal, {16, 17, 18})) == [
        "tuned after epoch 16: 1 slots, too many",
        "tuned after epoch 17: 9,000 rows per epoch, a backlog",
        "tuned after epoch 18: 2 slots did not come",
    ]
