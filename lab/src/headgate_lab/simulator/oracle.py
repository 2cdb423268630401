"""The judge: watches every instruction, and knows what one thread would have computed.

At every tuple: it was not counted before, the instance that counts it owns the key, and it does
not overtake a tuple of the same key from the same sender. At every move: the sender owned the
keys, their counts are right, and no two instances hold one key. At every wait: the key really is
on its way to the one who waits. At the end: everything was counted, every count is the fold of
the source, nobody waits, and all are on one routing version.

Owners are derived from the routing tables alone, not from the send and receive lists that the
instances use. A recovery undoes what came after the snapshot, here as in the instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate_lab.simulator.instance import Instance
from headgate_lab.simulator.message import Apply, Cut, Data, Hold, Migrate
from headgate_lab.simulator.plan import Router
from headgate_lab.simulator.record import Record
from headgate_lab.simulator.shape import Address, Shape
from headgate_lab.simulator.trace import short

IN_FLIGHT = Address("in flight", -1)


class Violation(Exception):
    """A promise was broken; the message says which, where and for which key or tuple."""

    def __init__(
        self, message: str, *, operator: str | None = None, tuple_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.operator, self.tuple_id = operator, tuple_id


class Oracle:
    """What is true so far, in the current generation."""

    def __init__(self, shape: Shape, logs: Mapping[Address, Sequence[Data]], record: Record):
        self.shape = shape
        self.tuples = [data for log in logs.values() for data in log]
        self.stateful = shape.stateful
        self.record = record
        self.tally: Counter[str] = Counter()
        self.moves: Counter[tuple[str, int]] = Counter()
        self.cuts: dict[int, dict[Address, int]] = {0: {}}
        self.history: dict[Address, list[Apply]] = {}
        self._begin_generation()

    def _begin_generation(self) -> None:
        """Keep of every instance's history what is in the snapshot."""
        cut = self.cuts[self.record.snapshot.number]
        self.history = {a: self.history.get(a, [])[:length] for a, length in cut.items()}
        self.seen: set[tuple[str, int, str]] = set()
        self.counts: dict[str, Counter[int]] = {name: Counter() for name in self.stateful}
        self.latest: dict[tuple[str, int, Address], int] = {}
        for address, applied in self.history.items():
            for data, key, sender in applied:
                self.seen.add((address.operator, data.id, data.trail))
                if address.operator in self.counts:
                    self.counts[address.operator][key] += 1
                place = (address.operator, key, sender)
                self.latest[place] = max(self.latest.get(place, -1), data.number)
        self.owner: dict[str, dict[int, Address]] = {
            name: {key: Address(name, slot) for key, slot in router.slot_of.items()}
            for name, router in self.record.snapshot.plan.routers.items()
        }

    # --- what it watches ------------------------------------------------------------------------

    def saved(self, record: Record) -> None:
        previous, self.record = self.record, record
        if record.generation != previous.generation:
            self.tally["recoveries"] += 1
            self._begin_generation()
        elif record.snapshot.number != previous.snapshot.number:
            self.tally["snapshots"] += 1
        elif record.base.id != previous.base.id:
            self.tally["reconfigurations"] += 1

    def cut(self, address: Address, generation: int, cut: Cut) -> None:
        if generation == self.record.generation:
            place = self.cuts.setdefault(cut.snapshot, {})
            place[address] = len(self.history.get(address, ()))

    def applied(self, address: Address, generation: int, apply: Apply) -> None:
        if generation != self.record.generation:
            return  # work of a generation that is over; a recovery will undo it
        operator = address.operator
        data, key, sender = apply
        name = (operator, data.id, data.trail)
        if name in self.seen:
            raise Violation(
                f"tuple {data.id} by way of {data.trail} met {address}: processed twice",
                operator=operator,
                tuple_id=data.id,
            )
        self.seen.add(name)
        self.history.setdefault(address, []).append(apply)
        if operator not in self.stateful:
            return
        owner = self.owner[operator][key]
        if owner != address:
            raise Violation(
                f"tuple {data.id} met {address} without its state: key {short(key)} of "
                f"{operator} belongs to {owner}",
                operator=operator,
                tuple_id=data.id,
            )
        self.counts[operator][key] += 1
        place = (operator, key, sender)
        if self.latest.get(place, -1) >= data.number:
            raise Violation(
                f"tuple {data.id} from {sender} was overtaken on its way to {address}",
                operator=operator,
                tuple_id=data.id,
            )
        self.latest[place] = data.number
        if self.record.base.id != self.record.target.id:
            self.tally["during"] += 1

    def held(self, address: Address, generation: int, hold: Hold) -> None:
        if generation != self.record.generation:
            return
        operator, key = address.operator, hold.key
        self.tally["held"] += 1
        target = self.record.target.routers[operator].slot(key)
        if self.owner[operator][key] == address or target != address.slot:
            raise Violation(
                f"{address} holds tuple {hold.data.id} for no reason",
                operator=operator,
                tuple_id=hold.data.id,
            )

    def migrates(self, sender: Address, generation: int, to: Address, message: Migrate) -> None:
        """A state leaves."""
        if generation != self.record.generation:
            return
        operator = sender.operator
        owner = self.owner[operator]
        moving = self._moving(sender, to)
        for key in moving:
            if owner[key] != sender:
                raise Violation(
                    f"{sender} gives away key {short(key)}, which belongs to {owner[key]}",
                    operator=operator,
                )
            owner[key] = IN_FLIGHT
            self.moves[operator, key] += 1
        wanted = {k: c for k in moving if (c := self.counts[operator][k])}
        if dict(message.states) != wanted:
            raise Violation(
                f"{sender} sends {to} the counts {_shorts(message.states)}, true is "
                f"{_shorts(wanted)}",
                operator=operator,
            )
        self.tally["migrations"] += 1
        self.tally["keys_moved"] += len(wanted)

    def migrated(self, sender: Address, generation: int, to: Address) -> None:
        """A state has arrived."""
        if generation == self.record.generation:
            for key in self._moving(sender, to):
                self.owner[to.operator][key] = to

    def _moving(self, sender: Address, to: Address) -> list[int]:
        old: Router = self.record.base.routers[sender.operator]
        new: Router = self.record.target.routers[sender.operator]
        return [
            key
            for key, slot in old.slot_of.items()
            if slot == sender.slot and new.slot(key) == to.slot
        ]

    # --- what it looks up -----------------------------------------------------------------------

    def check_holders(self, instances: Iterable[Instance]) -> None:
        """Everybody holds exactly the states that are his, and they are right."""
        for instance in instances:
            if instance.generation != self.record.generation or not instance.stateful:
                continue
            address, owner = instance.address, self.owner[instance.operator]
            true = self.counts[instance.operator]
            wanted = {key: count for key, count in true.items() if owner[key] == address}
            if instance.counts != wanted:
                for key in wanted.keys() | instance.counts.keys():
                    found = instance.counts.get(key)
                    if found != wanted.get(key):
                        raise Violation(
                            f"{address} holds {found or 'nothing'} for key {short(key)}, true is "
                            f"{true[key]}, and the key belongs to {owner[key]}",
                            operator=instance.operator,
                        )

    def check_end(self, instances: Sequence[Instance], idle: bool) -> None:
        """Nothing is left to happen: is everything as one thread would have left it?"""
        for operator in self.shape.operators:
            trails = [t[: -len(operator.name)] for t in self.shape.trails[operator.name]]
            for data in self.tuples:
                for trail in trails:
                    if (operator.name, data.id, trail) not in self.seen:
                        raise Violation(
                            f"tuple {data.id} by way of {trail or 'the log'} never met "
                            f"{operator.name}: lost, or held for ever",
                            operator=operator.name,
                            tuple_id=data.id,
                        )
        if len(instances) < sum(o.instances for o in self.shape.operators):
            raise Violation("an instance that crashed was never started again")
        self.check_holders(instances)
        for name in self.stateful:
            found: Counter[int] = Counter()
            for instance in instances:
                if instance.operator == name:
                    found.update(instance.counts)
            if found != self._fold(name):
                raise Violation(f"the state of {name} is not the fold of the source")
        target = self.record.target
        for instance in instances:
            if instance.early or instance.missing or instance.backlog or not instance.running:
                raise Violation(f"{instance.address} still waits for something")
            if instance.version != target.id:
                raise Violation(
                    f"{instance.address} ended on plan {instance.version}, the manager on "
                    f"{target.id}"
                )
            for name, router in instance.routers.items():
                if not router.table.same_routes(target.routers[name].table):
                    raise Violation(
                        f"{instance.address} ended with a table for {name} that is not of plan "
                        f"{target.id}"
                    )
        if not idle or self.record.base.id != target.id or not self.record.resumed:
            raise Violation("the manager still waits for something")

    def _fold(self, operator: str) -> Counter[int]:
        ways = len(self.shape.trails[operator])
        folded: Counter[int] = Counter()
        for data in self.tuples:
            folded[data.keys[operator]] += ways
        return folded


def _shorts(counts: Mapping[int, Any]) -> dict[str, Any]:
    return {short(key): count for key, count in counts.items()}
