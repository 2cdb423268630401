"""Chains: folding against a dict, when to compact, and what a stale image may apply."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.state.rows import RowIds, distinct_order
from headgate.state.state_file import Chain, StateFile, chain_id, missing_files, plan_compaction


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


def test_a_stale_image_may_apply_deltas_and_runs_but_no_snapshot() -> None:
    base, deltas = file("s", "snapshot"), tuple(file(f"d{i}") for i in range(4))
    run = file("r", "run", replaces=deltas)
    after = file("d9")
    assert missing_files((base, *deltas), chain_id((base, *deltas))) == ()
    assert missing_files((base, *deltas), chain_id((base, deltas[0]))) == deltas[1:]
    assert missing_files((base, run, after), chain_id((base, *deltas[:2]))) == (run, after)
    assert missing_files((base, run, after), chain_id((base, *deltas))) == (run, after)
    assert missing_files((base, *deltas), chain_id(())) is None
    assert missing_files(deltas, chain_id(())) == deltas
    newer = file("s2", "snapshot", replaces=(base, *deltas))
    assert missing_files((newer,), chain_id((base, *deltas[:2]))) is None
    assert missing_files((base,), chain_id((base, deltas[0]))) is None


def test_a_chain_stays_short_and_work_stays_small() -> None:
    """Many small deltas on a large snapshot: few files, and each row folded few times."""
    chain: Chain = (file("s", "snapshot", rows=1_000_000),)
    folded = 0
    longest = 0
    for epoch in range(2000):
        chain = (*chain, file(f"d{epoch}", rows=100))
        plan = plan_compaction(chain, "op", 0, 16)
        if plan is not None:
            count = sum(part.rows for part in chain[plan.start :])
            folded += count
            chain = (*chain[: plan.start], file(f"{plan.kind}{epoch}", plan.kind, count))
        longest = max(longest, len(chain))
    assert longest < 16 + 12
    assert folded < 2000 * 100 * 10
    assert chain[0].name == "s"


def test_a_small_state_becomes_a_snapshot() -> None:
    chain: Chain = (file("s", "snapshot", rows=5), *(file(f"d{i}") for i in range(4)))
    plan = plan_compaction(chain, "op", 0, 4)
    assert plan is not None and (plan.start, plan.kind) == (0, "snapshot")


def test_slots_compact_in_different_epochs() -> None:
    first = set()
    for slot in range(40):
        chain: Chain = ()
        while plan_compaction(chain, "op", slot, 16) is None:
            chain = (*chain, file(f"d{len(chain)}"))
        first.add(len(chain))
        assert 16 <= len(chain) < 32
    assert len(first) > 8
