"""JSON that every reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.topology.text import json_text

NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.floats(), inner)
)


@given(VALUES)
def test_no_value_makes_words_that_json_does_not_have(value: Any) -> None:
    json.loads(json_text(value), parse_constant=pytest.fail)


def test_what_json_can_say_is_said() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": []}}

    assert json.loads(json_text(value)) == value
    assert json_text(b"\xff", default=bytes.hex) == '"ff"'
