"""HiGHS through its own interface: SciPy's wrapper takes no start and tells no bound of a part.

One program at a time, on one thread, so that a result depends on the program, its start and the
limits alone. HiGHS looks at its clock between steps and may overstay a little.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csc_array

from headgate.arrays import F64, Bools

SECONDS_MIN = 0.01


@dataclass(frozen=True)
class Program:
    """Minimise cost x within bounds of columns and rows; `whole` columns are integers."""

    cost: F64
    lower: F64
    upper: F64
    whole: Bools
    matrix: csc_array
    row_lower: F64
    row_upper: F64


@dataclass(frozen=True)
class Found:
    """The best x that was seen (None: not one), and what no x can be below."""

    x: F64 | None
    bound: float


def minimise(
    program: Program, start: F64 | None, seconds: float, gap: float, branches_max: int | None = None
) -> Found:
    """Until the relative gap is closed, time is up, or so many branches have been looked at.

    `start` need not be feasible; if it is, what comes back is at least as good.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    options: dict[str, bool | int | float | str] = {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 0,
        "time_limit": max(seconds, SECONDS_MIN),
        "mip_rel_gap": gap,
        **({} if branches_max is None else {"mip_max_nodes": branches_max}),
    }
    for option, value in options.items():
        solver.setOptionValue(option, value)
    solver.passModel(_model(program))
    if start is not None:
        given = highspy.HighsSolution()
        given.col_value = start
        solver.setSolution(given)
    solver.run()
    info = solver.getInfo()
    bound = info.mip_dual_bound
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Found(None, -np.inf)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Found(None, bound if np.isfinite(bound) else -np.inf)
    x = np.asarray(solver.getSolution().col_value, np.float64)
    return Found(x, bound if np.isfinite(bound) else -np.inf)


def _model(program: Program) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = program.matrix.shape
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = program.matrix.indptr
    model.a_matrix_.index_ = program.matrix.indices
    model.a_matrix_.value_ = program.matrix.data
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    model.integrality_ = [kinds[int(integer)] for integer in program.whole]
    return model
