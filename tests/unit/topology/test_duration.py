"""Durations as people write them."""

from __future__ import annotations

import doctest
from datetime import timedelta

import pytest

from headgate.errors import DeclarationError
from headgate.topology import arguments
from headgate.topology.arguments import duration_us


@pytest.mark.parametrize(
    ("given", "microseconds"),
    [
        ("10 seconds", 10_000_000),
        ("1 minute", 60_000_000),
        (" 2 HOURS ", 7_200_000_000),
        ("0.5 seconds", 500_000),
        ("250 milliseconds", 250_000),
        ("1 day 2 hours", 93_600_000_000),
        ("3 microseconds", 3),
        ("0.1 seconds", 100_000),
        (timedelta(milliseconds=2), 2_000),
        (timedelta(0), 0),
    ],
)
def test_durations_are_read(given: str | timedelta, microseconds: int) -> None:
    assert duration_us(given) == microseconds


@pytest.mark.parametrize(
    "given", ["", "10", "seconds", "-1 second", "1 fortnight", "1 s", timedelta(seconds=-1)]
)
def test_durations_that_make_no_sense_are_refused(given: str | timedelta) -> None:
    with pytest.raises(DeclarationError):
        duration_us(given)


def test_the_examples_in_the_docstring_run() -> None:
    assert doctest.testmod(arguments).failed == 0
