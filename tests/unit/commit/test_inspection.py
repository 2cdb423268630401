"""State as seen from outside: only keys that the operator itself would still find.

Arrow types survive the way through their text.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.commit.described import parse_type, state_schema
from headgate.commit.inspection import Inspection
from headgate.errors import UnknownName, UnsupportedVersion
from headgate.state.layout import StateSchema
from headgate.testing import ListSource, LocalRun, ManualClock, run


def counted(folder: Path, ttl: timedelta | None, step_ms: int) -> LocalRun:
    """Key 1 in epoch 0, key 2 in epoch 1, so many milliseconds later."""
    clock = ManualClock()
    flow = hg.Flow("counted")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}], [{"k": 2}]])).key_by("k")
    rows.process(hg.Count(ttl=ttl), name="counts").to_memory("out")
    return run(
        flow,
        slots=2,
        clock=clock,
        checkpoint=folder,
        before_epoch=lambda epoch: clock.advance(step_ms * epoch),
    )


@pytest.mark.parametrize(
    ("ttl_s", "step_ms", "kept"),
    [(1, 999, [1, 2]), (1, 1_000, [2]), (1, 100_000, [2]), (None, 100_000, [1, 2])],
)
def test_keys_whose_ttl_is_over_are_hidden_by_the_clock_of_the_last_epoch(
    tmp_path: Path, ttl_s: int | None, step_ms: int, kept: list[int]
) -> None:
    done = counted(tmp_path, None if ttl_s is None else timedelta(seconds=ttl_s), step_ms)
    seen = Inspection(str(tmp_path))

    assert sorted(row["k"] for row in done.state("counts")) == kept
    assert sorted(seen.rows("counts", 10)["k"].to_pylist()) == kept
    assert [k for k in (1, 2) if seen.find("counts", [str(k)]).rows.num_rows] == kept


def test_a_value_that_is_called_like_a_key_is_told_apart_from_it(tmp_path: Path) -> None:
    """How many users have one row, how many two: counts of counts."""
    flow = hg.Flow("counted")
    users = flow.source(ListSource("u string", [[{"u": u} for u in "aabc"]])).key_by("u")
    counts = users.process(hg.Count(), name="per_user").key_by("count")
    counts.process(hg.Count(name="users"), name="histogram").to_memory("out")

    done = run(flow, checkpoint=tmp_path)
    seen = Inspection(str(tmp_path))

    want = [{"count": 1, "value.count": 2}, {"count": 2, "value.count": 1}]
    assert sorted(done.state("histogram"), key=lambda row: row["count"]) == want
    rows = seen.rows("histogram", 10).to_pylist()
    assert sorted(rows, key=lambda row: row["count"]) == want
    assert seen.find("histogram", ["2"]).rows.to_pylist() == want[1:]
    assert seen.rows("histogram", 0).column_names == ["count", "value.count"]
    columns = (("count", "int64"), ("value.count", "int64"))
    assert seen.operator("histogram").columns == columns


def test_a_name_that_a_run_does_not_have_is_answered_with_those_it_has(tmp_path: Path) -> None:
    done = counted(tmp_path, None, 1)

    with pytest.raises(UnknownName, match="no sink 'nope'; it has out"):
        done.rows("nope")
    with pytest.raises(KeyError, match="no stateful operator 'out'; it has counts") as caught:
        done.state("out")
    assert caught.value.known == ["counts"]  # type: ignore[attr-defined]


UNITS = ("s", "ms", "us", "ns")
atoms = st.sampled_from(
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(16)),
        *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.string_view()),
        *(pa.timestamp(unit) for unit in UNITS),
        *(pa.timestamp(unit, "Europe/Madrid") for unit in UNITS),
        *(pa.duration(unit) for unit in UNITS),
        *(pa.decimal128(38, 9), pa.decimal256(50, -2), pa.timestamp("us", "+02:00")),
    ]
)
names = st.text("ab c_", min_size=1, max_size=5).map(str.strip).filter(bool)


def field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable or pa.types.is_null(kind))


def lists(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(field, names, inner, st.booleans())
    return st.one_of(
        st.builds(pa.list_, fields),
        st.builds(pa.list_, fields, st.integers(1, 9)),
        st.builds(pa.large_list, fields),
    )


@given(kind=atoms | lists(atoms))
def test_every_type_that_state_may_hold_is_read_back_from_its_text(kind: pa.DataType) -> None:
    assert str(parse_type(str(kind))) == str(kind)
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize("text", ["", "int65", "list<int64", "extension<arrow.uuid>", "struct>"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedVersion):
        parse_type(text)


def test_a_state_schema_is_what_it_described() -> None:
    schema = StateSchema(
        pa.schema({"k": pa.string()}),
        pa.schema({"n": pa.int64(), "last": pa.list_(pa.float64(), 3)}),
        pa.schema({"window_start": pa.timestamp("us", "UTC")}),
    )

    assert state_schema(schema.describe()) == schema
