"""The incremental planner keeps its books right, its bounds, and moves keys for a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arrays import I32, U64
from headgate.errors import HeadgateError
from headgate.planner.incremental import (
    IncrementalPlanner,
    IncrementalSettings,
    Reason,
    SeenKeys,
    SeenPairs,
)
from headgate.planner.incremental_memory import KEYS, PAIRS, find_keys

SLOTS = 3


def seen(rows: dict[int, float], slot: dict[int, int], newborn: set[int] = frozenset()) -> SeenKeys:
    h = sorted(rows)
    return SeenKeys(
        np.array(h, np.uint64),
        np.array([rows[k] for k in h], np.float64),
        np.array([slot[k] for k in h], np.int32),
        np.array([k in newborn for k in h], np.uint8),
    )


def pairs_of(rows: list[tuple[int, int]], source: int = 0, target: int = 1) -> SeenPairs:
    a, b = zip(*rows, strict=True) if rows else ((), ())
    return SeenPairs(
        source, target, np.array(a, np.uint64), np.array(b, np.uint64), np.ones(len(rows))
    )


def owners(p: IncrementalPlanner, operator: int, h: U64) -> I32:
    at = find_keys(p._memory, operator, h)
    return np.where(at >= 0, p._memory.owner[at], -1)


def table(p: IncrementalPlanner, operator: int) -> tuple[U64, I32]:
    mine = np.flatnonzero(p._memory.op[: p._memory.used[KEYS]] == operator)
    return p._memory.h[mine], p._memory.owner[mine]


def remember(p: IncrementalPlanner, operator: int, h: U64, slot: I32) -> None:
    """Keys that were placed before their first row."""
    none = SeenKeys(h[:0], np.empty(0), slot[:0], np.empty(0, np.uint8))
    told = SeenKeys(h, np.zeros(len(h)), slot, np.zeros(len(h), np.uint8))
    keys = [told if o == operator else none for o in range(p.operators)]
    p.observe(keys, [], np.zeros((p.operators, p.slots)))


class Stream:
    """Feeds a planner of two operators with rows (a, b), as slots would, and follows its plans."""

    def __init__(self, planner: IncrementalPlanner, *, born_local: bool = True) -> None:
        self.planner, self.born_local = planner, born_local
        self.owner: list[dict[int, int]] = [{}, {}]
        self.moves = 0

    def epoch(self, rows: list[tuple[int, int]], budget: int | None = None):
        keys, slot_rows = [], np.zeros((2, self.planner.slots))
        for o in range(2):
            count: dict[int, float] = {}
            for row in rows:
                count[row[o]] = count.get(row[o], 0) + 1
            new = {k for k in count if k not in self.owner[o]}
            slot = {k: self.owner[o].get(k, k % self.planner.slots) for k in count}
            for k, n in count.items():
                slot_rows[o, slot[k]] += n
            keys.append(seen(count, slot, new if self.born_local else set()))
            self.owner[o] |= slot
        self.planner.observe(keys, [pairs_of(rows)], slot_rows)
        plan = self.planner.plan(budget)
        for moves in plan:
            self.owner[moves.operator] |= dict(
                zip(moves.h.tolist(), moves.target.tolist(), strict=True)
            )
            self.moves += int(moves.moved.sum())
        return plan


def planner(**more) -> IncrementalPlanner:
    return IncrementalPlanner(2, **{"slots": SLOTS, "horizon_rows": 50, **more})


epochs = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=30),
    min_size=1,
    max_size=8,
)


def check_books(p: IncrementalPlanner) -> None:
    """What is kept per key and slot is what the pairs and keys say, walked one by one."""
    m = p._memory
    n, e = int(m.used[KEYS]), int(m.used[PAIRS])
    toward, planned = np.zeros((n, p.slots)), np.zeros((p.operators, p.slots))
    degree = np.zeros(n, int)
    for i in range(e):
        toward[m.u[i], m.owner[m.v[i]]] += m.weight[i]
        toward[m.v[i], m.owner[m.u[i]]] += m.weight[i]
        degree[m.u[i]] += 1
        degree[m.v[i]] += 1
    for k in range(n):
        planned[m.op[k], m.owner[k]] += m.load[k]
        at, length = m.first[k], 0
        while at >= 0:
            at = m.next_u[at] if m.u[at] == k else m.next_v[at]
            length += 1
        assert length == degree[k]
    assert np.allclose(m.toward[:n], toward, atol=1e-9 * toward.max(initial=1.0))
    assert np.allclose(m.planned, planned, atol=1e-9 * planned.max(initial=1.0))
    assert (m.owner[:n] >= 0).all() and (m.owner[:n] < p.slots).all()


@given(epochs=epochs, seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_the_books_agree_with_a_walk_over_all_pairs(epochs, seed):
    stream = Stream(planner(seed=seed))
    for rows in epochs:
        stream.epoch(rows)
        check_books(stream.planner)
    for o in range(2):
        h, slot = table(stream.planner, o)
        assert dict(zip(h.tolist(), slot.tolist(), strict=True)) == stream.owner[o]


@given(epochs=epochs)
@settings(max_examples=30, deadline=None)
def test_keys_and_pairs_never_outgrow_their_bounds(epochs):
    p = planner(keys_max=8, pairs_max=12)
    stream = Stream(p)
    for rows in epochs:
        stream.epoch(rows)
        used = p._memory.used
        assert used[PAIRS] <= 12
        assert used[KEYS] <= 16
        for o, gone in enumerate(p.released()):
            for h in gone.tolist():
                if owners(p, o, np.array([h], np.uint64))[0] < 0:
                    stream.owner[o].pop(h, None)
        for o in range(2):
            assert len(table(p, o)[0]) <= 8


def test_ten_thousand_new_keys_grow_the_memory_and_stay_right():
    p = planner(keys_max=20_000)
    stream = Stream(p)
    stream.epoch([(i % 50, i) for i in range(10_000)])
    stream.epoch([(i % 50, i) for i in range(0, 10_000, 7)])

    check_books(p)
    assert len(table(p, 1)[0]) == 10_000


@given(epochs=epochs, seed=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_the_same_rows_and_seed_give_the_same_plan(epochs, seed):
    one, two = Stream(planner(seed=seed)), Stream(planner(seed=seed))
    for rows in epochs:
        for a, b in zip(one.epoch(rows), two.epoch(rows), strict=True):
            assert np.array_equal(a.h, b.h)
            assert np.array_equal(a.target, b.target)


@given(epochs=epochs, budget=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_a_budget_caps_the_moves_of_every_plan(epochs, budget):
    stream = Stream(planner())
    for rows in epochs:
        plan = stream.epoch(rows, budget)
        assert sum(int(m.moved.sum()) for m in plan) <= budget


def test_keys_that_meet_end_up_together():
    """Three worlds that never mix, hashed apart: after a few epochs each has its own slot.

    Moving one key at a time may get stuck halfway, which a plan from scratch mends now and then:
    most of ten streams get there without one.
    """
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        stream = Stream(planner(horizon_rows=500), born_local=False)
        for _ in range(30):
            world = rng.integers(0, 3, 200)
            a = world * 10 + rng.integers(0, 4, 200)
            b = 100 + world * 50 + rng.integers(0, 20, 200)
            stream.epoch(list(zip(a.tolist(), b.tolist(), strict=True)))
        assert stream.planner.expected_imbalance.max() < 1.2
        found.append(stream.planner.expected_locality > 0.95)

    assert sum(found) >= 8


def test_measured_load_counts_as_far_as_it_is_no_chance():
    """Rows thrown at equal slots show chance for the most part. A slot twice as full does not."""
    fair, unfair = planner(slots=4, horizon_rows=2_000), planner(slots=4, horizon_rows=2_000)
    draw = np.random.default_rng(3)
    shrunk, kept = [], []
    for _ in range(60):
        for p, share, told in ((fair, [1, 1, 1, 1], shrunk), (unfair, [2, 1, 1, 1], kept)):
            rows = draw.multinomial(500, np.array(share) / sum(share))
            p.observe([seen({1: 1}, {1: 0}, set())] * 2, [], np.stack([rows, rows]).astype(float))
            measured = p._memory.measured
            above = measured / measured.mean(axis=1, keepdims=True) - 1
            told.append(np.abs(p._beyond_sampling(above)).sum() / np.abs(above).sum())

    assert np.mean(shrunk[10:]) < 0.5
    assert np.mean(kept[10:]) > 0.9


def test_load_is_spread_even_if_all_rows_want_one_slot():
    """One hub key that everybody meets: all would join it, and the price of load says no."""
    stream = Stream(planner(slots=4, horizon_rows=400))
    for epoch in range(30):
        stream.epoch([(0, 1 + (i + 7 * epoch) % 60) for i in range(200)])

    assert stream.planner.expected_imbalance[1] < 1.4
    assert stream.planner.expected_locality > 0.2


def test_a_key_heavier_than_a_slot_is_not_handed_round():
    rng = np.random.default_rng(3)
    stream = Stream(planner(slots=6, horizon_rows=1_000))
    moved = 0
    for _ in range(40):
        a = np.where(rng.random(200) < 0.6, 0, rng.integers(1, 40, 200))
        plan = stream.epoch(list(zip(a.tolist(), rng.integers(0, 50, 200).tolist(), strict=True)))
        moved += int((plan[0].h[plan[0].moved] == 0).sum())

    assert moved <= 4


def test_new_keys_are_adopted_once_and_that_is_no_move():
    stream = Stream(planner())
    first = stream.epoch([(1, 5), (1, 5), (2, 6)])

    assert [sorted(m.h.tolist()) for m in first] == [[1, 2], [5, 6]]
    assert all((m.reason == Reason.ADOPTED).all() and not m.moved.any() for m in first)
    again = stream.epoch([(1, 5), (2, 6)])
    assert not any((m.reason == Reason.ADOPTED).any() for m in again)


def test_a_key_that_lost_its_entry_is_adopted_again():
    stream = Stream(planner())
    stream.epoch([(1, 5), (2, 6)])
    del stream.owner[1][5]

    plan = stream.epoch([(1, 5), (2, 6)])

    assert plan[1].h[plan[1].reason == Reason.ADOPTED].tolist() == [5]


def test_strict_operators_have_no_newborns():
    plan = Stream(planner(), born_local=False).epoch([(1, 5), (1, 5), (2, 6)])

    assert all(m.moved.all() for m in plan)


def test_the_routing_table_is_believed_over_the_planner():
    """What was planned but not installed is put right when the key is seen again."""
    p = planner()
    p.observe(
        [seen({1: 5}, {1: 0}), seen({7: 5}, {7: 2})], [pairs_of([(1, 7)] * 5)], np.ones((2, SLOTS))
    )
    p.observe([seen({1: 1}, {1: 2}), seen({7: 1}, {7: 1})], [], np.ones((2, SLOTS)))

    assert owners(p, 0, np.array([1], np.uint64)).tolist() == [2]
    assert owners(p, 1, np.array([7, 8], np.uint64)).tolist() == [1, -1]
    check_books(p)


def test_remembered_owners_are_known_before_the_first_row():
    p = planner()
    remember(p, 1, np.array([4, 9], np.uint64), np.array([2, 0], np.int32))

    assert owners(p, 1, np.array([9, 4], np.uint64)).tolist() == [0, 2]
    assert not any(len(moves) for moves in p.plan())


def test_a_flow_of_three_operators_pulls_the_middle_from_both_sides():
    p = IncrementalPlanner(3, 3, horizon_rows=100)
    remember(p, 0, np.array([1, 2], np.uint64), np.array([0, 1], np.int32))
    remember(p, 2, np.array([8, 9], np.uint64), np.array([0, 1], np.int32))
    p.plan()
    for _ in range(3):
        p.observe(
            [seen({}, {}), seen({5: 9, 6: 9}, {5: 2, 6: 1}), seen({}, {})],
            [pairs_of([(1, 5)] * 9 + [(2, 6)] * 9), pairs_of([(5, 8)] * 9 + [(6, 9)] * 9, 1, 2)],
            np.array([[9.0, 9, 0], [0, 9, 9], [9, 9, 0]]),
        )

    move = p.plan()[1]
    assert (move.operator, move.h.tolist(), move.target.tolist()) == (1, [5], [0])
    assert Reason(move.reason[0]) is Reason.PARTNERS
    assert "have their other key there" in p.explain(move, 0)


def test_a_neighbour_is_better_than_a_stranger():
    """Partners in two slots of one host: the other slot of that host beats a third one."""
    near = np.array([[1, 0.75, 0, 0], [0.75, 1, 0, 0], [0, 0, 1, 0.75], [0, 0, 0.75, 1]])

    free = IncrementalSettings(price=0.0, burst_price=0.0, inertia=0.0, move_rows=0.0)

    def best(nearness):
        p = planner(slots=4, nearness=nearness, settings=free)
        remember(p, 0, np.array([1, 2, 3], np.uint64), np.array([0, 1, 2], np.int32))
        p.plan()
        p.observe(
            [seen({}, {}), seen({7: 32}, {7: 3})],
            [pairs_of([(1, 7)] * 10 + [(2, 7)] * 10 + [(3, 7)] * 12)],
            np.array([[10.0, 10, 12, 0], [0, 0, 0, 32]]),
        )
        moves = p.plan()[1]
        return dict(zip(moves.h.tolist(), moves.target.tolist(), strict=True))

    assert best(None) == {7: 2}
    assert best(near)[7] in (0, 1)


def test_tolerance_grows_with_wobble_from_a_floor_set_by_alpha():
    calm, wild = planner(alpha=1.02), planner(alpha=1.02)
    rng = np.random.default_rng(0)
    for _ in range(20):
        calm.observe([seen({}, {}), seen({}, {})], [], np.full((2, SLOTS), 10.0))
        wild.observe([seen({}, {}), seen({}, {})], [], rng.integers(0, 30, (2, SLOTS)) + 1.0)

    assert calm.tolerance == pytest.approx(0.02 * calm.settings.slack)
    assert (wild.tolerance > calm.tolerance).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slots": 0}, "0 slots"),
        ({"alpha": 0.9}, "never below 1"),
        ({"horizon_rows": 0}, "horizon"),
        ({"keys_max": 1}, "give at least"),
        ({"nearness": np.eye(2)}, "shape"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(HeadgateError, match=said):
        planner(**wrong)
