from __future__ import annotations

import json

import pytest

from headgate.demo import Machine
from headgate_lab.record import Measurement, side_by_side


class Clock:
    """Time that only moves when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, seconds: float) -> float:
        start = self.now
        self.now += seconds
        return self.now - start


def test_contestants_alternate_forward_and_backward():
    clock, called = Clock(), []

    def contestant(name, seconds):
        def turn():
            called.append(name)
            return clock.work(seconds)

        return turn

    names = {
        name: contestant(name, seconds) for name, seconds in zip("abc", (1, 2, 4), strict=True)
    }
    result = side_by_side(names, rounds=3)

    assert "".join(called) == "abccbaabc"
    assert result.order == (tuple("abc"), tuple("cba"), tuple("abc"))
    assert result.medians == {"a": 1.0, "b": 2.0, "c": 4.0}


def test_medians_come_from_the_raw_numbers_of_each_round():
    numbers = iter([1.0, 9.0, 2.0])
    result = side_by_side({"only": lambda: next(numbers)}, rounds=3)
    assert result.raw == {"only": (1.0, 9.0, 2.0)}
    assert result.medians == {"only": 2.0}
    assert result.measurement("only", rows=10).rows_per_second == 5.0


def test_progress_hears_of_every_run():
    heard = []
    side_by_side({"a": lambda: 1.0, "b": lambda: 2.0}, 2, lambda *report: heard.append(report))
    assert heard == [(0, "a", 1.0), (0, "b", 2.0), (1, "b", 2.0), (1, "a", 1.0)]


def test_no_rounds_is_refused():
    with pytest.raises(ValueError, match="at least one round"):
        side_by_side({}, rounds=0)


def test_a_measurement_survives_json_and_names_its_machine():
    measured = Measurement("tws", rows=100, seconds=(2.0, 1.0, 4.0))
    text = measured.to_json()
    assert Measurement.from_json(text) == measured
    assert json.loads(text)["rows_per_second"] == 50.0
    assert measured.machine == Machine.here()
    assert measured.machine.cores >= 1


def test_rotated_rounds_give_every_contestant_every_place() -> None:
    names = dict.fromkeys("abcde", float)
    order = side_by_side(names, rounds=5, rotate=True).order
    for place in range(5):
        assert {names[place] for names in order} == set(names)
