"""The paper's cluster, simulated: 12 machines, instances with bounded queues, messages.

Every instance is a server: it takes a message, spends ppt on each row, and for every batch that
fills it spends n and the bytes' time before it goes on. A message to a full queue blocks its
sender, and so, in the end, the source. Machines have few cores: while more instances are busy than
there are cores, what is begun takes longer. Rows inside a message are counted, not simulated
one by one.

What comes out is what the model only estimates: where queues fill, and what rows wait.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from headgate.planner.tuning.cost_model import EngineCosts, FlowModel, Stream, rows_of
from headgate.planner.tuning.prediction import Configuration, predict, row_s


@dataclass(frozen=True)
class ClusterShape:
    """Machines and their cores and links; the paper's by default."""

    machines: int = 12
    cores: int = 4
    link_bytes_per_s: float = 125e6
    wire_s: float = 1e-4
    queue_messages: int = 64  # Storm's queues hold more; these fill soon enough to be simulated


PAPER_CLUSTER = ClusterShape()


@dataclass(frozen=True)
class Simulated:
    """Source rows per second after the warm-up; mean latency of rows at the last step to end."""

    rows_per_s: float
    latency_s: float
    messages: int


@dataclass
class _Message:
    rows: float
    created: float  # mean time at which its rows, or what they came from, left the source


@dataclass
class _Buffer:
    rows: float = 0.0
    created: float = 0.0  # sum over rows

    def add(self, rows: float, created: float) -> None:
        self.rows += rows
        self.created += rows * created

    def take(self, rows: float) -> _Message:
        made = _Message(rows, self.created / self.rows)
        self.created -= rows * made.created
        self.rows -= rows
        return made


@dataclass
class _Instance:
    step: str
    number: int
    room: int
    machine: int = 0
    queue: deque[_Message] = field(default_factory=deque)
    coming: int = 0  # messages on the wire
    busy: bool = False
    outbox: deque[tuple[_Instance, Stream, _Message]] = field(default_factory=deque)
    waiting: deque[_Instance] = field(default_factory=deque)  # senders blocked by this queue
    buffers: dict[tuple[str, int], _Buffer] = field(default_factory=dict)
    turn: dict[str, int] = field(default_factory=dict)
    rest: dict[str, float] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return len(self.queue) + self.coming >= self.room


def simulate(
    flow: FlowModel,
    costs: EngineCosts,
    configuration: Configuration,
    *,
    messages: int = 20_000,
    cluster: ClusterShape = PAPER_CLUSTER,
) -> Simulated:
    """Run until the sources have sent so many messages; the first half is not counted."""
    return _Run(flow, costs, configuration, cluster).until(messages)


