"""`headgate run`: what its options stand for, and what does not go together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.console import write_json
from headgate.cli.launch import kept_in
from headgate.cli.main import app
from headgate.cli.run import begin_with, manager_of, slots_of, tuning_lines
from headgate.cli.tune import keep_costs
from headgate.commit.facts import TuningFacts
from headgate.control.settings import slots_for
from headgate.control.tuner import SavedTuning, load_tuning, read_calibration, save_tuning
from headgate.errors import UnknownSlot
from headgate.planner.tuning.cost_model import Calibration, EngineCosts
from headgate.planner.tuning.epochs import EpochPrediction, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs
from headgate.routing.table import save_tables
from headgate.state.storage import Storage


def test_slots_are_a_number_or_limits_or_left_open() -> None:
    assert slots_of(3, None, None) == 3
    assert slots_of(None, 2, 6) == hg.Scaling(min_slots=2, max_slots=6)
    assert slots_of(None, None, 6) == hg.Scaling(max_slots=6)
    assert slots_of(None, 2, None) == hg.Scaling(min_slots=2)
    assert slots_of(None, None, None) is None


def test_a_flow_is_managed_unless_it_is_said_otherwise() -> None:
    assert manager_of(True, None) == hg.Manager()
    assert manager_of(True, "hash") == hg.Manager("hash")
    assert manager_of(False, None) is None


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("--slots", "4", "--max-slots", "4"), "limits within which it is chosen: keep one"),
        (("--min-slots", "2", "--tables", "TABLES"), "their number is to be chosen: keep one"),
        (("--slots", "2", "--tables", "TABLES"), "run 6 slots, or analyse again with --slots 2"),
        (("--no-manager", "--planner", "hash"), "leave it out, or --planner hash"),
    ],
)
def test_options_that_do_not_go_together_say_what_does(
    tmp_path: Path, words: tuple[str, ...], way_out: str
) -> None:
    save_tables({"a": hg.hash_table(6)}, tmp_path)
    given = [str(tmp_path) if word == "TABLES" else word for word in words]

    told = CliRunner().invoke(app, ["run", "none.py", *given])

    assert told.exit_code == 1
    assert way_out in " ".join(told.output.replace("│", " ").split())


def test_rows_per_epoch_are_positive() -> None:
    assert CliRunner().invoke(app, ["run", "x.py", "--rows-per-epoch", "0"]).exit_code == 2


def test_slots_come_from_the_tables() -> None:
    assert slots_for(None, {}) == hg.Scaling()
    assert slots_for(None, {"a": hg.hash_table(6)}) == 6
    assert slots_for(6, {"a": hg.hash_table(6)}) == 6


def test_another_slots_for_names_both(tmp_path: Path) -> None:
    with pytest.raises(UnknownSlot, match=r"'b' is for 6 slots, the flow is to run 4"):
        slots_for(4, {"b": hg.hash_table(6)})
    with pytest.raises(UnknownSlot, match="'b' is for 5 slots"):
        slots_for(None, {"a": hg.hash_table(6), "b": hg.hash_table(5)})

    save_tables({"a": hg.hash_table(6)}, tmp_path)
    told = CliRunner().invoke(app, ["run", "x.py", "--slots", "4", "--tables", str(tmp_path)])
    assert told.exit_code == 1


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["run", "x.py", "--tables", str(tmp_path)])

    assert told.exit_code == 1


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
    write_json(kept_in("trends"), asdict(kept))

    said = begin_with(checkpoint, "trends")

    assert "artifacts/trends/tuning.json: 3 slots, 5,000 rows per epoch" in said
    assert load_tuning(checkpoint) == kept
    assert "measured as it runs" in begin_with(Storage.at(str(Path("other").resolve())), "posts")


def test_settings_of_the_checkpoint_come_first(checkpoint: Storage) -> None:
    write_json(kept_in("trends"), asdict(SavedTuning(costs(1e-4), settings(3))))
    known = SavedTuning(costs(2e-4), settings(1))
    save_tuning(checkpoint, known)

    assert "in its checkpoint: 1 slot, " in begin_with(checkpoint, "trends")
    assert load_tuning(checkpoint) == known


def test_costs_of_the_checkpoint_stay_with_settings_of_tune(checkpoint: Storage) -> None:
    keep_costs(checkpoint, costs(2e-4))
    assert "what the engine costs is in its checkpoint" in begin_with(checkpoint, "trends")
    write_json(kept_in("trends"), asdict(SavedTuning(costs(1e-4), settings(3))))

    begin_with(checkpoint, "trends")

    assert load_tuning(checkpoint) == SavedTuning(costs(2e-4), settings(3))


def test_new_costs_leave_the_settings_of_a_checkpoint(checkpoint: Storage) -> None:
    save_tuning(checkpoint, SavedTuning(costs(1e-4), settings(3)))

    keep_costs(checkpoint, costs(9e-4))

    assert load_tuning(checkpoint) == SavedTuning(costs(9e-4), settings(3))


def test_costs_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    write_json(tmp_path / "costs.json", asdict(costs(1e-4)))

    assert read_calibration(tmp_path / "costs.json") == costs(1e-4)


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
