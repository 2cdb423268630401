"""Planning beside the epochs: the stream never waits for a planner.

After every epoch its facts and statistics go to the manager, which works in a thread of its own. A
decision that is ready when the next epoch begins is installed with it; one that is not yet waits
for a later epoch, and what was observed meanwhile goes into the next one. At most one decision is
under way, so it always starts from the tables in use; if the number of slots, or the slots of an
operator, change meanwhile, the decision is void.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from html import escape
from typing import Protocol

from headgate.commit.facts import EpochFacts, OutcomeFacts, PlanFacts, TuningFacts
from headgate.routing.route import Dispatch
from headgate.routing.table import RoutingTable
from headgate.slot.statistics import TaskStatistics

log = logging.getLogger("headgate")


@dataclass(frozen=True)
class Observed:
    """One committed epoch, as the manager sees it.

    `changing`: another number of slots was on its way when it was committed. `counted_units`: its
    statistics are of units, in place of keys (None: unknown).
    """

    facts: EpochFacts
    statistics: Sequence[TaskStatistics]
    changing: bool = False
    counted_units: bool | None = None


@dataclass(frozen=True)
class Decision:
    """Tables to install (none: all stay), and what the journal should know about it.

    `plan` says what was decided and why; None: there is nothing to tell. `outcome` is what came of
    the decision before: promised and achieved. `slots` is how many there should be, if that is to
    change, and `scaling` why; the engine may need some epochs to get ready for it. Of fewer slots
    `gone` says which ones leave (none given: the last ones). `dispatch` is
    how rows of some operators find their slots in the plans to come; None: as they did.
    `tuning` has the limit that sources should get, rows of batches, and what a later start should
    begin with. `instances` holds the slots of the operators whose instances change; their tables
    follow. `instances_then` are among the `slots` that are asked for, and come with them.
    """

    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    plan: PlanFacts | None = None
    outcome: OutcomeFacts | None = None
    slots: int | None = None
    scaling: str = "the manager's plan"
    gone: tuple[int, ...] = ()
    dispatch: Mapping[str, Dispatch] | None = None
    tuning: TuningFacts | None = None
    instances: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    instances_then: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Decision: {'; '.join(self._parts()) or 'all stays as it is'}>"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self._parts())
        return f"<b>Decision</b><ul>{lines or '<li>all stays as it is</li>'}</ul>"

    def _parts(self) -> list[str]:
        """What it changes, a line each, and why."""
        parts = [f"{name} gets {table!r}" for name, table in self.tables.items()]
        if self.slots is not None:
            leave = f", of which {list(self.gone)} leave" if self.gone else ""
            parts.append(f"{self.slots} slots{leave} ({self.scaling})")
        parts += [f"{name} runs in slots {list(at)}" for name, at in self.instances.items()]
        for name, dispatch in (self.dispatch or {}).items():
            parts.append(f"the dispatch of {name} is {type(dispatch).__name__}")
        if (tuned := self.tuning) is not None:
            why = tuned.why or tuned.why_rows or tuned.why_instances or tuned.note
            parts.append(f"tuned: {why or 'nothing to change'}")
        if self.plan is not None:
            plan = self.plan
            parts.append(f"planner {plan.planner}: {plan.failed or plan.why or 'it pays'}")
        return parts


class Decides(Protocol):
    """Who decides: pure code, epochs in, a decision out."""

    @property
    def statistics_bytes(self) -> int:
        """What every slot may spend on statistics."""
        ...

    @property
    def born_local(self) -> frozenset[str]:
        """Operators whose unowned keys are processed where their rows are, from now on."""
        ...

    def step(
        self, observed: Sequence[Observed], tables: Mapping[str, RoutingTable]
    ) -> Decision: ...


def units_of(manager: Decides) -> frozenset[str]:
    """Operators of which units (buckets and pinned keys) are counted and placed, not keys."""
    found: frozenset[str] = getattr(manager, "units_of", frozenset())
    return found


class Planning:
    """Runs a manager beside the epochs, or between them (`beside=False`, for tests)."""

    def __init__(self, manager: Decides, *, beside: bool = True) -> None:
        self.manager = manager
        self._waiting: list[Observed] = []
        self._under_way: Future[Decision] | None = None
        self._slots = 0
        self._instances: Mapping[str, tuple[int, ...]] = {}
        self._thread = ThreadPoolExecutor(1, "headgate-planning") if beside else None

    @property
    def units_of(self) -> frozenset[str]:
        return units_of(self.manager)

    def prepare(self, work: Callable[[], None]) -> None:
        """Do what planning needs once, before the first epoch asks for it."""
        if self._thread is not None:
            self._thread.submit(work)

    def observe(self, observed: Observed, tables: Mapping[str, RoutingTable]) -> None:
        """An epoch was committed: let the manager think about it, and all since it last did."""
        self._waiting.append(observed)
        if self._under_way is not None:
            return
        seen, self._waiting = self._waiting, []
        self._slots, self._instances = slots_of(tables), seen[-1].facts.instances
        if self._thread is not None:
            self._under_way = self._thread.submit(self.manager.step, seen, dict(tables))
            return
        self._under_way = Future()
        try:
            self._under_way.set_result(self.manager.step(seen, dict(tables)))
        except Exception as problem:
            self._under_way.set_exception(problem)

    def take(
        self, slots: int, instances: Mapping[str, tuple[int, ...]] | None = None
    ) -> Decision | None:
        """The decision that is ready, if there is one. A planner that failed changes nothing.

        Of a decision that was made for other slots, or other `instances` of operators, only what it
        says is left, and what has nothing to do with slots: rows per epoch.
        """
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        try:
            decision = done.result()
        except Exception as problem:
            log.exception("planning failed; the routing tables stay as they are")
            return Decision(plan=PlanFacts(failed=f"{type(problem).__name__}: {problem}"))
        same = instances is None or instances == self._instances
        if self._slots in (0, slots) and same:
            return decision
        plan = decision.plan
        if plan is not None:
            overtaken = f"made for {self._slots} slots, there are {slots} now"
            if self._slots == slots:
                overtaken = "operators have their instances in other slots by now"
            plan = replace(plan, overtaken=overtaken)
        nothing = replace(decision, tables={}, slots=None, gone=(), dispatch=None, instances={})
        return replace(nothing, plan=plan)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def slots_of(tables: Mapping[str, RoutingTable]) -> int:
    """The number of slots that tables are for; 0 if there is none."""
    return next((table.slots for table in tables.values()), 0)
