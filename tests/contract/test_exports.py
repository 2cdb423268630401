"""What `import headgate` offers, and what it does not drag in."""

from __future__ import annotations

import subprocess
import sys

import headgate
import headgate.operator
import headgate.testing


def test_exported_names_are_there_sorted_and_documented() -> None:
    for module in (headgate, headgate.testing):
        assert list(module.__all__) == sorted(module.__all__, key=_order)
        for name in module.__all__:
            assert getattr(module, name).__doc__, name


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


def _order(name: str) -> tuple[bool, str]:
    return name[0].islower(), name
