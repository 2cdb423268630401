"""`headgate calibrate`, `tune` and `run`, one after the other on real sessions.

A command ends the session that it has used, so this module begins without one and leaves none.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.spark.feeding import write_epoch
from tests.spark.session import LOCAL, session_on
from typer.testing import CliRunner

from headgate.cli.main import app
from headgate.control.tuner import GROWTH, load_tuning
from headgate.runtime.auto import cores_of
from headgate.state.storage import Storage

APP = """
import headgate as hg

flow = hg.Flow("commands")
rows = flow.source(hg.Reader("parquet", {{}}, "k bigint", {folder!r}), name="in")
rows.key_by("k").process(hg.Count(), name="count").to_parquet({out!r}, name="out")
"""
FILES, ROWS = 6, 10
COSTS = {"message_s": 1e-4, "byte_s": 5e-9, "task_s": 0.02, "epoch_s": 0.05}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    session_on(LOCAL).stop()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    written = APP.format(folder=str(tmp_path / "in"), out=str(tmp_path / "out"))
    (tmp_path / "app.py").write_text(written)
    return tmp_path


def said(*words: str, exit_code: int = 0) -> str:
    """Output as one line, without the frames of panels."""
    result = CliRunner().invoke(app, [*words, "--master", LOCAL])
    assert result.exit_code == exit_code, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_a_flow_is_calibrated_for_tuned_and_run_as_tuned(place: Path) -> None:
    for epoch in range(FILES):
        write_epoch(place / "in", "k bigint", epoch, [{"k": k} for k in range(ROWS)])
    checkpoint = str(place / "ck")

    probing = said(
        *("calibrate", "--quick", "--checkpoint", checkpoint, "--out", "costs.json"),
        *("--conf", "spark.default.parallelism=64"),
    )
    assert "probe 18 of 18: 1 level, 2 slots" in probing and "costs.json" in probing
    probes = json.loads(Path("costs.json").read_text())["probes"]
    assert {probe["cores"] for probe in probes} == {2}
    assert max(probe["slots"] for probe in probes) == 4
    known = load_tuning(Storage.at(checkpoint))
    assert known is not None and known.tuned is None

    tuning = said("tune", "app.py", "--costs", "costs.json", "--epochs", "2")
    assert f"epoch 1 of 1: {FILES * ROWS} rows in" in tuning
    assert "Bottleneck:" in tuning and "headgate run app.py" in tuning
    assert not Path("out").exists()
    kept = load_tuning(Storage.at(str(place / "artifacts/commands")), plain=True)
    assert kept is not None and kept.tuned is not None
    settings = kept.tuned.settings
    assert settings.rows_per_epoch <= GROWTH * FILES * ROWS
    assert f"--slots {settings.slots} --rows-per-epoch {settings.rows_per_epoch}" in tuning

    running = said("run", "app.py", "--once", "--checkpoint", checkpoint)
    assert f"begins with artifacts/commands/tuning.json: {settings.slots} slot" in running
    assert f"{FILES * ROWS} rows" in running and Path("out").exists()


def test_a_source_without_rows_ends_the_probe_with_what_to_do(place: Path) -> None:
    Path("costs.json").write_text(json.dumps({"costs": COSTS, "probes": [], "error": 0.3}))

    told = said("tune", "app.py", "--costs", "costs.json", "--wait-s", "1", exit_code=1)

    assert "no rows have come for" in told and "feed the flow and try again" in told
    assert "headgate calibrate again" in told  # costs that are so far off are doubted


def test_cores_are_those_of_the_master_by_task() -> None:
    session_on(LOCAL).stop()
    wide = {"spark.default.parallelism": "64", "spark.task.cpus": "2"}
    spark = session_on(LOCAL, wide)
    try:
        assert cores_of(spark) == 1
    finally:
        spark.stop()
