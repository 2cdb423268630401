"""The routing tables a flow runs with: stored, changed between epochs, committed.

They can be megabytes and change seldom. So they lie in files that are named by content, a plan only
names them, and tasks read what they do not have yet. A manager changes a few pins of a table at a
time, so a table is a chain of files: the whole table, then files with the pins that changed.

A table that changes is saved before it is used, and becomes true with the manifest of the first
epoch that ran with it. Until then the epoch before still says who owns what, so a crash at any
moment leaves every key with one owner.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from headgate.arrays import I64
from headgate.commit.instances import Instances, InstancesInUse
from headgate.commit.renumbering import instances_in, names_in
from headgate.errors import ForeignCheckpoint, UnknownSlot
from headgate.routing.route import TO_OWNER, Dispatch, Here, Route
from headgate.routing.table import Moves, RoutingTable, hash_table, moves_between
from headgate.slot.program import Program
from headgate.state.named_table import read_table, write_table
from headgate.state.storage import Storage

log = logging.getLogger("headgate")
CHANGES_MAX = 32  # files of changes; a start reads one after the other
CHANGED_SHARE_MAX = 0.25  # of the pins; a whole table is then not much larger
Names = tuple[str, ...]


class TableFiles:
    """Saves and loads routing tables; keeps each operator's last one, so that chains are read once.

    `generation` is the driver's; it is in names, so that no other driver can collect its tables.
    """

    def __init__(self, storage: Storage, generation: int = 0) -> None:
        self.storage, self.generation = storage, generation
        self._known: dict[str, tuple[Names, RoutingTable]] = {}

    def save(self, operator: str, table: RoutingTable, before: Names = ()) -> Names:
        """Store a table, as a change of the one named `before` where that is much smaller."""
        old = self.load(before) if before else None
        if old is not None and old.same_routes(table):
            return before
        stem = f"{operator}-v{table.version:06d}-g{self.generation:09d}"
        change = None if old is None or len(before) > CHANGES_MAX else _change(old, table)
        if change is None:
            names: Names = (write_table(self.storage, stem, table.to_arrow()),)
        else:
            names = (*before, write_table(self.storage, stem, change))
        self._known[operator] = names, table
        return names

    def load(self, names: Names) -> RoutingTable:
        """The table that these files make; only those not known yet are read."""
        operator = names[0].rsplit("-v", 1)[0]
        known, table = self._known.get(operator, ((), None))
        if known == names and table is not None:
            return table
        way_out = (
            ". It says which slot owns a key, and no older one can stand in: bring it back from a "
            "copy of the checkpoint, or start with a new checkpoint folder"
        )
        before = self.load(names[:-1]) if len(names) > 1 else None
        content = read_table(self.storage, names[-1], "routing table", way_out)
        table = RoutingTable.from_arrow(content) if before is None else _apply(before, content)
        self._known[operator] = names, table
        return table


def _change(old: RoutingTable, new: RoutingTable) -> pa.Table | None:
    """The pins that differ; None if a whole table is the better choice."""
    if old.slots != new.slots or not np.array_equal(old.bucket_slots, new.bucket_slots):
        return None
    at = np.searchsorted(new.pinned_h, old.pinned_h)
    at[at == len(new.pinned_h)] = 0
    if len(old.pinned_h) and (
        not len(new.pinned_h) or not np.array_equal(new.pinned_h[at], old.pinned_h)
    ):
        return None  # a pin is gone
    differs = np.ones(len(new.pinned_h), np.bool_)
    if len(old.pinned_h):
        differs[at] = new.pinned_slots[at] != old.pinned_slots
    if differs.sum() > CHANGED_SHARE_MAX * len(new.pinned_h):
        return None
    return pa.table(
        {"h": pa.array(new.pinned_h[differs]), "slot": pa.array(new.pinned_slots[differs])}
    ).replace_schema_metadata({"change": "1", "version": str(new.version)})


def _apply(table: RoutingTable, change: pa.Table) -> RoutingTable:
    version = int(change.schema.metadata[b"version"])
    pinned = table.pin_hashes(change["h"].to_numpy(), change["slot"].to_numpy())
    return replace(pinned, version=version)


class TablesInUse:
    """Tables by operator, the files they are stored in, and what moves with the next epoch."""

    def __init__(
        self,
        program: Program,
        files: TableFiles,
        *,
        slots: int,
        buckets: int,
        chosen: Mapping[str, RoutingTable],
        stored: Mapping[str, Names],
        placed: InstancesInUse | None = None,
        stored_instances: Instances = MappingProxyType({}),
        share_pins: bool = False,
    ) -> None:
        self._files, self._share_pins = files, share_pins
        self._dispatches, self._buckets = program.dispatches, buckets
        self.placed = placed or InstancesInUse(program, slots)
        self._slots, self._instances = slots, self.placed.slots_of
        self._committed_instances, instances = stored_instances, self.placed.slots_of
        routed = sorted(routed_operators(program))
        _check_chosen(chosen, routed, slots, buckets)
        self._committed = {op: files.load(names) for op, names in stored.items() if op in routed}
        for operator, table in self._committed.items():
            if table.buckets != buckets:  # keys would be looked for in other buckets
                raise ForeignCheckpoint(
                    f"headgate.json says that this checkpoint has {buckets} buckets, but its state "
                    f"was made with {table.buckets} (so says the routing table of {operator!r}): "
                    "the file was changed, or belongs to another checkpoint. Bring it back from a "
                    "copy",
                    operator=operator,
                    buckets=table.buckets,
                )
        self.names: dict[str, Names] = {op: stored[op] for op in self._committed}
        self.tables: dict[str, RoutingTable] = {}
        self.moves: dict[str, Moves] = {}
        for operator in routed:
            before = self._committed.get(operator)
            if operator in chosen:
                self.tables[operator] = chosen[operator]
            elif before is not None:
                self.tables[operator] = before.resized(
                    slots,
                    instances.get(operator, ()),
                    before=stored_instances.get(operator, ()),
                    share_pins=share_pins,
                )
            else:
                self.tables[operator] = hash_table(slots, buckets, instances.get(operator, ()))
            Route(self.tables[operator], slots=instances.get(operator, ()))  # raises if it strays

    def routes(
        self, chosen: Mapping[str, Dispatch], born_local: Collection[str]
    ) -> dict[str, Route]:
        """How rows find their slots in the coming epoch, by what was chosen or as usual."""
        found = {}
        for operator, table in self.tables.items():
            may = self._dispatches.get(operator)
            dispatch = chosen.get(operator, self._usual(operator))
            # What is folded where it is needs no pin to stay there.
            if operator in born_local and may is not None and not isinstance(dispatch, Here):
                dispatch = may.local or dispatch
            found[operator] = Route(table, dispatch, self._instances.get(operator, ()))
        for operator in self._instances.keys() - found.keys():  # it has no keys
            mine = self._instances[operator]
            found[operator] = Route(hash_table(self._slots, 1, mine), slots=mine)
        return found

    def usual_routes(self, slots: int) -> dict[str, Route]:
        """Those of so many slots, before anything was moved or chosen."""
        table = hash_table(slots, self._buckets)
        return {operator: Route(table, self._usual(operator)) for operator in self.tables}

    def _usual(self, operator: str) -> Dispatch:
        may = self._dispatches.get(operator)  # none of an operator without state
        return TO_OWNER if may is None else may.usual

    def use(self, tables: Mapping[str, RoutingTable]) -> list[str]:
        """Take these tables; returns the operators whose table names a slot that they are not in.

        Those keep the one they have.
        """
        strays = []
        for operator, table in tables.items():
            try:
                Route(table, slots=self._instances.get(operator, ()))
                self.tables[operator] = table
            except UnknownSlot:
                strays.append(operator)
        return strays

    def resize(
        self, slots: int | None = None, *, hosts: Sequence[str] = (), fill: bool = True
    ) -> None:
        """Use so many slots from the next epoch on (None: as many as now), operators those that
        they are `placed` in.

        Only what must move does. New instances get their fair share of buckets, and of pinned keys
        if no planner is there to place them (`share_pins`). Without `fill` they start empty, and no
        unit moves but those that have lost their slot.
        """
        if slots is not None:
            self.placed.place(slots, hosts)
        slots, instances = self.placed.slots, self.placed.slots_of
        self.tables = {
            op: table.resized(
                slots,
                instances.get(op, ()),
                before=self._instances.get(op, ()),
                share_pins=self._share_pins,
                even=fill,
            )
            for op, table in self.tables.items()
        }
        self._slots, self._instances = slots, instances

    def renumber(self, order: I64) -> None:
        """Slot `order[i]` is called i from now on; nothing moves by that."""
        names = names_in(order)
        self.tables = {op: t.renamed(names, len(order)) for op, t in self.tables.items()}
        self._committed = {op: t.renamed(names, len(order)) for op, t in self._committed.items()}
        self._committed_instances = instances_in(self._committed_instances, order)
        self._instances = instances_in(self._instances, order)
        self.placed.renumber(self._instances)

    def save(self) -> None:
        """Make the tables of the coming epoch durable and work out what moves with it."""
        for operator, table in self.tables.items():
            self.names[operator] = self._files.save(operator, table, self.names.get(operator, ()))
            self.tables[operator] = self._files.load(self.names[operator])
        self.moves = {}
        for operator, old in self._committed.items():
            new = self.tables[operator]
            if operator in self._dispatches and new is not old:
                moves, after = moves_between(old, new), self._instances.get(operator)
                changed = self._committed_instances.get(operator) != after
                if moves or changed or old.slots != new.slots:
                    self.moves[operator] = moves

    def committed(self) -> None:
        """The epoch that ran with these tables is in its manifest."""
        self._committed = dict(self.tables)
        self._committed_instances = self._instances
        self.moves = {}


def routed_operators(program: Program) -> set[str]:
    """Operators with a keyed input: those that have a routing table."""
    return {
        node.name
        for node in program.graph.nodes
        if any(edge.grouping.keyed for edge in program.graph.inputs(node.id))
    }


def _check_chosen(
    chosen: Mapping[str, RoutingTable], routed: list[str], slots: int, buckets: int
) -> None:
    for operator, table in chosen.items():
        if operator not in routed:
            raise UnknownSlot(
                f"a routing table was given for {operator!r}, which has no keyed input; "
                f"keyed operators are {', '.join(routed)}",
                operator=operator,
            )
        if table.slots != slots or table.buckets != buckets:
            raise UnknownSlot(
                f"the routing table of {operator!r} is for {table.slots} slots and "
                f"{table.buckets} buckets; the flow runs {slots} and {buckets}",
                operator=operator,
            )
