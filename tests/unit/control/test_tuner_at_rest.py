"""The loop closed: under a constant load a tuner's changes are few, and come to an end.

Every world has a constant load; noise of 5 % or more is on the time of every epoch. Changes are
those of slots and of rows per epoch. `flow_world` says what a world is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from headgate.control.tuner import RETUNE_EPOCHS
from headgate.control.tuning_history import REFUSED_EPOCHS
from unit.control.flow_world import Engine, Lived, Source, live
from unit.control.test_tuner import tuner

pytestmark = pytest.mark.no_cover  # tens of thousands of epochs, and the lines of test_tuner.py

EPOCHS = 500
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)]
CHANGES_MOST = 6
ENGINE = Engine()
ELASTIC = Engine(cores=2, elastic=True)


def slots_of_work(busy: float, engine: Engine = ENGINE) -> float:
    """Rows per second that keep so many slots busy."""
    return busy / engine.slot_s


def run(
    source: Source,
    engine: Engine = ENGINE,
    *,
    slots: int = 2,
    seed: int = 1,
    epochs: int = EPOCHS,
    **options: object,
) -> Lived:
    known = {"limits": source.told, "elastic": engine.elastic, "interval_s": engine.every_s}
    watching = tuner(slots=slots, **({"cores": engine.cores} | known | options))
    return live(watching, source, engine, slots=slots, epochs=epochs, seed=seed)


def assert_rests(lived: Lived, after: int = EPOCHS // 2) -> None:
    assert len(lived.changes) <= CHANGES_MOST, lived.changes
    assert lived.rests_after(after), lived.changes


def best_rate(engine: Engine, rows: float, slots: int = 8) -> float:
    """Rows per second of epochs of that size."""
    return rows / (engine.fixed_s + engine.beside_s + rows * engine.slot_s / slots)


@pytest.mark.parametrize("engine", [ENGINE, ELASTIC], ids=["cores", "elastic"])
@pytest.mark.parametrize("reports", [True, False], ids=["reports", "silent"])
@pytest.mark.parametrize("slots", [2, 8])
@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_an_endless_backlog_behind_a_limit_that_cannot_be_told(engine, reports, slots, noise):
    """2, 8, 5, 8, 5, 8 ... it was: the optimizer's slots were given back after a horizon."""
    engine = replace(engine, noise=noise)
    lived = run(Source(limit=1_000, reports=reports), engine, slots=slots)

    assert_rests(lived)
    assert lived.rows_per_s() >= 0.9 * best_rate(engine, 1_000)


@pytest.mark.parametrize("engine", [ENGINE, ELASTIC], ids=["cores", "elastic"])
@pytest.mark.parametrize("knows", [1_000, None], ids=["told before", "never told"])
def test_an_endless_backlog_behind_a_limit_that_can_be_told(engine, knows):
    lived = run(Source(limit=1_000, told=True), engine, rows_per_epoch=knows)

    assert_rests(lived)
    assert lived.rows[-1] > 8_000
    assert lived.rows_per_s() >= 0.9 * best_rate(engine, 1e9)


@pytest.mark.parametrize(
    ("noise", "told"),
    [(0.0, False), (0.02, False), (0.02, True), (0.06, False)],
    ids=["even", "nearly even", "told", "uneven"],
)
@pytest.mark.parametrize("busy", [0.8, 1.4, 2.6, 6.0])
def test_a_steady_stream_without_a_limit(noise, busy, told):
    """A stream is no backlog, however even: 2, 7, 3, 7, 3 ... it was at 40 % of two slots."""
    lived = run(Source(rate=slots_of_work(busy), noise=noise, told=told))

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(slots_of_work(busy), rel=0.05)
    assert busy < lived.slots[-1] <= busy / 0.6 + 1
    assert not [change for change in lived.changes if change[1] == "rows"]


@pytest.mark.parametrize("files", [1, 2, 3, 8])
@pytest.mark.parametrize("busy", [0.8, 1.4, 2.6])
@pytest.mark.parametrize("seed", [1, *MORE_SEEDS])
def test_a_steady_stream_of_files(busy, files, seed):
    """Two slots take just so many in each epoch, which looks like a limit; not for ever."""
    rate = slots_of_work(busy)
    epoch_s = (ENGINE.fixed_s + ENGINE.beside_s) / max(0.2, 1 - busy / 2)

    lived = run(Source(rate=rate, file_rows=round(rate * epoch_s / files)), seed=seed, epochs=1_500)

    assert_rests(lived, after=1_400)
    assert lived.rows_per_s() == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("busy", [1.4, 3.0, 6.0])
