"""What `import headgate` offers, and what it does not drag in."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
import headgate.operator
import headgate.testing

REFERENCE = Path(__file__).parents[2] / "scripts" / "reference.py"
HEAVY = {"numba", "llvmlite", "scipy", "pymetis", "matplotlib", "typer"}


def test_exported_names_are_there_sorted_and_documented() -> None:
    for module in (headgate, headgate.testing):
        assert list(module.__all__) == sorted(module.__all__, key=_order)
        for name in module.__all__:
            assert getattr(module, name).__doc__, name


def test_the_api_reference_has_every_public_name_with_words_of_its_own() -> None:
    """What `make docs` writes; what a dataclass says of itself does not count."""
    pytest.importorskip("pdoc")
    for module in runpy.run_path(str(REFERENCE))["public_modules"]():
        told = {n: m.docstring for n, m in module.members.items() if not n.startswith("_")}

        assert set(told) >= set(getattr(module.obj, "__all__", ()))
        assert [name for name, docstring in told.items() if not docstring] == []


def test_every_built_in_operator_is_exported() -> None:
    built_in = {
        name
        for name, found in vars(headgate.operator).items()
        if isinstance(found, type) and issubclass(found, headgate.StatefulOperator)
    }

    assert built_in <= set(headgate.__all__)


def test_declaring_and_testing_a_flow_needs_no_spark() -> None:
    code = "import sys, headgate, headgate.testing; sys.exit('pyspark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "used",
    [
        "import headgate.runtime.worker",  # an executor
        "import headgate; [getattr(headgate, name) for name in headgate.__all__]",
        "import headgate.testing, headgate.runtime.start, headgate.runtime.query",
    ],
)
def test_who_neither_plans_nor_draws_loads_no_solver_compiler_or_plotting(used: str) -> None:
    """In an interpreter of its own; `import headgate` alone is the least of these."""
    code = f"{used}; import sys; print(*({HEAVY} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert found.stdout.split() == []


def test_importing_headgate_loads_none_of_its_rooms() -> None:
    code = "import headgate, sys; print(*(m for m in sys.modules if m.startswith('headgate.')))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert found.stdout.split() == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cuont'"):
        _ = headgate.Cuont  # type: ignore[attr-defined]

    assert set(headgate.__all__) <= set(dir(headgate))


def _order(name: str) -> tuple[bool, str]:
    return name[0].islower(), name
