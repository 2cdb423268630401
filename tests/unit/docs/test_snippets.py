"""The documents cannot rot: their Python runs, their links lead somewhere, their lists are whole.

A ```python block runs, in a folder of its own, after the blocks above it on the same page. A
```python no-run block needs Spark or a service: it must parse, and every headgate name in it exist.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import headgate
from headgate import errors, testing
from headgate.cli.main import app
from headgate.commit.faults import CRASH_POINTS

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^    headgate (.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PATH = re.compile(r"`((?:src|lab|tests|docs|benchmarks|scripts)/[\w/.-]+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *, runs: bool) -> list[tuple[int, str]]:
    """Line number and code of the page's blocks that run, or of those that do not."""
    text = page.read_text(encoding="utf-8")
    found = [(m[1].strip(), text[: m.start(2)].count("\n"), m[2]) for m in _BLOCK.finditer(text)]
    return [(line, code) for label, line, code in found if (label != "no-run") == runs]


def pages_with(*, runs: bool) -> list[Path]:
    return [page for page in PAGES if blocks(page, runs=runs)]


@pytest.mark.parametrize("page", pages_with(runs=True), ids=name_of)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippet")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pickle finds its classes

    for line, code in blocks(page, runs=True):
        exec(compile("\n" * line + code, name_of(page), "exec", dont_inherit=True), vars(module))

    if page.name == "recipes.md":  # its commands look at what its flows have left
        commands = [shlex.split(line) for line in _COMMAND.findall(page.read_text("utf-8"))]
        assert [words[0] for words in commands] == ["report", "inspect"]
        for words in commands:
            told = CliRunner().invoke(app, words)
            assert told.exit_code == 0, told.output
        assert "3000000570" in told.output.replace(",", "")


@pytest.mark.parametrize("page", pages_with(runs=False), ids=name_of)
def test_python_that_is_not_run_names_what_exists(page: Path) -> None:
    for line, code in blocks(page, runs=False):
        for node in ast.walk(ast.parse("\n" * line + code, name_of(page))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "hg" or hasattr(headgate, node.attr), f"hg.{node.attr}"
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("headgate"):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in _LINK.findall(text):
        if "://" in target:
            continue
        place, _, part = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        assert file.exists(), f"{target} is not there"
        if part:
            headings = map(anchor_of, _HEADING.findall(file.read_text(encoding="utf-8")))
            assert part in headings, f"{target} has no such heading"
    for path in _PATH.findall(text):
        if not path.startswith("docs/figures"):
            assert (ROOT / path).exists(), f"{path} is not there"


def test_the_error_page_tells_of_every_error() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    family = [n for n, v in vars(errors).items() if getattr(v, "__module__", "") == errors.__name__]

    assert [n for n in family if f"`{n}`" not in page and not n.startswith("_")] == []


def test_the_journal_page_tells_of_every_field() -> None:
    page = (ROOT / "docs/reference/journal.md").read_text(encoding="utf-8")
    flow = headgate.Flow("page")
    rows = flow.source(testing.ListSource("k bigint, j bigint", [[{"k": 1, "j": 1}]]))
    first = rows.key_by("k").process(headgate.Count(emit="rows"), name="by_k")
    first.key_by("j").process(headgate.Count(), name="by_j").to_memory("out")
    record = testing.run(flow).records[0]
    fields = {*record, *next(iter(record["edges"].values()))}

    assert sorted(field for field in fields if f"`{field}`" not in page) == []


def test_the_guide_tells_of_every_public_name() -> None:
    guide = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/guide").glob("*.md"))

    assert [n for n in headgate.__all__ if not re.search(rf"\b{n}\b", guide)] == []
    assert [n for n in testing.__all__ if not re.search(rf"\b{n}\b", guide)] == []


def test_the_architecture_tells_of_every_crash_point() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

    assert [point for point in CRASH_POINTS if f"`{point}`" not in page] == []
