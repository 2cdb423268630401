"""The record of an epoch says what was sent, where it went and what it cost."""

from __future__ import annotations

import json

import pytest

from headgate import Count, Flow
from headgate.commit.epoch_record import imbalance
from headgate.testing import ListSource
from strategies import run_quickly


@pytest.mark.parametrize(
    ("loads", "expected"), [([], None), ([0, 0], None), ([5, 5], 1.0), ([9, 0, 0], 3.0)]
)
def test_imbalance_is_the_busiest_slot_over_the_mean(
    loads: list[int], expected: float | None
) -> None:
    assert imbalance(loads) == expected


def test_the_record_of_an_epoch_tells_what_happened() -> None:
    rows = [{"k": i % 5, "v": i} for i in range(20)]
    flow = Flow("trends")
    stream = flow.source(ListSource("k bigint, v bigint", [rows]), name="in")
    first = stream.key_by("k").process(Count(emit="rows"), name="first")
    first.key_by("v").process(Count(), name="second").to_memory("out")

    (told,) = run_quickly(flow, slots=2).records

    assert (told["flow"], told["epoch"], told["slots"], told["attempts"]) == ("trends", 0, 2, 1)
    assert (told["rows"], told["source_rows"]) == (20, {"in": 20})
    assert {op: sum(loads) for op, loads in told["loads"].items()} == {"first": 20, "second": 20}
    edge = told["edges"]["first->second"]
    assert edge["local_rows"] + edge["remote_rows"] == 20
    assert told["locality"] == edge["locality"] == edge["local_rows"] / 20
    assert told["edges"]["in->first"]["remote_rows"] == 20
    assert not told["edges"]["in->first"]["between_slots"]
    assert sum(s["rows"] for s in told["state"]["first"].values()) == 5
    assert told["sink_rows"] == {"out": 20}
    assert told["bytes_shuffled"] > 0
    assert json.loads(json.dumps(told)) == told
