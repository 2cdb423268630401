"""Compiled once is compiled for what comes."""

from __future__ import annotations

from headgate.planner import incremental_kernel, refine
from headgate.planner.compiling import compile_kernels


def test_the_kernels_of_a_plan_are_compiled() -> None:
    compile_kernels()

    for kernel in (incremental_kernel.place_keys, incremental_kernel.take_pairs, refine._exchanges):
        assert kernel.signatures, f"{kernel.__name__} is not compiled yet"
