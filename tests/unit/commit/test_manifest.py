"""Manifests: everything an epoch made true, and the watermark that follows from it.

Processing time: a wall clock that jumps neither ends TTLs early nor stops them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slot.parts import compiled, plan_for, source

import headgate as hg
from headgate import Count, Flow
from headgate.commit.facts import EpochFacts
from headgate.commit.manifest import (
    PATIENCE_EPOCHS,
    PATIENCE_MS,
    SLACK_MS,
    Manifest,
    SourceTime,
    SteadyClock,
    epoch_time,
    next_manifest,
    watermark_after,
)
from headgate.errors import DamagedManifest, UnsupportedVersion
from headgate.operator.rows import EpochClock
from headgate.slot.plan import Control
from headgate.slot.program import Program
from headgate.state.digest import seal, unseal
from headgate.state.state_file import StateFile
from headgate.testing import ListSource, ManualClock, run
from strategies import examples

DELTA = StateFile("count/0/e000000003-a", "delta", 3, 10, 100, "aa")
RUN = StateFile("count/0/e000000004-b", "run", 4, 20, 200, "bb", (DELTA,))


def timed(*delays: str | None, idle_after: int = 3) -> Program:
    """A flow with a source per delay; None: a source without event time."""
    flow = Flow("f")
    for number, delay in enumerate(delays):
        options = {} if delay is None else {"event_time": "t", "watermark": delay}
        rows = source(
            flow, "k bigint, t timestamp", name=f"s{number}", idle_after=idle_after, **options
        )
        rows.key_by("k").process(Count(), name=f"count{number}")
    return compiled(flow)


def test_a_manifest_comes_back_from_its_bytes() -> None:
    manifest = Manifest(
        epoch=4,
        query_id="q",
        slots=2,
        tables={"count": ("count-v000000-x.arrow",)},
        chains={"count": {0: (RUN,), 1: ()}},
        sinks={"out": [{"name": "f", "rows": 1, "bytes": 2}]},
        sources={"in": SourceTime(5, 1), "idle": SourceTime()},
        used_watermark_us=3,
        watermark_us=None,
        now_ms=17,
        record=EpochFacts(4, rows=7),
        describe={"flow": "f"},
        offsets="abc",
    )

    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert Manifest.from_bytes(manifest.to_bytes()).to_bytes() == manifest.to_bytes()


@examples(60)
@given(data=st.data())
def test_no_byte_of_a_manifest_can_change_or_be_cut_unnoticed(data: st.DataObject) -> None:
    whole = Manifest(4, "q", 2, {}, {"count": {0: (RUN,), 1: ()}}, {}, now_ms=17).to_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))

    for damaged in (bytes(changed), whole[:at]):
        with pytest.raises((DamagedManifest, UnsupportedVersion)):
            Manifest.from_bytes(damaged)


def test_a_manifest_that_lost_a_chain_is_damaged() -> None:
    told = json.loads(Manifest(4, "q", 2, {}, {"count": {0: (RUN,), 1: ()}}, {}).to_bytes())
    del told["chains"]["count"]["0"]

    with pytest.raises(DamagedManifest, match="digest"):
        Manifest.from_bytes(json.dumps(told, sort_keys=True).encode(), "e4.json")


@pytest.mark.parametrize("version", [1, 2, 3, 99, "x", None])
def test_a_manifest_of_another_format_is_refused(version: object) -> None:
    told = unseal(Manifest(4, "q", 2, {}, {}, {}).to_bytes()) | {"format": version}

    with pytest.raises(UnsupportedVersion, match="e4"):
        Manifest.from_bytes(seal(told), "e4.json")


def test_a_manifest_names_its_files_and_what_they_were_folded_from() -> None:
    manifest = Manifest(4, "q", 2, {}, {"count": {0: (RUN,), 1: ()}}, {})

    assert sorted(manifest.state_files()) == [DELTA.name, RUN.name]


# --- chains -----------------------------------------------------------------------------------


def test_a_slot_that_announces_nothing_keeps_its_chain_and_one_that_leaves_loses_it() -> None:
    program = timed(None)
    plan = plan_for(program, slots=2, chains={"count0": {0: (DELTA,), 1: (DELTA,), 5: (DELTA,)}})
    total = Control(chains={"count0": {"1": [RUN.to_json()]}})

    made = next_manifest(program, plan, total, query_id="q", before=None, record=None)

    assert made.chains == {"count0": {0: (DELTA,), 1: (RUN,)}}


def test_chains_of_operators_that_left_the_flow_are_forgotten() -> None:
    program = timed(None)
    plan = plan_for(program, chains={"gone": {0: (DELTA,)}})

    made = next_manifest(program, plan, Control(), query_id="q", before=None, record=None)

    assert made.chains == {"count0": {}}


# --- event time -------------------------------------------------------------------------------


def test_the_watermark_is_the_latest_time_minus_the_delay() -> None:
    assert watermark_after(timed("10 microseconds"), {"s0": SourceTime(100)}, None) == 90


def test_the_slowest_source_holds_the_watermark() -> None:
    program = timed("0 seconds", "10 microseconds")

    assert watermark_after(program, {"s0": SourceTime(50), "s1": SourceTime(100)}, None) == 50
    assert watermark_after(program, {"s0": SourceTime(95), "s1": SourceTime(100)}, None) == 90


def test_a_source_that_has_not_spoken_yet_holds_the_watermark_where_it_is() -> None:
    program = timed("0 seconds", "0 seconds")

    assert watermark_after(program, {"s0": SourceTime(50), "s1": SourceTime(None, 1)}, None) is None
    assert watermark_after(program, {"s0": SourceTime(50)}, 7) == 7


def test_an_idle_source_no_longer_holds_the_watermark() -> None:
    program = timed("0 seconds", "0 seconds", idle_after=3)

    for silent, expected in ((2, 10), (3, 50), (9, 50)):
        sources = {"s0": SourceTime(50), "s1": SourceTime(10, silent)}
        assert watermark_after(program, sources, None) == expected


def test_when_all_sources_are_idle_the_watermark_stays() -> None:
    program = timed("0 seconds", idle_after=1)

    assert watermark_after(program, {"s0": SourceTime(50, 1)}, 20) == 20


def test_sources_without_event_time_have_no_say() -> None:
    assert watermark_after(timed(None, "0 seconds"), {"s1": SourceTime(50)}, None) == 50
    assert watermark_after(timed(None), {}, None) is None


@examples(60)
@given(
    epochs=st.lists(
        st.tuples(st.none() | st.integers(-50, 50), st.none() | st.integers(-50, 50)), max_size=12
    )
)
def test_the_watermark_never_goes_back_and_never_passes_what_a_live_source_may_still_bring(
    epochs: list[tuple[int | None, int | None]],
) -> None:
    """Against a plain retelling: per source the maximum so far, least over those not idle."""
    program = timed("5 microseconds", "0 seconds", idle_after=2)
    plan, before = plan_for(program), None
    latest: list[int | None] = [None, None]
    silent = [0, 0]
    expected: int | None = None
    for times in epochs:
        total = Control()
        for i, time in enumerate(times):
            silent[i] = silent[i] + 1 if time is None else 0
            if time is not None:
                total.source_rows[f"s{i}"] = 1
                total.event_time[f"s{i}"] = time
                latest[i] = time if latest[i] is None else max(latest[i], time)  # type: ignore[type-var]
        live = [i for i in (0, 1) if silent[i] < 2]
        if live and all(latest[i] is not None for i in live):
            mark = min(latest[i] - (5, 0)[i] for i in live)  # type: ignore[operator]
            expected = mark if expected is None else max(expected, mark)

        before = next_manifest(program, plan, total, query_id="q", before=before, record=None)

        assert before.watermark_us == expected
        assert [before.sources[f"s{i}"].silent_epochs for i in (0, 1)] == silent


def test_rows_without_a_time_keep_a_source_awake_but_move_nothing() -> None:
    program = timed("0 seconds")
    before = Manifest(1, "q", 1, {}, {}, {}, {"s0": SourceTime(40, 1)}, watermark_us=40)

    after = next_manifest(
        program, plan_for(program), Control(source_rows={"s0": 3}),
        query_id="q", before=before, record=None,
    )  # fmt: skip

    assert after.sources == {"s0": SourceTime(40, 0)}
    assert after.watermark_us == 40


@pytest.mark.parametrize("used", [None, 12])
def test_a_manifest_remembers_the_watermark_its_epoch_ran_with(used: int | None) -> None:
    program = timed("0 seconds")
    plan = plan_for(program, clock=EpochClock(4, 99, watermark_us=used))

    made = next_manifest(program, plan, Control(), query_id="q", before=None, record=None)

    assert (made.used_watermark_us, made.now_ms) == (used, 99)


MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


def told_at(now_ms: int, behind: int = 0) -> Manifest:
    return Manifest(0, "q", 1, {}, {}, {}, now_ms=now_ms, clock_behind=behind)


# --- within a run -----------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 50 * 365 * DAY])
def test_a_reading_that_jumps_is_not_followed(jump: int) -> None:
    wall, monotonic = ManualClock(START), ManualClock(7)
    clock = SteadyClock(wall, monotonic)
    for _ in range(3):
        wall.advance(MINUTE)
        monotonic.advance(MINUTE)
        wall.advance(jump)
        assert clock() == wall.now_ms - jump
        wall.advance(-jump)
        assert clock() == wall.now_ms


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_goes_on_disagreeing_is_believed(jump: int) -> None:
    wall, monotonic = ManualClock(START + jump), ManualClock(0)
    clock = SteadyClock(lambda: wall.now_ms - (jump if not monotonic.now_ms else 0), monotonic)
    believed = []
    for minute in range(1, 15):
        wall.advance(MINUTE)
        monotonic.advance(MINUTE)
        if clock() == wall.now_ms:
            believed.append(minute)

    assert believed == list(range(1 + PATIENCE_MS // MINUTE, 15))


@examples(50)
@given(st.lists(st.integers(-SLACK_MS // 2, SLACK_MS // 2), max_size=10))
def test_a_clock_that_is_set_right_by_little_is_followed(corrections: list[int]) -> None:
    wall, monotonic = ManualClock(START), ManualClock(0)
    clock = SteadyClock(wall, monotonic)
    for correction in corrections:
        monotonic.advance(MINUTE)
        wall.advance(MINUTE + correction)
        assert clock() == wall.now_ms


# --- from epoch to epoch ----------------------------------------------------------------------


def test_time_does_not_go_back_until_the_clock_was_behind_for_many_epochs() -> None:
    last, times = told_at(START), []
    for minute in range(PATIENCE_EPOCHS + 2):
        now, behind = epoch_time(START - HOUR + minute * MINUTE, last)
        times.append(now)
        last = told_at(now, behind)

    held = PATIENCE_EPOCHS - 1
    assert times[:held] == [START] * held
    assert times[held:] == [START - HOUR + m * MINUTE for m in range(held, len(times))]


def test_a_clock_that_is_a_little_behind_never_takes_time_back() -> None:
    assert epoch_time(START - SLACK_MS, told_at(START, 1000))[0] == START


def test_a_clock_that_is_right_again_has_not_been_behind() -> None:
    _, behind = epoch_time(START + 1, told_at(START, PATIENCE_EPOCHS - 1))

    assert epoch_time(START - HOUR, told_at(START + 1, behind)) == (START + 1, 1)


# --- TTL --------------------------------------------------------------------------------------


def counted(keys: list[str], at: Callable[[int], int], steady: bool) -> list[tuple[str, int]]:
    """The counts that a TTL of ten minutes leaves, with one key and one reading per epoch."""
    wall, monotonic = ManualClock(START), ManualClock(0)

    def before(epoch: int) -> None:
        monotonic.now_ms = epoch * MINUTE
        wall.now_ms = at(epoch)

    flow = hg.Flow("ttl")
    rows = flow.source(ListSource("k string", [[{"k": k}] for k in keys]))
    rows.key_by("k").process(hg.Count(ttl="10 minutes"), name="count").to_memory("out")
    clock = SteadyClock(wall, monotonic) if steady else wall
    done = run(flow, slots=1, clock=clock, before_epoch=before, check_purity=False)
    return [(row["k"], row["count"]) for row in done.rows("out")]


def on_time(epoch: int) -> int:
    return START + epoch * MINUTE


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_ttls_end_as_if_the_clock_had_not_jumped(jump: int) -> None:
    keys = list("abcabaaaaaaaabcaaaaaaaaaaaac")
    expected = counted(keys, on_time, steady=False)

    def jumping(epoch: int) -> int:
        return on_time(epoch) + (jump if epoch in (4, 13) else 0)

    assert counted(keys, jumping, steady=True) == expected
    assert ("b", 3) in expected and expected[-1] == ("c", 1)


def test_state_that_was_touched_ahead_of_time_ends_soon_after_the_clock_is_right() -> None:
    """A driver that starts with a clock that is a day ahead, and then is not."""
    keys = ["a"] + ["b"] * 60 + ["a"]
    found = counted(keys, lambda epoch: on_time(epoch) + (0 if epoch else DAY), steady=False)

    assert found[0] == ("a", 1)
    assert found[-1] == ("a", 1)
    assert found[-2] == ("b", 60)
