"""Every query answers as DuckDB does over the same events, row for row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.scenario.oracle import Case
from tests.scenario.restless import Restless

import headgate as hg
from headgate.commit.faults import CRASH_POINTS
from headgate.slot.compile import compile_flow
from headgate.testing import run
from headgate_lab.baselines.result import RivalUnavailable
from headgate_lab.nexmark.auction_site import AuctionSite
from headgate_lab.nexmark.event_files import EventFiles, write_event_files, write_shards
from headgate_lab.nexmark.events import FIRST_ID, SCHEMAS, EventOptions
from headgate_lab.nexmark.in_kit import RESULTS, clock_ms, declare, results_of, run_in_kit
from headgate_lab.nexmark.oracle import Oracle
from headgate_lab.nexmark.python_peers import PEERS, PythonPeer
from headgate_lab.nexmark.queries import QUERIES
from strategies import seeds

EPOCHS, BUCKETS = 4, 16
STREAMS = {
    # A hundred seconds; bidders are people soon to come, or q23 would find nothing so early.
    "usual": EventOptions(events=20_000, events_per_second=200, first_bidder=FIRST_ID + 100),
    # Several hours, over midnight: for what goes by day and by hour.
    "slow": EventOptions(events=6_000, events_per_second=0.2, start="2026-03-28T18:00:00"),
    "persistent": EventOptions(
        events=10_000, events_per_second=100, persistent=True, first_bidder=FIRST_ID + 100
    ),
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
    answer = oracle.check(name, results_of(QUERIES[name], done))
    assert answer.rows > 0
    assert answer.right, str(answer)


@pytest.mark.parametrize("name", ["q4", "q6", "q9"])
def test_auctions_near_their_shard_win_and_lose_as_anywhere(name, streams, tmp_path: Path) -> None:
    files, oracle = streams["usual"]
    shards = write_shards(files, tmp_path / "shards", 16)
    flow = hg.Flow(name)

    def read(table: str) -> hg.Files:
        found = shards.tables[table]
        schema = f"shard int, {SCHEMAS[table]}"
        return hg.Files(found.directory, schema=schema, max_files=found.files_per_epoch)

    QUERIES[name].declare(AuctionSite(flow, read, shards=True, near=True)).to_memory(RESULTS)
    done = run(flow, slots=3, input_ends=True, check_purity=False)

    loads = [record["loads"]["offers"] for record in done.records if record.get("rows")]
    told = results_of(QUERIES[name], done)
    told = told.drop_columns([column for column in ("shard",) if column in told.column_names])
    answer = oracle.check(name, told)
    assert answer.rows > 0 and answer.right, str(answer)
    assert len(loads) == EPOCHS and all(min(load) > 0 for load in loads)


def test_auctions_of_a_seller_that_end_together_have_one_order(tmp_path: Path) -> None:
    """So many events that their ids pass a thousand, and the last three digits begin anew."""
    options = EventOptions(events=50_000, events_per_second=500)
    files = write_event_files(options, tmp_path / "events", epochs=2)
    done = run_in_kit(QUERIES["q6"], files, tmp_path, slots=2)
    answer = Oracle(files).check("q6", results_of(QUERIES["q6"], done))
    assert answer.rows > 2_000
    assert answer.right, str(answer)


class Killed(BaseException):
    """The driver is gone."""


@pytest.mark.parametrize("seed", seeds(1, of=5))
@pytest.mark.parametrize("name", QUERIES)
def test_an_answer_is_right_whatever_dies_and_moves(
    name: str, seed: int, streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{name} {seed}")
    files, oracle = streams["slow" if name in BY_DAY else "persistent"]
    deaths = {(rng.choice(CRASH_POINTS), rng.randrange(EPOCHS)) for _ in range(3)}

    def reach(point: str, epoch: int) -> None:
        if (point, epoch) in deaths:
            deaths.remove((point, epoch))
            raise Killed

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    told: dict[int, list[dict[str, Any]]] = {}
    done = None
    while done is None:
        try:
            done = run_in_kit(
                QUERIES[name],
                files,
                tmp_path,
                collect=lambda rows, epoch: told.update({epoch: rows}),
                checkpoint=tmp_path / "checkpoint",
                slots=rng.randint(1, 4),
                manager=draw_manager(rng, name, files, tmp_path),
                buckets=BUCKETS,
            )
        except Killed:
            continue
    rows = [row for epoch in sorted(told) for row in told[epoch]]
    answer = oracle.check(name, results_of(QUERIES[name], done, rows))
    assert answer.rows > 0
    assert answer.right, str(answer)


def draw_manager(rng: random.Random, name: str, files: EventFiles, work: Path) -> Any:
    """None, the usual one, or one that moves keys and changes the number of slots all the time."""
    program = compile_flow(declare(QUERIES[name], files, work / "out").graph())
    keys = {node.name: (program.state_schemas[node.id].key, []) for node in program.stateful}

    def restless() -> Any:
        case = Case("nexmark", {}, {}, lambda flow, sources: {}, [], keys)
        return Restless(rng, case, program, BUCKETS)

    return rng.choice([lambda: None, hg.Manager, restless, restless])()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_counts_the_results_that_duckdb_has(name, streams, tmp_path: Path) -> None:
    peer = PEERS[name]
    if not (peer.default_venv / "installed.json").exists():
        pytest.skip(f"{name} is not installed: `headgate-lab nexmark` does it")
    files, oracle = streams["usual"]
    python = PythonPeer.installed(name)
    right = oracle.answer("q3").num_rows
    assert python.seconds(QUERIES["q3"], files, tmp_path, slots=1, results=right) > 0
    (again := tmp_path / "again").mkdir()
    with pytest.raises(RivalUnavailable, match="are right"):
        python.seconds(QUERIES["q3"], files, again, slots=1, results=right + 1)
    with pytest.raises(RivalUnavailable, match="no others"):
        python.seconds(QUERIES["q5"], files, tmp_path, slots=1, results=1)
