"""Facts become JSON and come back, also what the version before wrote (`data/`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.commit import facts as json_codec
from headgate.commit.facts import (
    INLINE,
    KINDS,
    SPARSE,
    EdgeFacts,
    EngineFacts,
    EpochFacts,
    PlanFacts,
    Sparse,
    StateSize,
    epochs_of,
    facts_of,
)

KEPT = Path(__file__).parent / "data" / "journal-0.1.0.jsonl"
RECORDS = [json.loads(line) for line in KEPT.read_text().splitlines()]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["kind"])
def test_a_record_of_0_1_0_is_read_whole_and_written_as_it_was(record: dict[str, Any]) -> None:
    (facts,) = facts_of([record])

    assert facts.kind == record["kind"]
    assert facts.to_json() == record


def test_every_kind_of_record_has_one_that_was_kept() -> None:
    assert {record["kind"] for record in RECORDS} == set(KINDS) - {"side_table"}  # later than 0.1


@pytest.mark.parametrize("failed", [{}, {"failed": "OSError: away"}])
def test_a_record_of_a_side_table_is_read_as_it_was_written(failed: dict[str, str]) -> None:
    told = {"epoch": 3, "operator": "names", "file": "names-1.arrow", "rows": 2, "read_ms": 7}
    record = {"schema": 1, "kind": "side_table"} | told | failed

    (facts,) = facts_of([record])

    assert facts.to_json() == record


def test_what_policies_read_of_a_kept_epoch_is_what_it_says() -> None:
    epoch = epochs_of(RECORDS)[1]

    assert (epoch.slots, epoch.rows, epoch.engine.cores) == (3, 40, 2)
    assert epoch.engine.seconds == pytest.approx(
        (RECORDS[6]["plan_ms"] + RECORDS[6]["job_ms"]) / 1e3
    )
    assert epoch.trigger.last_trigger_ms == RECORDS[6]["last_trigger_ms"]
    assert {level: ms > 0 for level, ms in epoch.engine.levels_ms.items()} == {
        0: True, 1: True, 2: True,
    }  # fmt: skip
    assert sum(size.rows for size in epoch.state["first"].values()) == 7
    assert epoch.edges["first->second"].rows == sum(epoch.loads["second"]) == 40


def test_entries_of_later_versions_are_passed_over_and_missing_ones_have_a_default() -> None:
    record = {"schema": 9, "kind": "epoch", "epoch": 3, "rows": None, "novel": {"x": 1}}

    assert EpochFacts.from_json(record) == EpochFacts(3)
    assert EpochFacts(3).engine == EngineFacts()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "novel"},
        {"kind": "epoch"},
        {"kind": "epoch", "epoch": 1, "edges": [1]},
        {"kind": "epoch", "epoch": 1, "state": {"op": {"a": {"rows": 1, "bytes": 1}}}},
        {"kind": "scale", "epoch": 1},
    ],
)
def test_a_record_that_cannot_be_read_is_left_out(wrong: dict[str, Any]) -> None:
    good = EpochFacts(1).to_json()

    assert list(facts_of([wrong, good])) == epochs_of([wrong, good]) == [EpochFacts(1)]


def test_facts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EpochFacts(1).rows = 2  # type: ignore[misc]


def test_what_is_not_known_has_no_entry() -> None:
    told = EpochFacts(1).to_json()
    assert not {"job_ms", "levels_ms", "hosts", "tick", "costs", "last_trigger_ms"} & set(told)
    assert told["locality"] is None and told["watermark_us"] is None
    assert PlanFacts(1, why="x", top_moves=()).to_json() == {
        "schema": 1, "kind": "plan", "epoch": 1, "moves": {}, "why": "x", "top_moves": [],
    }  # fmt: skip


# --- the codec ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Inner:
    size: int
    note: Sparse[str] = None


@dataclass(frozen=True)
class Outer:
    counts: Mapping[str, tuple[int, ...]]
    by_slot: Mapping[str, Mapping[int, Inner]] = field(default_factory=dict)
    several: tuple[Inner, ...] = ()
    perhaps: Inner | None = None
    flag: Annotated[bool, SPARSE] = False
    inner: Annotated[Inner, INLINE] = field(default_factory=lambda: Inner(0))


NAMES = st.text(max_size=4)
INNER = st.builds(Inner, st.integers(), st.none() | NAMES)
OUTER = st.builds(
    Outer,
    st.dictionaries(NAMES, st.lists(st.integers()).map(tuple)),
    st.dictionaries(NAMES, st.dictionaries(st.integers(0, 99), INNER)),
    st.lists(INNER, max_size=3).map(tuple),
    st.none() | INNER,
    st.booleans(),
    INNER,
)


@given(OUTER)
def test_what_is_written_as_json_is_read_back_the_same(value: Outer) -> None:
    told = json.loads(json.dumps(json_codec.to_json(value)))

    assert json_codec.from_json(Outer, told) == value
    assert told["size"] == value.inner.size
    assert ("flag" in told) is value.flag


def test_an_epoch_round_trips_with_everything_nested() -> None:
    facts = EpochFacts(
        epoch=2,
        edges={"a->b": EdgeFacts(local_rows=1, remote_rows=3, locality=0.25)},
        state={"op": {10: StateSize(1, 20), 2: StateSize(3, 40)}},
        engine=EngineFacts(job_ms=1.5, levels_ms={0: 0.5, 10: 1.0}, hosts=("x",)),
    )
    told = json.loads(json.dumps(facts.to_json()))

    assert EpochFacts.from_json(told) == facts
    assert told["levels_ms"] == {"0": 0.5, "10": 1.0} and "engine" not in told
    assert EpochFacts.from_json(told | {"attempts": 2}) == replace(facts, attempts=2)
