"""Text that a terminal shows and does not obey."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.topology.text import plain_text

ANY = st.text(st.characters(exclude_categories=()))


@given(ANY)
def test_nothing_is_left_that_does_not_print(text: str) -> None:
    assert plain_text(text).isprintable()


@given(ANY)
def test_what_prints_stays_as_it_is(text: str) -> None:
    printable = "".join(c for c in text if c.isprintable())

    assert plain_text(printable) == printable
