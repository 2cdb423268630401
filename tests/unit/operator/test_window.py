"""Windows: durations, and where a row belongs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.errors import DeclarationError
from headgate.operator import Tumbling
from headgate.topology.arguments import positive_us


@pytest.mark.parametrize(
    ("given", "microseconds"),
    [
        ("1 second", 10**6),
        ("10 seconds", 10**7),
        ("1 Minute", 6 * 10**7),
        ("1 hour 30 minutes", 54 * 10**8),
        ("5milliseconds", 5_000),
        (timedelta(days=7), 604_800 * 10**6),
        ("1 week", 604_800 * 10**6),
    ],
)
def test_durations_are_read(given: str | timedelta, microseconds: int) -> None:
    assert positive_us(given) == microseconds


@pytest.mark.parametrize("given", ["", "soon", "1", "1 fortnight", "1 minute or so", "-1 second"])
def test_what_is_no_duration_is_refused(given: str) -> None:
    with pytest.raises(DeclarationError, match="not a duration"):
        Tumbling(given, time="ts")


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(DeclarationError, match="positive"):
        Tumbling("0 seconds", time="ts")