def test_a_steady_stream_on_executors_that_come_with_the_slots(busy):
    """Cores were those of the start, so no demand beyond them was seen."""
    lived = run(Source(rate=slots_of_work(busy), noise=0.02), ELASTIC)

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(slots_of_work(busy), rel=0.05)
    assert lived.slots[-1] > busy


@pytest.mark.parametrize(
    "source",
    [Source(limit=1_000), Source(limit=1_000, reports=True), Source(limit=1_000, told=True)],
    ids=["silent", "reports", "told"],
)
def test_a_stream_that_a_limit_holds_back_with_few_slots_only(source):
    """Two slots are too slow for epochs of 1,000 rows; with more, nothing waits any more."""
    rate = slots_of_work(1.7)
    steady = Source(rate, source.limit, source.told, source.reports, noise=0.02)

    lived = run(steady, rows_per_epoch=1_000 if source.told else None)

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(rate, rel=0.05)
    assert lived.waiting[-1] < 1_000


@pytest.mark.parametrize("busy", [0.8, 1.9, 3.0])
def test_a_trigger_with_an_interval(busy):
    """Epochs of one size, a second apart: that is the trigger's doing, and no backlog."""
    lived = run(Source(rate=slots_of_work(busy), noise=0.02), Engine(every_s=1.0))

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(slots_of_work(busy), rel=0.05)


def test_a_limit_too_small_for_its_trigger_becomes_larger():
    source = Source(rate=slots_of_work(0.8), limit=200, told=True, noise=0.02)

    lived = run(source, Engine(every_s=0.5), rows_per_epoch=200)

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(source.rate, rel=0.05)


@pytest.mark.parametrize("latency_s", [0.1, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("told", [True, False], ids=["told", "deaf"])
def test_a_latency_target_wrecks_no_throughput(latency_s, told):
    """Met or not: it was one row per epoch, told again every 16 epochs."""
    rate = slots_of_work(1.4)

    lived = run(Source(rate, noise=0.02, told=told), latency_s=latency_s, limits=True)

    assert_rests(lived)
    assert lived.rows_per_s() == pytest.approx(rate, rel=0.05)
    in_time = 1.5 * (lived.jobs_s[-1] + ENGINE.beside_s) <= latency_s
    assert in_time or latency_s < 0.7


@pytest.mark.parametrize("latency_s", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("told", [True, False], ids=["told", "deaf"])
def test_a_latency_target_costs_a_backlog_a_fifth_at_most(latency_s, told):
    lived = run(Source(limit=20_000, told=told), latency_s=latency_s, limits=True)

    assert_rests(lived)
    assert lived.rows_per_s() >= 0.75 * best_rate(ENGINE, 1e9)
    assert told == (lived.rows[-1] < 20_000)
    assert told or any("are not told again" in note for note in lived.notes)


def test_a_source_that_does_not_listen_is_told_once():
    lived = run(Source(limit=1_000), limits=True)

    assert [change[1] for change in lived.changes].count("rows") == 1
    assert lived.notes == [
        "sources were told 8,000 rows per epoch, and still bring 1,000; they are not told again"
    ]


def test_slots_that_do_not_come_are_asked_for_again_but_ever_more_seldom():
    cluster = Engine(cores=2, elastic=True, slots_had=2)

    lived = run(Source(rate=slots_of_work(3.0)), cluster)

    asked = [epoch for epoch, _, _ in lived.changes]
    apart = [after - before for before, after in pairwise(asked)]
    assert 2 <= len(asked) <= 4
    assert apart[0] >= REFUSED_EPOCHS
    assert all(later >= 1.9 * sooner for sooner, later in pairwise(apart))
    assert "slots did not come; going on from 2" in lived.notes[0]


def test_cores_that_do_not_come_are_not_counted_on():
    """Slots grow, and no executor comes with them: two cores share the work of eight slots."""
    lived = run(Source(limit=1_000), Engine(cores=2), elastic=True)

    assert len(lived.changes) <= CHANGES_MOST, lived.changes
    assert lived.rows_per_s() >= 0.9 * best_rate(ENGINE, 1_000, slots=2)


def test_the_first_advice_comes_when_there_is_something_to_say():
    lived = run(Source(limit=1_000))

    assert lived.changes[0][0] == RETUNE_EPOCHS - 1
