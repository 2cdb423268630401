"""Compiled once is compiled for what comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headgate.planner import incremental_kernel, refine
from headgate.planner.incremental_placing import compile_kernels

TESTS = Path(__file__).parents[2]
A_PLAN_OF_UNITS = """
from headgate.planner.allocation import annealing, greedy
from headgate.planner.allocation.integrated import compile_allocation_kernels

def compiled():
    kernels = greedy._drain, greedy._even, greedy._even_within, annealing.anneal
    return [kernel.signatures for kernel in kernels]

compile_allocation_kernels()
before = compiled()
assert all(before), before

from unit.control.test_instances import units_of_two
from unit.control.test_units import hot, managed
managed(1000)
managed(1000, "headgate")
hot("milp")
units_of_two("headgate", {"a": (0, 2), "b": (1, 2)}).run(3)
assert compiled() == before, compiled()
"""


def test_the_kernels_of_a_plan_are_compiled() -> None:
    compile_kernels()

    keys = incremental_kernel.place_keys, incremental_kernel.take_pairs, incremental_kernel.crowding
    for kernel in (*keys, refine._exchanges, refine._stay):
        assert kernel.signatures, f"{kernel.__name__} is not compiled yet"


def test_no_kernel_of_units_is_compiled_while_a_flow_plans() -> None:
    """In a process of its own: here others have planned already."""
    subprocess.run([sys.executable, "-c", A_PLAN_OF_UNITS], check=True, cwd=TESTS)
