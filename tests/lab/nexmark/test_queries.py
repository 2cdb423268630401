"""Every query answers as DuckDB does over the same events, row for row."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate_lab.nexmark.event_files import EventFiles, write_event_files
from headgate_lab.nexmark.events import FIRST_ID, EventOptions
from headgate_lab.nexmark.in_kit import clock_ms, results_of, run_in_kit
from headgate_lab.nexmark.oracle import Oracle
from headgate_lab.nexmark.queries import QUERIES

EPOCHS = 4
STREAMS = {
    # A hundred seconds; bidders are people of the stream, without which q23 finds nothing so early.
    "usual": EventOptions(events=20_000, events_per_second=200, first_bidder=FIRST_ID),
    # Several hours, over midnight: for what goes by day and by hour.
    "slow": EventOptions(events=6_000, events_per_second=0.2, start="2026-03-28T18:00:00"),
    "persistent": EventOptions(events=10_000, events_per_second=100, persistent=True),
}
BY_DAY = ("q10", "q14", "q15", "q16", "q17")


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[EventFiles, Oracle]]:
    made = {}
    for name, options in STREAMS.items():
        folder = tmp_path_factory.mktemp(name)
        files = write_event_files(options, folder, epochs=EPOCHS)
        made[name] = files, Oracle(files, [clock_ms(epoch) * 1000 for epoch in range(EPOCHS)])
    return made


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_answers_as_duckdb_does(name, streams, tmp_path: Path) -> None:
    files, oracle = streams["slow" if name in BY_DAY else "usual"]
    done = run_in_kit(QUERIES[name], files, tmp_path, slots=3)
    answer = oracle.check(name, results_of(QUERIES[name], done, tmp_path))
    assert answer.rows > 0
    assert answer.right, str(answer)
