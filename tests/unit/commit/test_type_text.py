"""Arrow types survive the way through their text."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.commit.type_text import parse_type, state_schema
from headgate.errors import UnsupportedVersion
from headgate.state.layout import StateSchema

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


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(field, names, inner, st.booleans())
    return st.one_of(
        st.builds(pa.list_, fields),
        st.builds(pa.list_, fields, st.integers(1, 9)),
        st.builds(pa.large_list, fields),
        st.lists(fields, max_size=3).map(pa.struct),
        st.builds(pa.map_, atoms.filter(lambda t: not pa.types.is_null(t)), inner, st.booleans()),
        inner.map(lambda values: pa.dictionary(pa.int32(), values)),
    )


@given(kind=st.recursive(atoms, nested, max_leaves=4))
def test_every_type_is_read_back_from_its_text(kind: pa.DataType) -> None:
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
