"""PoTC by hand, and against a plain loop over rows."""

from __future__ import annotations

import numpy as np

from headgate_lab.papers import edits_job
from headgate_lab.papers.both_choices import BothChoices

HIGH = np.uint64(1) << np.uint64(32)
"""Added to a key's number: its two hashes differ. Without it they are the same node."""


def keys(*numbers):
    return np.array([np.uint64(n) + HIGH for n in numbers], np.uint64)


def test_sources_choose_by_what_they_have_sent_themselves():
    """Key 0 of two nodes: both are candidates. Each source alternates, whatever the other sends."""
    potc = BothChoices(2)
    h, source = keys(0, 0, 0, 0), np.array([0, 1, 0, 1])
    assert potc.route(1, h, source).tolist() == [0, 0, 1, 1]
    assert potc.sent[1].tolist() == [[1, 1], [1, 1]]


def test_one_counter_for_all_sources_would_have_chosen_otherwise():
    potc = BothChoices(2)
    assert potc.route(1, keys(0, 0, 0, 0), np.zeros(4, np.int64)).tolist() == [0, 1, 0, 1]


def test_a_key_whose_hashes_agree_has_no_choice():
    potc = BothChoices(2)
    assert potc.route(0, np.array([1, 1, 1], np.uint64), np.zeros(3, np.int64)).tolist() == [1] * 3


def test_merging_by_hand():
    """Key 0 has its first node 0. Minute 5: rows on 0, 1, 1; minute 6: one row, on 1.

    Rows 1 | 3. Entries closed: 1 | 2. Node 0 merges a partial of each minute: 2 | 0.
    """
    potc = BothChoices(2)
    minute, node = np.array([5, 5, 5, 6]), np.array([0, 1, 1, 1], np.int32)
    assert potc.counted(minute, keys(0, 0, 0, 0), node).tolist() == [1 + 1 + 2, 3 + 2]


def test_there_is_one_input_node_and_every_node_is_a_source_of_what_follows():
    potc = BothChoices(4)
    assert [len(sent) for sent in potc.sent] == [1, 4, 4]


def test_both_choices_process_every_row_once():
    edits = edits_job.edits_of(edits_job.generated_day(500), speed=480, groups=3, k=2)
    potc = BothChoices(4)
    loads = potc.loads(edits, range(edits.minutes))
    sent = [int(counts.sum()) for counts in potc.sent]
    assert sent == [500, 500, len(edits.top)]
    assert loads.sum() >= sum(sent)


def test_rows_go_where_a_plain_loop_sends_them():
    """Every row is at the candidate of its key that got the fewest rows from its source."""
    rng = np.random.default_rng(2)
    h = rng.integers(0, 2**63, 40).astype(np.uint64)[rng.integers(0, 40, 400)]
    source = rng.integers(0, 5, 400)
    found = BothChoices(5).route(1, h, source)
    candidates = {int(k): {int(k) % 5} for k in h}
    for key, node in zip(h, found, strict=True):
        candidates[int(key)].add(int(node))
    assert max(len(c) for c in candidates.values()) == 2
    sent = np.zeros((5, 5), int)
    for key, one, node in zip(h, source, found, strict=True):
        assert sent[one, node] == min(sent[one, c] for c in candidates[int(key)])
        sent[one, node] += 1
