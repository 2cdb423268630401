"""More or fewer slots while the flow runs, without a restart and without a cold epoch.

Growing: executors are asked for, each is warmed as it comes, the new slots get their hosts, and
epochs without rows are rehearsed on them, all beside the running epochs; only then the slot count
changes, at an epoch boundary. Shrinking: the slot count changes first, and state moves off the
leaving slots with that epoch; when it is committed, executors that host no slot any more are
given back, between two epochs, so that no task of one is lost with them.

What fails on the way (no executors to be had, say) is told in the journal; the flow goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from headgate.commit.coordinator import Coordinator
from headgate.commit.facts import ElasticFacts
from headgate.errors import EngineError
from headgate.runtime.engine import SparkEngine
from headgate.runtime.executors import Executor, Executors, enough_for
from headgate.runtime.rehearsal import Rehearsal, Warming
from headgate.topology.arguments import check_count

log = logging.getLogger("headgate")

WAIT_FOR_EXECUTORS_S = 120.0


class Elastic:
    """Changes the slot count, one change at a time; of several wishes the last one counts."""

    def __init__(self, coordinator: Coordinator, engine: SparkEngine) -> None:
        self._coordinator, self._engine = coordinator, engine
        self._executors = Executors(engine.spark)
        self._rehearsal = Rehearsal(engine, self._executors)
        self._lock = threading.Lock()
        self._wish: tuple[int, str] | None = None
        self._thread: threading.Thread | None = None
        self._epoch_over = threading.Condition()
        self._closed = False

    def request(self, slots: int, why: str) -> None:
        """Run with so many slots as soon as can be; returns at once."""
        slots = check_count(slots, "slots=", error=EngineError)
        with self._lock:
            self._wish = (slots, why)
            if self._thread is None:
                name = f"headgate-elastic-{self._coordinator.program.graph.name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    @property
    def is_changing(self) -> bool:
        """Is a change under way? Once it is not, an epoch planned from then on has the slots."""
        with self._lock:
            return self._thread is not None

    def epoch_committed(self) -> None:
        with self._epoch_over:
            self._epoch_over.notify_all()

    def close(self) -> None:
        """Stop waiting for epochs that will not come."""
        self._closed = True
        self.epoch_committed()

    # --- inside ----------------------------------------------------------------------------
    def _work(self) -> None:
        coordinator = self._coordinator
        while True:
            with self._lock:
                wish, self._wish = self._wish, None
                if wish is None or self._closed:
                    self._thread = None
                    return
            try:
                self._change(*wish)
            except Exception as problem:
                if self._closed:
                    continue
                log.exception("changing to %s slots failed; the flow goes on as it is", wish[0])
                reason = f"{type(problem).__name__}: {problem}"[:500]
                coordinator.journal.append(ElasticFacts(wish[0], failed=reason))

    def _change(self, slots: int, why: str) -> None:
        coordinator, before = self._coordinator, self._coordinator.slots
        if slots == before:
            return
        facts = ElasticFacts(slots, before)
        try:
            if slots > before:
                facts = self._make_room(facts)
                facts = replace(facts, rehearsed_s=self._rehearse(slots, before))
            self._engine.anchor(slots)
        finally:
            self._engine.source_tasks_max = None
        coordinator.resize(slots, why)
        if slots < before:
            facts = replace(facts, released=self._release(slots))
        coordinator.journal.append(facts)

    def _rehearse(self, slots: int, before: int) -> tuple[float, ...]:
        """Seconds of each rehearsal, on the hosts that get their first slots."""
        known = set(self._engine.hosts(before))
        first = [host for host in self._engine.hosts(slots) if host not in known]
        if not first:
            return ()
        played = self._rehearsal.play(self._coordinator.rehearsal(len(first)), first)
        return tuple(round(seconds, 2) for seconds in played)

    def _make_room(self, facts: ElasticFacts) -> ElasticFacts:
        """A core per slot, as far as the cluster has them, each warm.

        Until they are, source tasks are no more than the cores there are: one that waited for a
        core would be given to a cold executor in the moment it comes.
        """
        if not self._executors.ours_to_change:
            return replace(facts, cores=self._executors.cores)
        started, slots = time.monotonic(), facts.slots
        came: list[Warming] = []
        self._engine.source_tasks_max = max(1, self._executors.cores)
        practice = self._rehearsal.practice(self._coordinator.rehearsal(slots))

        def arrived(new: list[Executor]) -> Callable[[], None]:
            came.append(self._rehearsal.take(practice, new))
            return came[-1].wait

        self._executors.bring(slots, arrived, timeout_s=WAIT_FOR_EXECUTORS_S)
        live = self._executors.live()
        cores = sum(executor.cores for executor in live)
        new = {executor.id for warming in came for executor in warming.new}
        return replace(
            facts,
            cores=cores,
            ready_s=round(time.monotonic() - started, 2),
            arrived=tuple(executor.name for executor in live if executor.id in new),
            warmed_s=tuple(round(warming.seconds, 2) for warming in came),
            read_source=all(warming.read_source for warming in came),
        )

    def _release(self, slots: int) -> tuple[str, ...]:
        """Give back what hosts no slot, once an epoch with the new slots is committed."""
        with self._epoch_over:
            self._epoch_over.wait_for(lambda: self._closed or self._committed_slots() == slots)
        if self._closed:
            return ()
        with self._engine.between_epochs:
            slots_on = dict(Counter(self._engine.hosts(slots)))
            stays = enough_for(slots_on, self._executors.live())
            leaving = self._executors.give_back(stays)
        return tuple(executor.name for executor in leaving)

    def _committed_slots(self) -> int:
        last = self._coordinator.last
        return 0 if last is None else last.slots
