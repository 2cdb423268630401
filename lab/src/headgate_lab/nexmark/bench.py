"""Nexmark side by side: every query in Headgate, native Spark and Flink SQL, over the same files.

A query is checked first, row for row, in a run of its own. Then contestants take turns; the figure
of each is the median of its rounds. The first epoch is warm-up and not timed. Spark runs with the
better of its two state stores: both run in the first round, the faster one in the others. Rows are
those of the tables that a query reads. Bytewax and Pathway run the few queries that were written
for them. What is known so far is handed out after every query; what fails or takes too long is left
out with the reason, and the others go on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headgate.demo import Machine
from headgate.topology.schema import to_schema
from headgate_lab.baselines import spark_query
from headgate_lab.baselines.nexmark_flink import FlinkProcess
from headgate_lab.baselines.result import RivalUnavailable
from headgate_lab.nexmark import peer_sql, python_peers
from headgate_lab.nexmark.contestants import Ran, check_headgate, run_headgate
from headgate_lab.nexmark.contestants import run_native as native
from headgate_lab.nexmark.event_files import EventFiles, write_event_files
from headgate_lab.nexmark.events import SCHEMAS, EventOptions
from headgate_lab.nexmark.oracle import Oracle
from headgate_lab.nexmark.pacing import Pace
from headgate_lab.nexmark.python_peers import PythonPeer
from headgate_lab.nexmark.queries import QUERIES
from headgate_lab.nexmark.query import Query
from headgate_lab.record import work_folder

Say = Callable[[str], None]
Keep = Callable[[dict[str, Any]], None]
Contestants = dict[str, Callable[[], "Ran | float"]]
RIVALS = ("native", "flink", *python_peers.PEERS)
STORES = {"rocksdb": spark_query.ROCKSDB, "memory": spark_query.MEMORY}


@dataclass(frozen=True)
class NexmarkOptions:
    """Sizes of the comparison; the defaults are the ones whose figures the docs quote."""

    queries: tuple[str, ...] = tuple(QUERIES)
    events: int = 1_000_000
    events_per_second: float = 10_000.0
    persistent: bool = False
    epochs: int = 5
    warmup: int = 1
    slots: int = 2
    rounds: int = 3
    seed: int = 17
    rivals: tuple[str, ...] = RIVALS
    minutes: float | None = None
    longest_s: float = 180.0

    @property
    def event_options(self) -> EventOptions:
        return EventOptions(
            events=self.events,
            events_per_second=self.events_per_second,
            persistent=self.persistent,
            seed=self.seed,
        )


@dataclass
class Rounds:
    """What the rounds of one query told, by contestant."""

    rows: int
    warmup: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, ran: Ran | float) -> None:
        """Seconds of epochs, or of all rows that count in one piece."""
        if isinstance(ran, Ran):
            timed = ran.epoch_seconds[self.warmup :]
            self.latencies.setdefault(name, []).append(float(np.quantile(timed, 0.95)))
            ran = sum(timed)
        self.rates.setdefault(name, []).append(self.rows / ran)

    def rate(self, name: str) -> float | None:
        return median(self.rates[name]) if name in self.rates else None

    def latency(self, name: str) -> float | None:
        return median(self.latencies[name]) if name in self.latencies else None


def run_nexmark(options: NexmarkOptions, say: Say, keep: Keep | None = None) -> dict[str, Any]:
    """The figures of `headgate-lab nexmark`; `keep` is given those of the queries so far."""
    with (
        work_folder() as folder,
        ExitStack() as stack,
    ):
        work = Path(folder)
        say(f"drawing {options.events:,} events, {options.epochs} epochs")
        files = write_event_files(
            options.event_options, work / "events", epochs=options.epochs, files_per_epoch=2
        )
        flink, absent = _start_flink(options, files, work, stack, say)
        peers = _installed_peers(options, absent, say)
        places = (work / f"run-{number}" for number in count())
        pace = Pace(len(options.queries), None if options.minutes is None else 60 * options.minutes)
        site = Site(options, files, Oracle(files), flink, peers, places, absent, pace, say)
        told: dict[str, Any] = {}
        for number, name in enumerate(options.queries, 1):
            minutes = pace.gone / 60
            place = f"[{number} of {len(options.queries)}, {minutes:.1f} min]"
            say(f"{place} {name}: {QUERIES[name].title}")
            pace.next_query()
            told[name] = _one(QUERIES[name], site)
            if keep is not None:
                keep(_figures(told, site))
        return _figures(told, site)


@dataclass(frozen=True)
class Site:
    """What all queries share: the events, who takes part, and how long it may take."""

    options: NexmarkOptions
    files: EventFiles
    oracle: Oracle
    flink: FlinkProcess | None
    peers: Mapping[str, PythonPeer]
    places: Iterator[Path]
    absent: Mapping[str, str]
    pace: Pace
    say: Say

    def at_place(self, run: Callable[[Path], Any]) -> Any:
        """A folder for one run, gone afterwards."""
        place = next(self.places)
        place.mkdir(parents=True)
        try:
            return run(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _figures(told: Mapping[str, Any], site: Site) -> dict[str, Any]:
    return {
        "queries": dict(told),
        "right": sum(found["right"] for found in told.values()),
        "geometric_means": geometric_means(told),
        "absent": dict(site.absent),
        "minutes": site.pace.gone / 60,
        "options": asdict(site.options),
        "machine": asdict(Machine.here()),
    }


def _start_flink(
    options: NexmarkOptions, files: EventFiles, work: Path, stack: ExitStack, say: Say
) -> tuple[FlinkProcess | None, dict[str, str]]:
    if "flink" not in options.rivals:
        return None, {}
    files.write_csv()
    try:
        flink = FlinkProcess(
            all_files=files.csv,
            first_files=files.csv_first,
            schemas={name: to_schema(text) for name, text in SCHEMAS.items()},
            queries=peer_sql.FLINK,
            slots=options.slots,
            work=work / "flink",
            longest_s=options.longest_s,
        )
    except RivalUnavailable as problem:
        say(f"flink left out: {problem}")
        return None, {"flink": str(problem)}
    return stack.enter_context(flink), {}


def _installed_peers(
    options: NexmarkOptions, absent: dict[str, str], say: Say
) -> dict[str, PythonPeer]:
    """Bytewax and Pathway; why one is not there goes to `absent`."""
    found = {}
    for name in [name for name in python_peers.PEERS if name in options.rivals]:
        try:
            found[name] = PythonPeer.installed(name)
        except RivalUnavailable as problem:
            say(f"{name} left out: {problem}")
            absent[name] = str(problem)
    return found


def _one(query: Query, site: Site) -> dict[str, Any]:
    options, files, say = site.options, site.files, site.say
    rounds = Rounds(files.rows(query.reads, options.warmup), options.warmup)
    rounds.reasons |= site.absent
    try:
        answer = site.at_place(
            lambda place: check_headgate(
                query, files, site.oracle, place, options.slots, options.longest_s
            )
        )
    except Exception as problem:  # a query that fails is not right, and the others go on
        say(f"  not right: {problem}")
        return _told(query, rounds, False, str(problem)[:300], options)
    say(f"  {answer}")
    contestants = _contestants(query, site)
    others = {name for name in site.peers if name not in contestants}
    rounds.reasons |= dict.fromkeys(others, f"says {', '.join(python_peers.QUERIES)} only")
    for turn in range(options.rounds):
        names = list(contestants)
        if turn:
            names = site.pace.fitting(rounds.took, names)
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            _take_turn(name, contestants, rounds, say, f"  round {turn + 1} of {options.rounds}")
        _keep_faster_store(contestants, rounds)
        if "headgate" in rounds.reasons:
            return _told(query, rounds, False, rounds.reasons["headgate"], options)
    return _told(query, rounds, answer.right, str(answer), options)


def _contestants(query: Query, site: Site) -> Contestants:
    """Who takes turns, the most important first."""
    options, files, flink = site.options, site.files, site.flink
    slots, longest_s = options.slots, options.longest_s

    def headgate(place: Path) -> Ran:
        return run_headgate(query, files, place, slots, keep=False, longest_s=longest_s)

    def spark(store: str, place: Path) -> Ran:
        return native(query, files, place, slots, store, longest_s)

    def python_peer(peer: PythonPeer, place: Path) -> float:
        return _peer_seconds(peer, query, site, place)

    found: Contestants = {"headgate": partial(site.at_place, headgate)}
    if "native" in options.rivals:
        for name in STORES if query.stateful else list(STORES)[:1]:
            found[name] = partial(site.at_place, partial(spark, STORES[name]))
    if flink is not None:
        found["flink"] = partial(_flink_seconds, flink, query)
    for name, peer in site.peers.items():
        if query.name in python_peers.QUERIES:
            found[name] = partial(site.at_place, partial(python_peer, peer))
    return found


def _flink_seconds(flink: FlinkProcess, query: Query) -> float:
    if query.name not in peer_sql.FLINK:
        raise RivalUnavailable(peer_sql.FLINK_REASONS[query.name])
    return flink.seconds(query.name)


def _peer_seconds(peer: PythonPeer, query: Query, site: Site, place: Path) -> float:
    """Of the rows that are timed in the others, at the rate at which it takes all of them."""
    files, options = site.files, site.options
    right = site.oracle.answer(query.name).num_rows
    seconds = peer.seconds(
        query, files, place, slots=options.slots, results=right, longest_s=options.longest_s
    )
    return seconds * files.rows(query.reads, options.warmup) / files.rows(query.reads)


def _take_turn(name: str, contestants: Contestants, rounds: Rounds, say: Say, turn: str) -> None:
    """One run; who cannot do it is out, with the reason."""
    began = time.monotonic()
    try:
        rounds.add(name, contestants[name]())
    except Exception as problem:  # whatever one of them raises, the others go on
        del contestants[name]
        why = " ".join(str(problem).split())[:300]
        rounds.reasons["native" if name in STORES else name] = why
        say(f"  {name} cannot: {why}")
        return
    rounds.took[name] = time.monotonic() - began
    say(f"{turn}: {name:10} {rounds.rates[name][-1]:12,.0f} rows/s")


def _keep_faster_store(contestants: dict[str, Any], rounds: Rounds) -> None:
    both = [name for name in STORES if name in contestants]
    if len(both) == 2:
        del contestants[min(both, key=lambda name: rounds.rate(name) or 0.0)]


def _told(
    query: Query, rounds: Rounds, right: bool, answer: str, options: NexmarkOptions
) -> dict[str, Any]:
    store = max(STORES, key=lambda name: len(rounds.rates.get(name, ())))
    own = rounds.rate("headgate")
    rates = {"native": rounds.rate(store)}
    rates |= {name: rounds.rate(name) for name in ("flink", *python_peers.PEERS)}
    per_core = {"rows_per_s": own} | {f"{name}_rows_per_s": rates[name] for name in rates}
    return {
        "title": query.title,
        "stateful": query.stateful,
        "right": right,
        "answer": answer,
        "rows": rounds.rows,
        **per_core,
        "per_core": {n: None if r is None else r / options.slots for n, r in per_core.items()},
        **{f"over_{n}": own / rate if own and rate else None for n, rate in rates.items()},
        "p95_latency_s": rounds.latency("headgate"),
        "native_p95_latency_s": rounds.latency(store),
        "native_store": store if store in rounds.rates else None,
        "lines": query.lines,
        "native_lines": _sql_lines(peer_sql.NATIVE.get(query.name)),
        "flink_lines": _sql_lines(peer_sql.FLINK.get(query.name)),
        "reasons": rounds.reasons,
        "raw": rounds.rates,
        "rounds": {name: len(rates) for name, rates in rounds.rates.items()},
    }


def _sql_lines(sql: str | None) -> int | None:
    return None if sql is None else sum(bool(line.strip()) for line in sql.splitlines())


def geometric_means(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of the ratios to each peer, over stateful queries that both can do, and the least of them.

    Examples:
        >>> found = {"a": {"stateful": True, "over_native": 2.0, "over_flink": None},
        ...          "b": {"stateful": True, "over_native": 8.0, "over_flink": None}}
        >>> geometric_means(found)["over_native"]["mean"]
        4.0
    """
    means: dict[str, Any] = {}
    for ratio in (f"over_{peer}" for peer in RIVALS):
        for name, wanted in ((ratio, True), (f"{ratio}_stateless", False)):
            values = {
                query: found[ratio]
                for query, found in told.items()
                if found.get(ratio) is not None and found["stateful"] is wanted
            }
            means[name] = None
            if values:
                mean = exp(sum(map(log, values.values())) / len(values))
                least = min(values, key=lambda query: values[query])
                means[name] = {
                    "mean": round(mean, 12),
                    "queries": len(values),
                    "least": {least: values[least]},
                }
    return means
