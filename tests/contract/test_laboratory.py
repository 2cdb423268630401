"""Product and laboratory: one never sees the other but by name, and no name is lost."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoints
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headgate import Manager
from headgate.cli.main import app
from headgate.errors import DeclarationError, HeadgateError
from headgate.offline.replay_planners import ReplayOptions, make_planner
from headgate.planner import registry
from headgate.planner.allocation.plan import make_allocator
from headgate.planner.placing import Task, make_placing

ROOT = Path(__file__).parents[2]
TASK = Task(("a", "b"), (("a", "b"),), 2, 1.05, 100, 100, frozenset(), 5, 0)
BEFORE = {
    "keys": ("headgate", "online", "offline", "worst-case", "hash"),
    "units": ("headgate", "milp", "albic", "flux", "cola", "hash"),
    "replay": ("hash", "offline", "online", "online-kway", "headgate", "oracle", "worst-case"),
}
"""The names of planners when all were in one distribution."""


@pytest.fixture
def no_laboratory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where only `headgate` is installed."""
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints())
    registry._points.cache_clear()
    yield
    registry._points.cache_clear()


def test_no_module_of_the_product_imports_the_laboratory() -> None:
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(str(name).startswith("headgate_lab") for name in names), file


@pytest.mark.parametrize("name", BEFORE["keys"])
def test_a_planner_of_keys_is_reached_by_its_name(name: str) -> None:
    assert not Manager(name).places_units
    assert make_placing(name, TASK).rows_lately("a", np.empty(0, np.uint64)).size == 0


@pytest.mark.parametrize("name", BEFORE["units"])
def test_a_planner_of_units_is_reached_by_its_name(name: str) -> None:
    assert make_allocator(name).name == name


@pytest.mark.parametrize("name", ["milp", "albic"])
def test_a_manager_of_units_is_reached_by_its_name(name: str) -> None:
    assert Manager(name).places_units


@pytest.mark.parametrize("name", BEFORE["replay"])
def test_a_planner_of_replays_is_reached_by_its_name(name: str) -> None:
    assert callable(make_planner(ReplayOptions(name, 10, 10)).epoch)


def test_the_names_known_to_be_the_laboratorys_are_those_it_registers() -> None:
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = {k.rpartition(".")[2]: tuple(sorted(v)) for k, v in project["entry-points"].items()}

    assert told == dict(registry.LAB)


@pytest.mark.usefixtures("no_laboratory")
def test_without_the_laboratory_its_planners_are_refused_with_what_to_install() -> None:
    with pytest.raises(DeclarationError, match=r"'albic' comes with .*pip install headgate-lab"):
        Manager("albic")
    with pytest.raises(HeadgateError, match=r"'online' comes with .*take one of headgate, hash"):
        make_placing("online", TASK)
    with pytest.raises(HeadgateError, match=r"pip install headgate-lab, or take one of headgate"):
        make_allocator("flux")
    with pytest.raises(HeadgateError, match="pip install headgate-lab"):
        make_planner(ReplayOptions("online-kway", 10, 10))


@pytest.mark.usefixtures("no_laboratory")
def test_without_the_laboratory_the_products_planners_are_there() -> None:
    assert not Manager("headgate").places_units and not Manager("hash").places_units
    assert make_allocator("headgate").name == "headgate"


def test_an_unknown_planner_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(DeclarationError, match="'best'; there are headgate, hash, albic"):
        Manager("best")


def test_without_matplotlib_a_report_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    refused = CliRunner().invoke(app, ["report", str(tmp_path)])

    assert refused.exit_code == 1
    assert 'pip install "headgate[figures]"' in " ".join(refused.output.replace("│", " ").split())
