"""`headgate calibrate` and `headgate tune`, as far as they go without a JVM; and what is chosen.

tests/spark/test_tuning_commands.py runs both to their end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headgate.cli.main import app
from headgate.cli.tune import choose
from headgate.control.tuner import GROWTH
from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Step, Stream
from headgate.planner.tuning.epochs import EpochModel

COSTS = EngineCosts(1e-4, 5e-9, task_s=0.05, epoch_s=0.2, message_bytes_max=8 << 20)


def model(ppt_s: float) -> EpochModel:
    source = Step("in", source_rate=1.0, at_source=True)
    flow = FlowModel((source, Step("agg", ppt_s)), (Stream("in", "agg"),))
    return EpochModel(flow, COSTS, levels=1, cores=2)


def told(*words: str) -> str:
    """What an error says, without the panel's frame and line breaks."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 1, result.output
    return " ".join(result.output.replace("│", " ").split())


@given(
    ppt_s=st.floats(1e-7, 1e-3),
    largest=st.integers(1, 10_000_000),
    rows_max=st.none() | st.integers(1, 10_000_000),
    latency_s=st.none() | st.floats(0.1, 100.0),
)
def test_no_epoch_is_far_from_what_was_measured(
    ppt_s: float, largest: int, rows_max: int | None, latency_s: float | None
) -> None:
    free = choose(model(ppt_s), None, latency_s, None, None, 10**12)
    tuned = choose(model(ppt_s), None, latency_s, None, rows_max, largest)

    bound = min(GROWTH * largest, rows_max or GROWTH * largest)
    rows = tuned.settings.rows_per_epoch
    assert rows <= bound
    if free.settings.rows_per_epoch <= bound:
        assert tuned == free


def test_a_bound_that_was_met_is_explained() -> None:
    grown = choose(model(1e-5), None, None, None, None, 1_000)
    assert grown.settings.rows_per_epoch == GROWTH * 1_000
    assert "8 times the largest epoch of the probe (1,000)" in grown.why[-1]
    assert "alone the model would choose" in grown.why[-1]

    asked = choose(model(1e-5), None, None, None, 5_000, 1_000)
    assert asked.settings.rows_per_epoch == 5_000
    assert "--rows-max was met" in asked.why[-1]


@pytest.mark.parametrize("words", [(), ("--rate", "5"), ("--max-slots", "1")])
def test_costs_that_cannot_be_read_say_how_to_make_them(tmp_path: Path, words: tuple[str]) -> None:
    broken = tmp_path / "costs.json"
    broken.write_text('{"costs": {}}')

    for path in (tmp_path / "none.json", broken):
        said = told("tune", "app.py", "--costs", str(path), *words)
        assert "holds no costs" in said and "headgate calibrate --out" in said


def test_a_flow_that_is_not_there_is_an_error_before_spark_starts(tmp_path: Path) -> None:
    assert "there is no file" in told("tune", str(tmp_path / "none.py"))
    assert "KEY=VALUE" in told("calibrate", "--conf", "nonsense")


def test_help_tells_what_bounds_an_epoch() -> None:
    said = CliRunner().invoke(app, ["tune", "--help"]).output

    assert "--rows-max" in said and "--wait-s" in said
    assert "--checkpoint" in CliRunner().invoke(app, ["calibrate", "--help"]).output
