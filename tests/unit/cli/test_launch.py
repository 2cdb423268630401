"""Finding the flow that a user names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headgate.cli.console import speaker
from headgate.cli.launch import flow_of, load_target, session
from headgate.cli.main import app
from headgate.errors import DeclarationError
from headgate.flow import Flow
from headgate.slot.compile import compile_flow

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))
APP = """
import headgate as hg
flow = hg.Flow("made_here")
def make_flow(spark):
    return hg.Flow(f"made_with_{spark}")
number = 7
"""


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    path = tmp_path / "some_app.py"
    path.write_text(APP)
    return path


def test_a_flow_is_found_by_name_or_by_default(app_file: Path) -> None:
    assert load_target(f"{app_file}:flow").name == "made_here"
    assert load_target(str(app_file)).name == "made_here"


def test_a_function_is_called_with_the_session(app_file: Path) -> None:
    made = flow_of(load_target(f"{app_file}:make_flow"), "a_session")

    assert made.name == "made_with_a_session"


def test_anything_else_is_refused(app_file: Path) -> None:
    with pytest.raises(DeclarationError, match="that is a int"):
        flow_of(load_target(f"{app_file}:number"), None)


def test_a_wrong_name_is_answered_with_the_right_ones(app_file: Path) -> None:
    with pytest.raises(DeclarationError, match="it has flow, make_flow"):
        load_target(f"{app_file}:flaw")


@pytest.mark.parametrize("target", ["nowhere.py:flow", "no_such_package.app:flow"])
def test_a_missing_file_or_module_ends_before_spark_starts(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")

    result = CliRunner().invoke(app, ["run", target])

    assert result.exit_code == 1
    assert "there is no" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--conf", "nonsense"], "KEY=VALUE"),
        (["--once", "--every", "1 second"], "exclude each other"),
    ],
)
def test_wrong_options_are_told(app_file: Path, options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["run", str(app_file), *options])

    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_declares_a_flow_that_compiles(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    flow = load_target(f"{path}:flow")

    assert isinstance(flow, Flow)
    program = compile_flow(flow.graph())
    assert bool(program.stateful) == (path.stem != "sentiment")  # fifteen steps without state
    assert program.sinks


def test_a_master_given_by_name_is_stronger_than_one_among_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, str]] = []

    def local_session(name: str, *, conf: dict[str, str], log_file: Path) -> SimpleNamespace:
        asked.append(conf)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr("headgate.runtime.session.local_session", local_session)
    with session(speaker(), "test", ["spark.master=local[1]", "a=b"], "local[2]"):
        pass

    assert asked == [{"spark.master": "local[2]", "a": "b"}]
