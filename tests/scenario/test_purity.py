"""A task run twice on the same input and plan sends the same bytes and names the same files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.scenario.oracle import CASES, Case, random_table

import headgate as hg
from headgate.commit.epoch_record import settle
from headgate.errors import CustodyMismatch, EngineError, OperatorFailed
from headgate.operator.rows import EpochClock
from headgate.routing.identity import Identity
from headgate.slot.plan import Control, EpochPlan
from headgate.testing import ImpureTask, ListSource, run


def files_of(folder: Path) -> dict[str, bytes]:
    """All that tasks wrote, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("state", "sinks")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    }


def flow_of(case: Case) -> hg.Flow:
    flow, streams = case.flow()
    for name, stream in streams.items():
        stream.to_memory(f"to_{name}")
    return flow


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_two_runs_name_the_same_files(make: Any, warm: bool, tmp_path: Path) -> None:
    """In other checkpoints, with tuples arriving in another order, warm or not (invariant 7)."""
    case: Case = make(random.Random(3), epochs=6)
    rng = random.Random(4)
    tables = {name: random_table(rng, case, name, 3, 64) for name in case.keys}
    common: dict[str, Any] = {"slots": 3, "tables": tables, "buckets": 64, "check_purity": False}
    common["identity"] = Identity.new()  # names follow from content, and that from the secret

    run(flow_of(case), checkpoint=tmp_path / "one", seed=1, **common)
    warm_dir = str(tmp_path / "warm") if warm else None
    run(flow_of(case), checkpoint=tmp_path / "two", seed=99, warm_dir=warm_dir, **common)

    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    assert sorted(one) == sorted(two) and one
    assert one == two


def _shuffled(batch: pa.RecordBatch) -> pa.RecordBatch:
    order = np.random.default_rng().permutation(batch.num_rows)
    return batch.take(pa.array(order))


def test_an_operator_that_is_not_pure_is_caught_by_the_local_engine() -> None:
    flow = hg.Flow("impure")
    source = flow.source(ListSource("k bigint", [[{"k": k} for k in range(50)]]), name="rows")
    source.map(_shuffled, "k bigint").key_by("k").process(hg.Count(), name="counts").discard()

    with pytest.raises(ImpureTask) as caught:
        run(flow, slots=2)
    assert caught.value.level == 0


PLAN = EpochPlan(
    epoch=4,
    slots=2,
    clock=EpochClock(4, 0),
    routes={},
    chains={},
    storage_uri="/nowhere",
    warm_dir=None,
    buckets=16,
    sink_uris={},
    identity=Identity(bytes(16)),
)


def answers() -> list[Control]:
    """What the last level of a healthy epoch told: everything sent was received."""
    first = Control(sent={"0:0>0": [1, 3, 7], "0:0>1": [1, 2, 9]}, received={"0:0>0": [1, 3, 7]})
    second = Control(received={"0:0>1": [1, 2, 9]})
    for slot, control in enumerate((first, second)):
        control.tasks, control.versions = [[1, slot]], [0]
    return [first, second]


def test_an_epoch_settles_when_both_sides_agree() -> None:
    total = settle(PLAN, answers())
    assert total.sent == total.received and sorted(total.tasks) == [[1, 0], [1, 1]]


@pytest.mark.parametrize("field", range(3), ids=["tuples", "rows", "seal"])
@pytest.mark.parametrize("side", ["sent", "received"])
def test_any_difference_between_sender_and_receiver_is_named(side: str, field: int) -> None:
    told = answers()
    getattr(told[0], side)["0:0>0"] = [n + (i == field) for i, n in enumerate([1, 3, 7])]
    with pytest.raises(CustodyMismatch) as caught:
        settle(PLAN, told)
    assert caught.value.pairs == ["0:0>0"] and caught.value.epoch == 4


@pytest.mark.parametrize("side", ["sent", "received"])
def test_a_transfer_that_only_one_side_knows_is_named(side: str) -> None:
    told = answers()
    del getattr(told[0], side)["0:0>0"]
    with pytest.raises(CustodyMismatch) as caught:
        settle(PLAN, told)
    assert caught.value.pairs == ["0:0>0"]


@pytest.mark.parametrize("slots", [[[0]], [[0], [0]], [[0], [1], [1]], [[0], [2]]])
def test_every_slot_answers_once(slots: list[list[int]]) -> None:
    told = [Control(tasks=[[1, s] for s in chosen], versions=[0]) for chosen in slots]
    with pytest.raises(EngineError, match="instead of"):
        settle(PLAN, told)


def test_all_tasks_used_the_routing_of_the_plan() -> None:
    told = answers()
    told[1].versions = [3]
    with pytest.raises(EngineError, match="routing versions"):
        settle(PLAN, told)


def test_an_error_of_user_code_outranks_what_it_caused() -> None:
    told = answers()
    told[0].error = {"type": "OperatorFailed", "message": "it failed", "fields": {"slot": 1}}
    told[0].received = {}
    with pytest.raises(OperatorFailed) as caught:
        settle(PLAN, told)
    assert caught.value.slot == 1
