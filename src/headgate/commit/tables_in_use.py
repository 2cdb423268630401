"""The routing tables a flow runs with: chosen at start, changed by the manager between epochs.

A change is saved before it is used, and becomes true with the manifest of the first epoch that ran
with it. Until then the epoch before still says who owns what, so a crash at any moment leaves every
key with one owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.commit.table_files import Names, TableFiles
from headgate.errors import ForeignCheckpoint, UnknownSlot
from headgate.routing.route import TO_OWNER, Dispatch, Route
from headgate.routing.table import Moves, RoutingTable, hash_table, moves_between
from headgate.slot.program import Program


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
        share_pins: bool = False,
    ) -> None:
        self._files, self._share_pins = files, share_pins
        self._dispatches, self._buckets = program.dispatches, buckets
        routed = sorted(routed_operators(program))
        _check_chosen(chosen, routed, slots, buckets)
        self._committed = {op: files.load(names) for op, names in stored.items() if op in routed}
        _check_buckets(self._committed, buckets)
        self.names: dict[str, Names] = {op: stored[op] for op in self._committed}
        self.tables: dict[str, RoutingTable] = {}
        self.moves: dict[str, Moves] = {}
        for operator in routed:
            table = chosen.get(operator)
            if table is None:
                before = self._committed.get(operator)
                table = (
                    hash_table(slots, buckets) if before is None else self._resized(before, slots)
                )
            self.tables[operator] = table

    def routes(
        self, chosen: Mapping[str, Dispatch], born_local: Collection[str]
    ) -> dict[str, Route]:
        """How rows find their slots in the coming epoch, by what was chosen or as usual."""
        found = {}
        for operator, table in self.tables.items():
            may = self._dispatches.get(operator)
            dispatch = chosen.get(operator, self._usual(operator))
            if operator in born_local and may is not None:
                dispatch = may.local or dispatch
            found[operator] = Route(table, dispatch)
        return found

    def usual_routes(self, slots: int) -> dict[str, Route]:
        """Those of so many slots, before anything was moved or chosen."""
        table = hash_table(slots, self._buckets)
        return {operator: Route(table, self._usual(operator)) for operator in self.tables}

    def _usual(self, operator: str) -> Dispatch:
        may = self._dispatches.get(operator)  # none of an operator without state
        return TO_OWNER if may is None else may.usual

    def install(self, changed: Mapping[str, RoutingTable]) -> None:
        """Use these tables from the next epoch on."""
        self.tables.update(changed)

    def resize(self, slots: int, *, fill: bool = True) -> None:
        """Use so many slots from the next epoch on; only what must move does.

        New slots get their fair share of buckets, and of pinned keys if no planner is there to
        place them (`share_pins`). Without `fill` they start empty, and no unit moves but those
        that have lost their slot.
        """
        self.tables = {
            op: table.resized(slots, share_pins=self._share_pins, even=fill)
            for op, table in self.tables.items()
        }

    def save(self) -> None:
        """Make the tables of the coming epoch durable and work out what moves with it."""
        for operator, table in self.tables.items():
            before = self.names.get(operator, ())
            names = self._files.save(operator, table, before)
            self.names[operator] = names
            self.tables[operator] = self._files.load(names)
        self.moves = {}
        for operator, old in self._committed.items():
            new = self.tables[operator]
            if operator in self._dispatches and new is not old:
                moves = moves_between(old, new)
                if moves or old.slots != new.slots:
                    self.moves[operator] = moves

    def committed(self) -> None:
        """The epoch that ran with these tables is in its manifest."""
        self._committed = dict(self.tables)
        self.moves = {}

    def _resized(self, table: RoutingTable, slots: int) -> RoutingTable:
        return table.resized(slots, share_pins=self._share_pins)


def routed_operators(program: Program) -> set[str]:
    """Operators with a keyed input: those that have a routing table."""
    return {
        node.name
        for node in program.graph.nodes
        if any(edge.grouping.keyed for edge in program.graph.inputs(node.id))
    }


def _check_buckets(stored: Mapping[str, RoutingTable], buckets: int) -> None:
    """Keys would be looked for in other buckets than they were put in."""
    for operator, table in stored.items():
        if table.buckets != buckets:
            raise ForeignCheckpoint(
                f"headgate.json says that this checkpoint has {buckets} buckets, but its state "
                f"was made with {table.buckets} (so says the routing table of {operator!r}): the "
                "file was changed, or belongs to another checkpoint. Bring it back from a copy",
                operator=operator,
                buckets=table.buckets,
            )


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
