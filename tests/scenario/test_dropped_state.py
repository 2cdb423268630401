"""State that was dropped is gone with the first commit, and not before, wherever a driver dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.commit import faults
from headgate.commit.faults import CRASH_POINTS
from headgate.errors import DeclarationError, IncompatibleFlow, UnknownName
from headgate.testing import ListSource, LocalRun, run

ROWS = [{"k": i % 3, "v": i} for i in range(30)]
POINTS = [point for point in CRASH_POINTS if point != "file-published"]  # no Parquet sink here
COMMITTED = CRASH_POINTS.index("manifest-written")


class Killed(BaseException):
    """The driver is dead."""


def flow(name: str, operator: Any, epochs: int) -> hg.Flow:
    made = hg.Flow("f")
    rows = made.source(ListSource("k bigint, v bigint", [ROWS] * epochs), name="rows")
    rows.key_by("k").process(operator, name=name).to_memory("out")
    return made


def sums(done: LocalRun, operator: str = "x") -> dict[int, Any]:
    return {row["k"]: row["sum"] for row in done.state(operator)}


@pytest.mark.parametrize("point", POINTS)
def test_a_name_used_again_never_meets_the_state_of_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """x sums v; x is dropped, and the driver dies somewhere in the next epoch; x sums k."""

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == (point, 1):
            raise Killed

    run(flow("x", hg.Sum("v"), 1), checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Killed):
            run(flow("y", hg.Count(), 2), checkpoint=tmp_path, drop_state=["x"])

    if CRASH_POINTS.index(point) < COMMITTED:
        with pytest.raises(IncompatibleFlow, match="settings of 'x'"):
            run(flow("x", hg.Sum("k"), 3), checkpoint=tmp_path, drop_state=["y"])
        done = run(flow("x", hg.Sum("v"), 2), checkpoint=tmp_path)
        assert sums(done) == {k: 2 * sum(range(k, 30, 3)) for k in range(3)}
    else:
        done = run(flow("x", hg.Sum("k"), 3), checkpoint=tmp_path, drop_state=["y"])
        assert sums(done) == {k: 10 * k for k in range(3)}


def test_names_that_nothing_is_stored_under_are_refused(tmp_path: Path) -> None:
    run(flow("x", hg.Sum("v"), 1), checkpoint=tmp_path)

    for drop in ("x", None):
        with pytest.raises(DeclarationError, match="list of names"):
            run(flow("y", hg.Count(), 2), checkpoint=tmp_path, drop_state=drop)
    with pytest.raises(UnknownName, match="no such operator or sink; it holds x, out") as caught:
        run(flow("x", hg.Sum("v"), 2), checkpoint=tmp_path, drop_state=["z"])
    assert caught.value.name == "z"
    for operator in (hg.Sum("v"), hg.Sum("k")):
        with pytest.raises(DeclarationError, match="'x', which the flow still has"):
            run(flow("x", operator, 2), checkpoint=tmp_path, drop_state=["x"])

    done = run(flow("x", hg.Sum("v"), 2), checkpoint=tmp_path)
    assert sums(done) == {k: 2 * sum(range(k, 30, 3)) for k in range(3)}


def test_a_start_may_be_repeated_with_the_names_it_has_dropped(tmp_path: Path) -> None:
    run(flow("x", hg.Sum("v"), 1), checkpoint=tmp_path, drop_state=["older"])

    for epochs in (2, 3, 4):
        names = ["x", "out", "older"]
        done = run(flow("y", hg.Sum("k"), epochs), checkpoint=tmp_path, drop_state=names)

    assert sums(done, "y") == {k: 30 * k for k in range(3)}
