"""The local engine with everything that Spark and a bad day may do to it, from one seed.

Tasks are killed between two file writes and run again; run twice with either output used; run
again long after the epoch is over (a zombie). Epochs are given up after some level. What is
shuffled is lost, doubled or changed; columns that wait in files are lost or changed there. The
driver dies at any crash point, or inside a write.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.commit.coordinator import EngineAborted, EpochResult
from headgate.slot.plan import Control, EpochPlan
from headgate.slot.program import Program
from headgate.slot.wire import BatchTuple, Kind
from headgate.state.storage import Storage
from headgate.testing import LocalEngine

Attempt = Callable[[], Iterable[BatchTuple]]
# What may happen to one tuple, or to all that a task sent, its control record included. (A source
# task whose output vanishes as a whole is beyond custody: only Spark knows how many there are.)
TAMPERINGS = ("lose", "double", "change", "miscount", "lose task", "double task")


class Killed(BaseException):
    """A process ends here, without a word. Nothing in headgate may catch it."""


@dataclass
class Faults:
    """What goes wrong, drawn from a seed; bounded, so that a run ends."""

    rng: random.Random
    kill_write: float = 0.0
    twice: float = 0.3
    zombie: float = 0.2
    abort: float = 0.1
    tamper: float = 0.1
    spoil: float = 0.1
    tamper_level: int | None = None  # only what this level sent
    zombies: list[Attempt] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def happens(self, chance: float, what: str) -> bool:
        if self.rng.random() >= chance:
            return False
        self.log.append(what)
        return True

    def wrap_storage(self, monkeypatch: Any) -> None:
        """Let `Storage` die before, inside or after a write."""
        write, create = Storage.write, Storage.create

        def die(self: Storage, name: str, data: Any, moment: str) -> None:
            if moment == "inside":
                write(self, f".{name.rpartition('/')[2]}.1.ab.tmp", b"half")
            raise Killed(f"{moment} a write of {name}")

        def dying(real: Callable[..., Any], storage: Storage, name: str, data: Any, *a: Any) -> Any:
            if not self.happens(self.kill_write, f"kill in write {name}"):
                return real(storage, name, data, *a)
            moment = self.rng.choice(["before", "inside", "after"])
            if moment == "after":
                real(storage, name, data, *a)
            return die(storage, name, data, moment)

        monkeypatch.setattr(Storage, "write", lambda s, n, d, *a: dying(write, s, n, d, *a))
        monkeypatch.setattr(Storage, "create", lambda s, n, d: dying(create, s, n, d))

    def raise_the_dead(self, chance: float = 0.5) -> None:
        """Let some old attempts run now; whatever they write or answer, nobody asked."""
        for attempt in [z for z in self.zombies if self.rng.random() < chance]:
            self.zombies.remove(attempt)
            self.log.append("zombie runs")
            try:
                list(attempt())
            except Killed:
                pass


class FaultyEngine(LocalEngine):
    """The kit's engine, and hostile."""

    def __init__(self, program: Program, faults: Faults) -> None:
        super().__init__(program)
        self.faults = faults
        self.random = faults.rng

    def run(self, plan: EpochPlan, inputs: Sequence[Any]) -> EpochResult:
        """Without the times that tasks took: managers decide from them, and a seed must replay."""
        return replace(super().run(plan, inputs), timings=[])

    def _task(self, attempt: Attempt) -> list[BatchTuple]:
        outputs = []
        for _ in range(20):
            try:
                outputs.append(list(attempt()))
            except Killed:
                continue
            if len(outputs) == 2 or not self.faults.happens(self.faults.twice, "task twice"):
                break
        first, last = outputs[0], outputs[-1]
        _check_equal(first, last)
        if self.faults.happens(self.faults.zombie, "zombie made"):
            self.faults.zombies.append(attempt)
        return self.random.choice([first, last])

    def _arrived(self, plan: EpochPlan, sent: list[BatchTuple]) -> list[BatchTuple]:
        """What arrives of what was sent, unless the job ends here; the third attempt is spared."""
        level, spared = sent[0].level if sent else 0, plan.attempt >= 2  # a tick has no sources
        if level and not spared and self.faults.happens(self.faults.abort, f"abort level {level}"):
            raise EngineAborted("the scheduler lost its mind")
        arrived = super()._arrived(plan, sent)
        if level == self.levels(plan):
            return arrived
        arrived = arrived if spared else self._tampered(arrived)
        if plan.parking_uri and not spared:
            self._spoil(Storage.at(plan.parking_uri))
        self.faults.raise_the_dead(0.2)
        return arrived

    def _spoil(self, parked: Storage) -> None:
        """A file of columns that wait for their readers is gone, or is another."""
        names = parked.list()
        if not names or not self.faults.happens(self.faults.spoil, "a parked file is spoilt"):
            return
        name, how = self.random.choice(names), self.random.choice(["lose", "change", "cut"])
        data = bytearray(parked.read(name))
        parked.delete(name)
        if how != "lose":
            at = self.random.randrange(len(data))
            data[at] ^= 1
            with open(f"{parked.uri}/{name}", "wb") as file:  # not a write that may be killed
                file.write(data if how == "change" else data[:at])

    def _tampered(self, moving: list[BatchTuple]) -> list[BatchTuple]:
        only = self.faults.tamper_level
        data = [
            i
            for i, t in enumerate(moving)
            if t.kind != Kind.CONTROL and (only is None or t.level == only)
        ]
        if not data or not self.faults.happens(self.faults.tamper, "tamper"):
            return moving
        at, how = self.random.choice(data), self.random.choice(TAMPERINGS)
        item = moving[at]
        whole = [t for t in moving if (t.level, t.producer) == (item.level, item.producer)]
        if how == "double task" or (how == "lose task" and item.level == 0):
            return [*moving, *whole]
        if how == "lose task":
            return [t for t in moving if (t.level, t.producer) != (item.level, item.producer)]
        if how == "lose":
            return moving[:at] + moving[at + 1 :]
        if how == "double":
            return [*moving, item]
        payload = bytearray(item.payload.to_pybytes())
        if how == "change":
            payload[self.random.randrange(len(payload))] ^= 1
            changed = replace(item, payload=pa.py_buffer(bytes(payload)))
        else:
            changed = replace(item, rows=item.rows + 1)
        return [*moving[:at], changed, *moving[at + 1 :]]


def _check_equal(first: list[BatchTuple], again: list[BatchTuple]) -> None:
    """Invariant 7, with the difference in the message."""
    assert [t.order for t in first] == [t.order for t in again]
    for one, other in zip(first, again, strict=True):
        if one.kind == Kind.CONTROL:
            told, again_told = (vars(Control.from_bytes(t.payload)) for t in (one, other))
            differ = {k: (told[k], again_told[k]) for k in told if told[k] != again_told[k]}
            assert not differ, f"level {one.level}, task {one.producer}: {differ}"
        assert one.payload == other.payload, one
