"""Which flows can be told how many rows an epoch should have."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.runtime.connectors import takes_rows


def flow_of(*sources: Any) -> hg.Flow:
    flow = hg.Flow("told")
    for number, source in enumerate(sources):
        rows = flow.source(source, schema="k bigint", name=f"in{number}")
        rows.key_by("k").process(hg.Count(), name=f"count{number}").to(print, name=f"out{number}")
    return flow


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (hg.Reader("kafka"), True),
        (hg.Reader("kafka", {"maxOffsetsPerTrigger": "7"}), False),
        (hg.Reader("csv", path="in"), False),
        (hg.Reader("csv", path="in", rows_per_file=10), True),
        (hg.Reader("socket"), False),
        (lambda spark, rows_per_epoch: None, True),
        (lambda spark: None, False),
        (lambda spark, folder="in": None, False),
        (lambda spark, rows_per_epoch, folder="in": None, True),
        (lambda spark, *, folder: None, False),
        (lambda spark, *rest, **options: None, False),
    ],
)
def test_a_source_is_told_only_if_it_can_be(source: Any, told: bool) -> None:
    assert takes_rows(flow_of(source).graph()) is told


def test_one_source_that_can_be_told_is_enough() -> None:
    deaf = hg.Reader("socket")

    assert takes_rows(flow_of(deaf, hg.Reader("kafka")).graph())
    assert not takes_rows(flow_of(deaf, deaf).graph())
