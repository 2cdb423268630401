"""What is shown of latencies: p95 of an epoch, a bound as a bound, a dash if nothing is known."""

from __future__ import annotations

import pytest

from headgate.commit.facts import EpochFacts
from headgate.commit.latency import LatencyFacts
from headgate.offline.views import EPOCH_COLUMNS, EpochView, RunView

MEASURED = LatencyFacts(100.0, 900.0, 1_000.0, 300.0, "arrival", rows=5, commit_ms=80.0)
BOUND = LatencyFacts(80.0, 80.0, 80.0, 80.0, "trigger", rows=5, commit_ms=80.0)


def view(epoch: int, latency: LatencyFacts | None) -> EpochView:
    facts = EpochFacts(epoch, rows=5, latency=latency)
    return EpochView.of(EpochFacts.from_json(facts.to_json()))


def test_p95_is_shown_and_a_lower_bound_is_shown_as_one() -> None:
    shown = [view(0, latency).cells for latency in (MEASURED, BOUND, None)]
    assert [cells[-1] for cells in shown] == ["0.90 s", "≥0.08 s", "–"]
    assert {len(cells) for cells in shown} == {len(EPOCH_COLUMNS)}
    assert sum(EPOCH_COLUMNS.values()) < 80  # a terminal's width


def test_a_run_has_the_median_of_what_was_measured() -> None:
    views = [view(0, MEASURED), view(1, BOUND), view(2, None)]
    assert RunView.of(views).latency_p95_ms_median == pytest.approx(900)
    assert RunView.of(views[1:]).latency_p95_ms_median is None
