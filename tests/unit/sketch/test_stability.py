"""Sketches are sent once stable, seldom after that, and again when execution times change."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.routing.hashing import mix
from headgate.sketch.count_min import CostSketch, SketchShape
from headgate.sketch.stability import InstanceCosts, Phase, Stability, change, surprise

SHAPE = SketchShape.within(0.01, 0.05)


def windows(costs, count, rows=64, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        values = draw.integers(0, len(costs), rows)
        sketch = CostSketch(SHAPE)
        sketch.update(mix(values.astype(np.uint64)), costs[values])
        yield sketch


def test_it_waits_until_stable_and_then_sends_with_every_doubling_only():
    instance = InstanceCosts(SHAPE)
    sent = [instance.add(window) for window in windows(np.linspace(1, 70, 40), 200)]
    assert not sent[0], "one window says nothing about change"
    assert sum(sent) <= 9, "log2 of 200 windows, and the first"
    assert instance.phase is Phase.WATCHING
    assert instance.sent is not None and instance.sent.rows >= 64 * 100


@pytest.mark.parametrize(
    "after",
    [np.linspace(1, 70, 40) * 3, np.linspace(1, 70, 40)[::-1].copy()],
    ids=["three times slower", "other values are dear"],
)
def test_a_change_is_noticed_and_told_within_a_few_windows(after):
    instance = InstanceCosts(SHAPE)
    for window in windows(np.linspace(1, 70, 40), 40):
        instance.add(window)
    sent = [instance.add(window) for window in windows(after, 6, seed=1)]
    assert any(sent)
    assert instance.sent is not None
    times = instance.sent.estimate_ms(mix(np.arange(40, dtype=np.uint64)))
    assert np.abs(times - after).sum() / after.sum() < 0.25


def test_tuples_are_counted_not_calls():
    instance = InstanceCosts(SHAPE, Stability(window_rows=1000))
    assert not any(instance.add(window) for window in windows(np.ones(5), 15))
    assert instance.phase is Phase.START


def test_after_a_restart_it_goes_on_from_what_was_sent():
    before = InstanceCosts(SHAPE)
    costs = np.linspace(1, 70, 40)
    for window in windows(costs, 10):
        before.add(window)
    assert before.sent is not None
    after = InstanceCosts(SHAPE)
    after.adopt(before.sent)
    assert after.phase is Phase.WATCHING
    assert not any(after.add(window) for window in windows(costs, 2, seed=3))


def test_change_and_surprise_are_relative_and_look_at_known_cells_only():
    one, two = np.array([1.0, 2.0, 0.0]), np.array([4.0, 8.0, 0.0])
    assert change(one, two, one, two) == 0.0
    assert change(one, two, one, two * 2) == pytest.approx(1.0)
    assert change(one, two, np.zeros(3), np.zeros(3)) == 1.0
    assert surprise(one, two, one, two * 2) == pytest.approx((0.5, 0.5))
    swapped = np.array([8.0, 4.0, 5.0])
    assert surprise(np.array([1.0, 1.0, 1.0]), np.array([4.0, 8.0, 9.0]), np.ones(3), swapped) == (
        pytest.approx((4 / 21, 12 / 21))
    )
    assert surprise(np.zeros(3), np.zeros(3), one, two) == (0.0, 0.0)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="window and tolerances are positive"):
        Stability(window_rows=0)
