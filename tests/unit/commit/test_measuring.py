"""Rows are measured by value while that teaches something, and seldom where it would cost much."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.commit.facts import CostFacts
from headgate.commit.measuring import ENOUGH_ROWS, EPOCHS_MAX, WORK_MS, Measuring
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix

SHAPE = SketchShape.within(0.0002, 0.05)


def model_of(*rows: float, values: int = 1) -> CostModel:
    """Instances that have told of so many rows each, evenly of so many values."""
    sketches = [CostSketch(SHAPE) for _ in rows]
    h = mix(np.arange(values, dtype=np.uint64))
    for sketch, count in zip(sketches, rows, strict=True):
        if count:
            sketch.update(h, np.full(values, count / values), np.full(values, count / values))
    return CostModel.of(sketches)


def facts_of(expected: float, spent: float, rows: int = 10, slots: int = 2) -> CostFacts:
    """An epoch in which every slot did alike."""
    return CostFacts((expected,) * slots, (spent,) * slots, (rows,) * slots)


KNOWN = model_of(30, 30, values=2)


def epochs(chosen: Measuring, count: int, ms: float, model: CostModel = KNOWN) -> list[int]:
    """Which of so many steady epochs are measured."""
    found = []
    for epoch in range(count):
        measured = chosen.is_due(model)
        found += [epoch] if measured else []
        chosen.observe(facts_of(ms, ms), measured=measured, unsettled=False)
    return found


@pytest.mark.parametrize("little", [model_of(0, 0), model_of(30, 20, values=10)])
def test_every_epoch_is_measured_until_enough_is_known(little):
    assert Measuring().is_due(None)
    assert epochs(Measuring(), 5, 1.0, little) == [0, 1, 2, 3, 4]


def test_of_more_values_than_can_be_known_a_number_of_rows_is_enough():
    values = 2 * ENOUGH_ROWS
    assert epochs(Measuring(), 2, 1.0, model_of(ENOUGH_ROWS - 9, values=values)) == [0, 1]
    assert epochs(Measuring(), 2, 1.0, model_of(ENOUGH_ROWS, values=values)) == [0]


def test_an_instance_that_is_new_does_not_make_the_others_start_over():
    assert epochs(Measuring(), 5, 1.0, model_of(60, 0, values=2)) == [0]


@pytest.mark.parametrize(
    ("work_ms", "every"), [(1.0, EPOCHS_MAX), (WORK_MS / 4, 4), (WORK_MS * 2, 1)]
)
def test_the_more_work_an_epoch_has_the_more_often_it_is_measured(work_ms, every):
    measured = epochs(Measuring(), 3 * EPOCHS_MAX, work_ms)
    assert measured == list(range(0, 3 * EPOCHS_MAX, every))


def test_the_papers_instances_always_measure():
    assert epochs(Measuring(always=True), 4, 1.0) == [0, 1, 2, 3]


def test_times_that_are_not_as_expected_are_looked_at_in_the_next_epoch():
    chosen = Measuring()
    assert epochs(chosen, 3, 1.0) == [0]
    chosen.observe(facts_of(100.0, 150.0, rows=20), measured=False, unsettled=False)
    assert not chosen.is_due(KNOWN), "few rows often take more or less"
    uneven = CostFacts((100.0, 100.0), (140.0, 60.0), (200, 200))
    for odd in (facts_of(100.0, 150.0, rows=200), facts_of(100.0, 60.0, rows=200), uneven):
        chosen.observe(odd, measured=False, unsettled=False)
        assert chosen.is_due(KNOWN)
        chosen.observe(facts_of(1.0, 1.0), measured=True, unsettled=False)
        assert not chosen.is_due(KNOWN)


def test_an_instance_that_is_unsettled_is_measured_on():
    chosen = Measuring()
    assert epochs(chosen, 2, 1.0) == [0]
    chosen.observe(facts_of(1.0, 1.0), measured=True, unsettled=True)
    assert chosen.is_due(KNOWN)


def test_epochs_without_rows_are_not_counted():
    chosen = Measuring()
    chosen.observe(facts_of(0.0, 0.0, rows=0), measured=True, unsettled=False)
    assert chosen.is_due(KNOWN), "nothing was measured"
    assert epochs(chosen, 2, 1.0) == [0]
    for _ in range(2 * EPOCHS_MAX):
        chosen.observe(facts_of(0.0, 0.0, rows=0), measured=False, unsettled=False)
    assert not chosen.is_due(KNOWN)