class _Run:
    def __init__(
        self,
        flow: FlowModel,
        costs: EngineCosts,
        configuration: Configuration,
        cluster: ClusterShape,
    ) -> None:
        self.flow, self.costs, self.batch = flow, costs, configuration.batch_rows
        self.cluster = cluster
        self.instances = {
            name: [
                _Instance(name, i, cluster.queue_messages) for i in range(configuration.dop[name])
            ]
            for name in flow.order
        }
        self.active = [0] * cluster.machines
        self._place(configuration)
        self.events: list[tuple[float, int, str, _Instance, _Message | None]] = []
        self.count = 0
        self.sent = 0
        self.rows = 0.0
        self.latency: dict[str, list[float]] = {name: [0.0, 0.0] for name in flow.order}

    def until(self, messages: int) -> Simulated:
        for name in self.flow.order:
            if self.flow.step[name].is_source:
                for instance in self.instances[name]:
                    self._fetch(0.0, instance)
        warm, started, rows_then, now = False, 0.0, 0.0, 0.0
        while self.events and self.sent < messages:
            now, _, kind, instance, message = heapq.heappop(self.events)
            if not warm and self.sent >= messages // 2:
                warm, started, rows_then = True, now, self.rows
                self.latency = {name: [0.0, 0.0] for name in self.flow.order}
            if kind == "arrive":
                assert message is not None
                instance.coming -= 1
                instance.queue.append(message)
                self._start(now, instance)
            else:
                self._done(now, instance, message)
        rate = (self.rows - rows_then) / (now - started) if now > started else 0.0
        means = [total / rows for total, rows in self.latency.values() if rows]
        return Simulated(rate, max(means, default=0.0), self.sent)

    # --- inside ----------------------------------------------------------------------------
    def _place(self, configuration: Configuration) -> None:
        """Each instance to the machine with least to do, busiest instances first."""
        told = predict(self.flow, self.costs, configuration)
        wanted = [0.0] * self.cluster.machines
        order = sorted(self.instances, key=lambda name: -told.steps[name].busy)
        for instance in (i for name in order for i in self.instances[name]):
            instance.machine = wanted.index(min(wanted))
            wanted[instance.machine] += told.steps[instance.step].busy

    def _work(
        self, now: float, instance: _Instance, seconds: float, at_least: float, message: _Message
    ) -> None:
        """Begin to work; on a machine with more busy instances than cores it takes longer."""
        instance.busy = True
        self.active[instance.machine] += 1
        slower = max(1.0, self.active[instance.machine] / self.cluster.cores)
        self._at(now + max(seconds * slower, at_least), "done", instance, message)

    def _at(self, when: float, kind: str, instance: _Instance, message: _Message | None) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, kind, instance, message))

    def _fetch(self, now: float, source: _Instance) -> None:
        """A source takes the next batch; it ships while the rows come in (equation 3)."""
        rows = float(self.batch[source.step])
        step = self.flow.step[source.step]
        assert step.source_rate is not None
        fetching = rows * step.source_dop / step.source_rate
        shipping = rows * row_s(self.flow, source.step, self.costs, rows)
        created = now + max(fetching, shipping) / 2
        self._work(now, source, shipping, fetching, _Message(rows, created))

    def _start(self, now: float, instance: _Instance) -> None:
        if instance.busy or instance.outbox or not instance.queue:
            return
        message = instance.queue.popleft()
        self._let_in(now, instance)
        work = message.rows * self.flow.step[instance.step].ppt_s
        work += self._make_batches(instance, message)
        self._work(now, instance, work, 0.0, message)

    def _done(self, now: float, instance: _Instance, message: _Message | None) -> None:
        instance.busy = False
        self.active[instance.machine] -= 1
        assert message is not None
        if self.flow.step[instance.step].is_source:
            self.sent += 1
            self.rows += message.rows
            self._make_batches(instance, message)
        else:
            total = self.latency[instance.step]
            total[0] += message.rows * (now - message.created)
            total[1] += message.rows
        self._deliver(now, instance)

    def _make_batches(self, instance: _Instance, message: _Message) -> float:
        """Rows into buffers, full buffers into the outbox; the seconds that shipping takes."""
        spent = 0.0
        for stream in self.flow.outputs[instance.step]:
            made = instance.rest.get(stream.consumer, 0.0) + message.rows * stream.rows_per_row
            whole = int(made)
            instance.rest[stream.consumer] = made - whole
            targets = self.instances[stream.consumer]
            batch = rows_of(self.costs, stream, self.batch[instance.step])
            first = instance.turn.get(stream.consumer, instance.number)
            each, more = divmod(whole, len(targets))
            instance.turn[stream.consumer] = first + more
            for offset in range(len(targets) if each else more):
                target = targets[(first + offset) % len(targets)]
                buffer = instance.buffers.setdefault((stream.consumer, target.number), _Buffer())
                buffer.add(each + (offset < more), message.created)
                while buffer.rows >= batch:
                    instance.outbox.append((target, stream, buffer.take(batch)))
                    spent += self.costs.message_s + batch * stream.row_bytes * self.costs.byte_s
        return spent

    def _deliver(self, now: float, instance: _Instance) -> None:
        """Send what is ready; stop at the first full queue and wait there."""
        while instance.outbox:
            target, stream, message = instance.outbox[0]
            if target.is_full:
                if instance not in target.waiting:
                    target.waiting.append(instance)
                return
            instance.outbox.popleft()
            target.coming += 1
            on_wire = message.rows * stream.row_bytes / self.cluster.link_bytes_per_s
            self._at(now + self.cluster.wire_s + on_wire, "arrive", target, message)
        if self.flow.step[instance.step].is_source:
            self._fetch(now, instance)
        else:
            self._start(now, instance)

    def _let_in(self, now: float, instance: _Instance) -> None:
        if instance.waiting:
            self._deliver(now, instance.waiting.popleft())
