"""The manifest of an epoch: everything that the epoch made true, in one atomic file.

State after epoch e is what manifest e names; a file that no manifest names does not exist. The
next epoch's plan is a function of the last manifest, so a restarted driver plans what the dead
one would have planned.

That includes processing time. A wall clock may jump: ahead, and every TTL is over at once; back,
and none ends until it has caught up. Two rules, neither of which trusts one reading:

- `SteadyClock`: while a driver runs, time goes on as a clock that never jumps says. A wall clock
  that disagrees with it is believed when it has done so for `PATIENCE_MS`.
- `epoch_time`: time does not go back from epoch to epoch, until the clock has been behind the last
  manifest in `PATIENCE_EPOCHS` epochs in a row. State touched in the meantime, at a time that is
  now ahead, counts as touched in the next sweep (`StateSession`).

A clock that is ahead when a driver starts cannot be told from one that was down for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.commit.facts import EpochFacts, SideTable
from headgate.commit.facts_json import from_json, to_json
from headgate.errors import DamagedManifest, UnsupportedVersion
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.state.digest import DamagedFile, NotSigned, Sign, seal, unseal
from headgate.state.state_file import Chain, StateFile

FORMAT = 4  # since 0.2; 0.1 wrote 2 and 3
AT = "at"  # in the entry of a sink's file: where it is staged, if outside of the checkpoint
SLACK_MS = 60_000  # clocks are set right by less than this all the time
PATIENCE_MS = 600_000  # clocks must disagree for so long before the wall clock is believed
PATIENCE_EPOCHS = 10  # in a row, before time may go back


@dataclass(frozen=True)
class SourceTime:
    """Event time of one source: the latest seen, and for how many epochs it has been silent."""

    latest_us: int | None = None
    silent_epochs: int = 0


@dataclass(frozen=True)
class Manifest:
    """`describe`: the flow that the chains belong to.

    `ticks`: how many epochs so far had no batch of the input; `offsets`: a digest of Spark's plan
    of the last batch; `generation`: that of the driver; `keys`: a fingerprint of the secret by
    which its keys are told apart; `clock_behind`: in how many epochs in a row the clock was behind
    `now_ms`; `published`: rows of each table sink so far, those of this epoch too; `instances`: the
    slots of operators that have an instance in some slots only; `due`: by operator and slot, the
    earliest watermark and processing time at which something held back is due; `side_tables`: the
    version of its table that each lookup used.
    """

    epoch: int
    query_id: str
    slots: int
    tables: Mapping[str, tuple[str, ...]]
    chains: Mapping[str, Mapping[int, Chain]]
    sinks: Mapping[str, list[dict[str, Any]]]
    sources: Mapping[str, SourceTime] = field(default_factory=dict)
    used_watermark_us: int | None = None
    watermark_us: int | None = None
    now_ms: int = 0
    clock_behind: int = 0
    record: EpochFacts | None = None
    costs: Mapping[str, str] = field(default_factory=dict)
    describe: Mapping[str, Any] = field(default_factory=dict)
    offsets: str | None = None
    keys: str | None = None
    ticks: int = 0
    generation: int = 0
    published: Mapping[str, int] = field(default_factory=dict)
    instances: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    due: Mapping[str, Any] = field(default_factory=dict)
    side_tables: Mapping[str, SideTable] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """The last batch of the input that the state holds."""
        return self.epoch - self.ticks

    def state_files(self) -> Iterator[str]:
        """Names of all state files this manifest may need, fallbacks included."""
        for by_slot in self.chains.values():
            for chain in by_slot.values():
                for file in chain:
                    yield file.name
                    yield from (old.name for old in file.replaces)

    def sink_files(self) -> Iterator[str]:
        """Names of its sink files, below the folder of all sinks."""
        for sink, files in self.sinks.items():
            yield from (f"{sink}/{file['name']}" for file in files)

    def to_bytes(self, sign: Sign | None = None) -> bytes:
        return seal({"format": FORMAT, **to_json(self)}, sign)

    @classmethod
    def from_bytes(cls, data: bytes, file: str = "manifest", sign: Sign | None = None) -> Manifest:
        """The manifest back; `file` is named in the error if it is not whole."""
        try:
            stored = unseal(data, sign)
            check_format(file, stored.pop("format"))
            return from_json(cls, stored)
        except NotSigned:
            raise
        except (DamagedFile, ValueError, KeyError, TypeError, AttributeError) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            raise DamagedManifest(
                f"{file} is damaged ({reason}); bring it back from a copy", file=file, reason=reason
            ) from problem


BEFORE = Manifest(-1, "", 0, {}, {}, {})  # what is true before the first epoch


def check_format(what: str, found: object, readable: object = FORMAT) -> None:
    """Refuse what another version wrote, and say which one can go on with it."""
    if found != readable:
        writer = "headgate 0.1" if found in (None, 2, 3, "hg1") else "another version of headgate"
        raise UnsupportedVersion(
            f"{what} was written by {writer} (format {found}), and headgate 0.2 reads format "
            f"{readable} only. Finish the flow with {writer}, or start with a new checkpoint "
            f"folder",
            found=found,
            supported=readable,
        )


def next_manifest(
    program: Program,
    plan: EpochPlan,
    total: Control,
    *,
    query_id: str,
    before: Manifest | None,
    record: EpochFacts | None,
    costs: Mapping[str, str] | None = None,
    side_tables: Mapping[str, SideTable] | None = None,
    offsets: str | None = None,
    tick: bool = False,
    silent: bool = True,
    generation: int = 0,
) -> Manifest:
    """What becomes true if this epoch commits."""
    before = before or BEFORE
    sources = _source_times(program, total, before, silent)
    return Manifest(
        epoch=plan.epoch,
        query_id=query_id,
        slots=plan.slots,
        tables=dict(plan.table_files),
        chains=_chains(program, plan, total),
        sinks=_sinks(program, plan, total),
        sources=sources,
        used_watermark_us=plan.clock.watermark_us,
        watermark_us=watermark_after(program, sources, before.watermark_us),
        now_ms=plan.clock.now_ms,
        clock_behind=plan.clock_behind,
        record=record,
        costs=dict(costs or {}),
        describe=program.describe(),
        offsets=offsets,
        keys=plan.identity.fingerprint,
        ticks=before.ticks + tick,
        generation=generation,
        published=_published(program, total, before),
        instances={op: route.slots for op, route in plan.routes.items() if route.slots},
        due=_due(program, plan, total),
        side_tables=dict(side_tables or {}),
    )


def watermark_after(
    program: Program, sources: Mapping[str, SourceTime], previous: int | None
) -> int | None:
    """Least over the sources that are not idle of (latest event time - delay); never backwards."""
    marks: list[int] = []
    for node in program.sources:
        if node.spec.event_time is None:
            continue
        time = sources.get(node.own_name, SourceTime())
        if time.silent_epochs >= node.spec.idle_after:
            continue
        if time.latest_us is None:
            return previous
        marks.append(time.latest_us - node.spec.delay_us)
    if not marks:
        return previous
    return min(marks) if previous is None else max(previous, min(marks))


def _sinks(program: Program, plan: EpochPlan, total: Control) -> dict[str, list[dict[str, Any]]]:
    """Files of each sink; those outside of the checkpoint with their place, as it may change."""
    outside = {sink.name for sink in program.sinks if sink.spec.kind == "parquet"}
    return {
        name: [{**file, AT: plan.sink_uris[name]} for file in files] if name in outside else files
        for name, files in total.sinks.items()
    }


def _published(program: Program, total: Control, before: Manifest) -> dict[str, int]:
    """Rows of every table sink so far."""
    counted = dict(before.published)
    for sink in program.sinks:
        if sink.spec.kind == "table":
            rows = sum(file["rows"] for file in total.sinks.get(sink.name, ()))
            counted[sink.name] = counted.get(sink.name, 0) + rows
    return counted


def _source_times(
    program: Program, total: Control, before: Manifest, silent: bool
) -> dict[str, SourceTime]:
    """`silent`: an epoch without rows of a source counts as a silent one."""
    times = {}
    for node in program.sources:
        old = before.sources.get(node.own_name, SourceTime())
        latest = total.event_time.get(node.own_name)
        if latest is not None and old.latest_us is not None:
            latest = max(latest, old.latest_us)
        epochs = 0 if total.source_rows.get(node.own_name) else old.silent_epochs + silent
        times[node.own_name] = SourceTime(old.latest_us if latest is None else latest, epochs)
    return times


def _chains(program: Program, plan: EpochPlan, total: Control) -> dict[str, dict[int, Chain]]:
    """Old chains of the instances that stay, replaced by what the tasks announced."""
    chains: dict[str, dict[int, Chain]] = {}
    for table, node in program.tables:
        slots = plan.slots_of(node.name)
        kept = {s: chain for s, chain in plan.chains.get(table, {}).items() if s in slots}
        for slot, files in total.chains.get(table, {}).items():
            kept[int(slot)] = tuple(StateFile.from_json(f) for f in files)
        chains[table] = dict(sorted(kept.items()))
    return chains


def _due(program: Program, plan: EpochPlan, total: Control) -> dict[str, dict[str, Any]]:
    """When the slots of operators that hold something back have something to do next."""
    due: dict[str, dict[str, Any]] = {}
    for node in program.stateful:
        if node.holds_back:
            slots = {str(slot) for slot in plan.slots_of(node.name)}
            known = {**plan.due.get(node.name, {}), **total.due.get(node.name, {})}
            due[node.name] = {slot: at for slot, at in sorted(known.items()) if slot in slots}
    return due


class SteadyClock:
    """The wall clock in ms, without its jumps."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        self._start_ms = wall_ms() - monotonic_ms()  # the wall clock's time at monotonic time 0
        self._doubted_since_ms: int | None = None

    def __call__(self) -> int:
        wall, monotonic = self._wall_ms(), self._monotonic_ms()
        steady = self._start_ms + monotonic
        if abs(wall - steady) > SLACK_MS:
            if self._doubted_since_ms is None:
                self._doubted_since_ms = monotonic
            if monotonic - self._doubted_since_ms < PATIENCE_MS:
                return steady
        self._start_ms, self._doubted_since_ms = wall - monotonic, None
        return wall


def epoch_time(clock_ms: int, last: Manifest | None) -> tuple[int, int]:
    """The time of the epoch after `last`, and in how many epochs in a row the clock was behind."""
    if last is None or clock_ms >= last.now_ms:
        return clock_ms, 0
    behind = last.clock_behind + 1
    if last.now_ms - clock_ms > SLACK_MS and behind >= PATIENCE_EPOCHS:
        return clock_ms, 0
    return last.now_ms, behind
