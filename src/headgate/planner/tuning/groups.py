"""Which operators share their instances, and in which levels of an epoch they work.

An operator whose rows come to it through an exchange has instances of its own; what follows it
without another exchange runs in the same slots. Such a *group* is what a number of instances is
chosen for; it goes by the name of its first operator. What lies before the first exchange runs in
source tasks, and is in no group.

A group has its last rows in its *home* level. Those that stay in their slot on the way to it are
processed one level earlier than those that leave. That may go on: rows that stayed once arrive
early everywhere behind, so from its `first` level to its `last` every slot with an instance of the
group has a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headgate.planner.tuning.cost_model import FlowModel, Stream


@dataclass(frozen=True)
class Group:
    """Operators with the same instances. Times are per source row, `bytes` those that come in."""

    name: str
    home: int
    first: int
    last: int
    cpu_s: float
    wait_s: float
    instance_s: float
    bytes: float
    fixed: int | None
    everywhere: bool
    ordered: bool

    @property
    def is_free(self) -> bool:
        """Is its number of instances to be chosen?"""
        return self.fixed is None and not self.everywhere

    def count(self, wanted: int, slots: int) -> int:
        """Instances it gets if `wanted` are asked for."""
        if self.everywhere:
            return slots
        return min(slots, max(1, wanted if self.fixed is None else self.fixed))


@dataclass(frozen=True)
class Leg:
    """A stream, or its part, from one group to another (producer None: from source tasks).

    `rows` are per source row, stayed ones included. These are processed in level `stays`, the
    others one level later, in `arrives`; one that is ordered takes all at its home.
    """

    stream: Stream
    producer: str | None
    consumer: str
    rows: float
    stays: int
    arrives: int


@dataclass(frozen=True)
class Groups:
    """A flow's groups in its order, and who runs in them."""

    flow: FlowModel
    levels: int

    @cached_property
    def rows_into(self) -> dict[str, float]:
        """Rows into each step per row of the sources."""
        total = self.flow.source_rate or 1.0
        return {name: rate / total for name, rate in self.flow.rate_in.items()}

    @cached_property
    def shares(self) -> dict[str, dict[str | None, float]]:
        """By step, the groups in whose instances its rows are processed (None: source tasks)."""
        found: dict[str, dict[str | None, float]] = {}
        for name in self.flow.order:
            if self.flow.step[name].in_source_tasks:
                found[name] = {None: 1.0}
                continue
            rows: dict[str | None, float] = {}
            inputs = self.flow.inputs[name]
            for stream in inputs:
                come = self._rows_of(stream)
                parts = {name: 1.0} if stream.sends else found[stream.producer]
                for group, part in parts.items():
                    rows[group] = rows.get(group, 0.0) + come * part
            total = sum(rows.values())
            even = 1.0 / len(rows)
            found[name] = {g: part / total if total else even for g, part in rows.items()}
        return found

    @cached_property
    def of(self) -> tuple[Group, ...]:
        """All groups."""
        made = []
        first, level = self._first, self._level
        for name in self._heads:
            step = self.flow.step[name]
            coming = [s for s in self.flow.inputs[name] if s.sends]
            whole, wait, each = self._times[name]
            made.append(
                Group(
                    name,
                    home=level[name],
                    first=min(level[name], 1 + min(first[s.producer] for s in coming)),
                    last=level[name],
                    cpu_s=max(0.0, whole - wait),
                    wait_s=wait,
                    instance_s=each,
                    bytes=sum(self._rows_of(s) * s.row_bytes for s in coming),
                    fixed=step.instances,
                    everywhere=step.everywhere,
                    ordered=step.ordered,
                )
            )
        return tuple(made)

    @cached_property
    def legs(self) -> tuple[Leg, ...]:
        """What is sent from group to group, and from source tasks to groups."""
        home = {group.name: group.home for group in self.of}
        waits = {group.name for group in self.of if group.ordered}
        found = []
        for stream in self.flow.streams:
            consumer = stream.consumer
            if not stream.sends or consumer not in home:
                continue
            for producer, part in self.shares[stream.producer].items():
                stays = 0 if producer is None else home[producer]
                arrives = min(home[consumer], stays + 1)
                if consumer in waits:
                    stays = arrives = home[consumer]
                rows = self._rows_of(stream) * part
                found.append(Leg(stream, producer, consumer, rows, stays, arrives))
        return tuple(found)

    @property
    def source_s(self) -> tuple[float, float]:
        """Seconds per source row in source tasks: on cores, and waiting."""
        whole, wait, _ = self._times[None]
        return max(0.0, whole - wait), wait

    # --- inside ----------------------------------------------------------------------------
    def _rows_of(self, stream: Stream) -> float:
        return self.rows_into[stream.producer] * stream.rows_per_row

    @cached_property
    def _times(self) -> dict[str | None, tuple[float, float, float]]:
        """By group: its time per source row, what of it waits, and that of an instance."""
        found: dict[str | None, tuple[float, float, float]] = {None: (0.0, 0.0, 0.0)}
        for name, parts in self.shares.items():
            step, rows = self.flow.step[name], self.rows_into[name]
            for group, part in parts.items():
                whole, wait, each = found.get(group, (0.0, 0.0, 0.0))
                found[group] = (
                    whole + step.ppt_s * rows * part,
                    wait + step.wait_s * rows * part,
                    each + step.instance_s,
                )
        return found

    @cached_property
    def _heads(self) -> list[str]:
        flow = self.flow
        return [
            name
            for name in flow.order
            if not flow.step[name].in_source_tasks and any(s.sends for s in flow.inputs[name])
        ]

    @cached_property
    def _level(self) -> dict[str, int]:
        """The level in which a step has its last rows."""
        found: dict[str, int] = {}
        for name in self.flow.order:
            if self.flow.step[name].in_source_tasks:
                found[name] = 0
                continue
            steps = [found[s.producer] + s.sends for s in self.flow.inputs[name]]
            found[name] = min(self.levels, max(1, *steps))
        return found

    @cached_property
    def _first(self) -> dict[str, int]:
        """The first level in which a step may put something out, of rows that stayed on the way."""
        found: dict[str, int] = {}
        for name in self.flow.order:
            step = self.flow.step[name]
            if step.in_source_tasks:
                found[name] = 0
            elif step.ordered:
                found[name] = self._level[name]
            else:
                inputs = self.flow.inputs[name]
                found[name] = min(max(found[s.producer], 1) for s in inputs)
        return found
