"""The record of an epoch says what was sent, where it went and what it cost.

An epoch settles only if sender and receiver agree on everything.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.commit.parts import program
from tests.unit.slot.parts import plan_for

from headgate import Count, Flow
from headgate.commit.epoch_record import imbalance, settle
from headgate.errors import CustodyMismatch, EngineError, OperatorFailed
from headgate.slot.failure import to_record
from headgate.slot.plan import MASK, Control
from headgate.testing import ListSource
from strategies import examples, run_quickly


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


PLAN = plan_for(program(), slots=2)
VERSION = PLAN.routing_version


def controls(sent: dict[str, list[int]], received: dict[str, list[int]]) -> list[Control]:
    return [
        Control(sent=sent, tasks=[[1, 0]], versions=[VERSION]),
        Control(received=received, tasks=[[1, 1]], versions=[VERSION]),
    ]


transfers = st.dictionaries(
    st.sampled_from(["0:0>0", "0:0>1", "1:0>1", "1:1>0"]),
    st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(0, MASK)).map(list),
    min_size=1,
)


@examples(50)
@given(sent=transfers)
def test_equal_books_settle(sent: dict[str, list[int]]) -> None:
    total = settle(PLAN, controls(sent, sent))

    assert total.sent == total.received == sent
    assert sorted(total.tasks) == [[1, 0], [1, 1]]


@examples(100)
@given(sent=transfers, data=st.data())
def test_any_difference_in_any_count_of_any_pair_is_found(
    sent: dict[str, list[int]], data: st.DataObject
) -> None:
    pair = data.draw(st.sampled_from(sorted(sent)))
    at = data.draw(st.integers(0, 2))
    other = data.draw(st.integers(0, MASK))
    assume(other != sent[pair][at])
    received = {p: list(counts) for p, counts in sent.items()}
    received[pair][at] = other

    with pytest.raises(CustodyMismatch) as caught:
        settle(PLAN, controls(sent, received))

    assert caught.value.pairs == [pair]
    assert caught.value.epoch == 4


@pytest.mark.parametrize("side", ["sent", "received"])
def test_a_transfer_that_only_one_side_knows_is_found(side: str) -> None:
    books = {"0:0>0": [1, 1, 1]}
    pairs = controls(books, {}) if side == "sent" else controls({}, books)

    with pytest.raises(CustodyMismatch):
        settle(PLAN, pairs)


def test_mistakes_of_two_pairs_do_not_cancel_out() -> None:
    sent = {"0:0>0": [1, 5, 7], "0:0>1": [1, 6, 8]}
    swapped = {"0:0>0": [1, 6, 8], "0:0>1": [1, 5, 7]}

    with pytest.raises(CustodyMismatch) as caught:
        settle(PLAN, controls(sent, swapped))
    assert len(caught.value.pairs) == 2


@pytest.mark.parametrize("slots", [[], [0], [0, 0], [0, 1, 1], [0, 1, 2]])
def test_every_slot_must_answer_exactly_once(slots: list[int]) -> None:
    with pytest.raises(EngineError):
        settle(PLAN, [Control(tasks=[[1, s] for s in slots], versions=[VERSION])])


@pytest.mark.parametrize("versions", [[], [VERSION + 1], [VERSION, VERSION + 1]])
def test_all_tasks_must_have_used_the_plan_s_routing(versions: list[int]) -> None:
    """Invariant 1."""
    with pytest.raises(EngineError):
        settle(PLAN, [Control(tasks=[[1, 0], [1, 1]], versions=versions)])


def test_an_error_of_user_code_comes_before_the_books_it_spoilt() -> None:
    failed = OperatorFailed("broken", operator="parse", slot=1)
    broken = Control(error=to_record(failed), tasks=[[1, 0]])

    with pytest.raises(OperatorFailed) as caught:
        settle(PLAN, [broken, Control(sent={"0:0>0": [1, 1, 1]})])

    assert (caught.value.operator, str(caught.value)) == ("parse", "broken")
