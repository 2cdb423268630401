"""Chains: folding against a dict, when to compact, and what a stale image may apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.state.chain import PIECES_MAX, chain_id, folded, missing_files, plan_fold
from headgate.state.rows import RowIds, distinct_order
from headgate.state.state_file import LAST_ROUTE, Chain, StateFile


def file(name: str, kind: Any = "delta", rows: int = 10, replaces: Chain = ()) -> StateFile:
    return StateFile(name, kind, 1, rows, 100, "0" * 32, replaces)


rows = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(4, 6))


@settings(deadline=None)
@given(files=st.lists(st.lists(rows, unique=True, max_size=15), min_size=1, max_size=6))
def test_folding_keeps_the_newest_row_of_each_key_in_order(
    files: list[list[tuple[int, int, int]]],
) -> None:
    parts, flat, newest = [], [], {}
    for number, content in enumerate(reversed(files)):
        content = sorted(content)
        columns = np.array(content, np.uint64).reshape(-1, 3).T
        parts.append(RowIds(columns[0], columns[1], columns[2]))
        flat += [(row, number) for row in content]
        for row in content:
            newest.setdefault(row, number)

    kept = [flat[index] for index in distinct_order(RowIds.concat(parts))]

    assert kept == sorted(newest.items())


def test_a_file_survives_json() -> None:
    whole = file("s", "snapshot", replaces=(file("a"), file("b")))
    assert StateFile.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_the_id_depends_on_names_and_order_only() -> None:
    a, b = file("a"), file("b")
    assert chain_id((a, b)) != chain_id((b, a))
    assert chain_id((a,)) == chain_id((file("a", rows=3),))


def test_a_file_that_is_folded_in_pieces_survives_json() -> None:
    old = replace(file("o", "run"), first="8" * 16, folding=3)
    piece = replace(file("p", "run"), last="7" * 16, piece=1, replaces=(old,))
    for one in (old, piece):
        assert StateFile.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert file("d").to_json().keys().isdisjoint({"first", "last", "piece", "folding"})


def test_a_stale_image_may_apply_deltas_and_runs_but_no_snapshot() -> None:
    base, deltas = file("s", "snapshot"), tuple(file(f"d{i}") for i in range(4))
    run = file("r", "run", replaces=deltas)
    after = file("d9")
    assert missing_files((base, *deltas), chain_id((base, *deltas))) == ()
    assert missing_files((base, *deltas), chain_id((base, deltas[0]))) == deltas[1:]
    assert missing_files((base, run, after), chain_id((base,))) == (run, after)
    assert missing_files((base, run, after), chain_id((base, *deltas[:2]))) == (*deltas[2:], after)
    assert missing_files((base, run, after), chain_id((base, *deltas))) == (after,)
    assert missing_files((base, *deltas), chain_id(())) is None
    assert missing_files(deltas, chain_id(())) == deltas
    newer = file("s2", "snapshot", replaces=(base, *deltas))
    assert missing_files((newer,), chain_id((base, *deltas[:2]))) == deltas[2:]
    assert missing_files((newer,), chain_id(deltas)) is None
    assert missing_files((base,), chain_id((base, deltas[0]))) is None


Rows = dict[int, int | None]  # by route; None: removed


class Model:
    """A chain and what is in its files, epoch after epoch, in plain Python."""

    def __init__(self, compact_after: int, fold_rows: int) -> None:
        self.chain: Chain = ()
        self.files: dict[str, Rows] = {}
        self.truth: dict[int, int] = {}
        self.folded_rows = 0
        self._limits = compact_after, fold_rows

    def epoch(self, number: int, delta: Rows) -> None:
        self.chain = (*self.chain, self._file(f"d{number}", "delta", delta))
        for route, value in delta.items():
            self.truth.pop(route, None)
            self.truth |= {} if value is None else {route: value}
        plan = plan_fold(self.chain, "op", 0, *self._limits)
        self.folded_rows = 0
        if plan is not None:
            rows = self.read(self.chain[plan.start : plan.end], plan.low, plan.high)
            self.folded_rows = len(rows)
            if plan.kind == "snapshot":
                rows = {route: value for route, value in rows.items() if value is not None}
            made = self._file(f"f{number}", plan.kind, rows) if rows else None
            self.chain = folded(self.chain, plan, made)

    def read(self, chain: Chain, low: int = 0, high: int = LAST_ROUTE) -> Rows:
        rows: Rows = {}
        for part in chain:
            for route, value in self.files[part.name].items():
                if max(low, part.low) <= route <= min(high, part.high):
                    rows[route] = value
        return rows

    def state(self, chain: Chain, onto: Mapping[int, int] | None = None) -> dict[int, int]:
        rows = {**(onto or {}), **self.read(chain)}
        return {route: value for route, value in rows.items() if value is not None}

    def _file(self, name: str, kind: Any, rows: Rows) -> StateFile:
        self.files[name] = rows
        return file(name, kind, len(rows))


routes = st.integers(0, 15).map(lambda number: number << 60 | number)
deltas = st.dictionaries(routes, st.none() | st.integers(0, 9), min_size=1, max_size=6)


@settings(deadline=None)
@given(
    epochs=st.lists(deltas, max_size=40),
    compact_after=st.integers(1, 4),
    fold_rows=st.sampled_from([0, 1, 3, 100]),
)
def test_a_chain_is_its_state_whatever_is_being_folded(
    epochs: list[Rows], compact_after: int, fold_rows: int
) -> None:
    """Also by what an image of any earlier epoch has to apply."""
    model = Model(compact_after, fold_rows)
    earlier: list[tuple[str, dict[int, int]]] = []
    for number, delta in enumerate(epochs):
        earlier.append((chain_id(model.chain), dict(model.truth)))
        model.epoch(number, delta)
        assert model.state(model.chain) == model.truth
        assert missing_files(model.chain, chain_id(model.chain)) == ()
        for version, image in earlier:
            missing = missing_files(model.chain, version)
            assert missing is None or model.state(missing, image) == model.truth
        if number and not any(None in rows.values() for rows in epochs):  # one epoch behind
            assert missing_files(model.chain, earlier[-1][0]) is not None


def test_a_chain_stays_short_and_no_epoch_folds_much() -> None:
    """A growing state with a delta an epoch: few files, each row folded few times, and never many
    rows in one epoch, whatever is held.
    """
    rng, delta_rows = np.random.default_rng(5), 20
    model, folded_rows, longest, most = Model(16, 8), 0, 0, 0.0
    for epoch in range(1_500):
        chosen = rng.integers(0, LAST_ROUTE, delta_rows, np.uint64).tolist()
        model.epoch(epoch, dict.fromkeys(chosen, epoch))
        folded_rows += model.folded_rows
        longest = max(longest, len(model.chain))
        bound = 2 * delta_rows + 2 * len(model.truth) / PIECES_MAX
        most = max(most, model.folded_rows / bound)
    assert len(model.truth) == 30_000
    assert most < 1.5  # ranges of routes hold about as many rows as they are wide
    assert longest < 16 * PIECES_MAX  # a few runs of pieces, each twice as large as the next
    assert folded_rows < 5 * 30_000
    assert model.state(model.chain) == model.truth


def test_a_small_state_becomes_a_snapshot() -> None:
    chain: Chain = (file("s", "snapshot", rows=5), *(file(f"d{i}") for i in range(4)))
    plan = plan_fold(chain, "op", 0, 4)
    assert plan is not None and (plan.start, plan.kind) == (0, "snapshot")


def test_slots_compact_in_different_epochs() -> None:
    first = set()
    for slot in range(40):
        chain: Chain = ()
        while plan_fold(chain, "op", slot, 16) is None:
            chain = (*chain, file(f"d{len(chain)}"))
        first.add(len(chain))
        assert 16 <= len(chain) < 32
    assert len(first) > 8
