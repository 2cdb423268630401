"""How many instances operators have, and which slots have them: asked for, placed, committed.

An operator whose rows come to it through an exchange may have an instance in some slots only. How
many is what the user said (`parallelism=`), or what was decided while the flow ran; otherwise every
slot has one. `globally()` is one key, so one instance. Which slots these are, the planner says
(`place_instances`): those that an operator has, it keeps as long as it can.

What is placed here becomes true with the epoch that ran so, like the routing tables that follow it;
until then the last manifest says which slots have an operator's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from headgate.errors import EngineError, UnknownName
from headgate.planner.instances import place_instances
from headgate.slot.program import Program
from headgate.topology.graph import check_parallelism

Instances = Mapping[str, tuple[int, ...]]  # slots of operators that are in some slots only


class InstancesInUse:
    """The slots of every operator that has an instance in some slots only (`slots_of`).

    `stored` are those of the last epoch. `keep`: somebody decides about them, and begins with what
    was decided before; `chosen` are the numbers to begin with in the very first epoch.
    """

    def __init__(
        self,
        program: Program,
        slots: int,
        stored: Instances = MappingProxyType({}),
        *,
        keep: bool = False,
        chosen: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._graph, self.slots = program.graph, slots
        self._talks = talking_operators(program)
        groupings = {
            node.name: [edge.grouping for edge in self._graph.inputs(node.id)]
            for node in self._graph.nodes
            if node.kind != "sink"
        }
        self._groupings = {
            op: found for op, found in groupings.items() if any(g.kind != "local" for g in found)
        }
        self._asked = {op: 1 for op in self._groupings if self._is_global(op)}
        self._asked |= {n.name: n.parallelism for n in self._graph.nodes if n.parallelism}
        self.slots_of: Instances = {
            op: placed for op, placed in stored.items() if op in self._groupings
        }
        self._decided = {op: count for op, count in chosen.items() if op in self._groupings}
        self._decided |= {op: len(placed) for op, placed in self.slots_of.items() if keep}
        self.place(slots)

    def all(self) -> dict[str, tuple[int, ...]]:
        """The slots of every operator that has instances of its own."""
        return {op: self.slots_of.get(op, tuple(range(self.slots))) for op in self._groupings}

    def check(self, counts: Mapping[str, int], slots: int) -> None:
        """Raise unless the operators can have so many of so many slots."""
        for op, count in counts.items():
            if self._checked(op, count) > slots:
                raise EngineError(
                    f"{op!r} is to have {count} instances, and the flow has {slots} slots: an "
                    "operator has at most one in each. Ask for more slots too",
                    operator=op,
                    slots=slots,
                )

    def ask(self, counts: Mapping[str, int]) -> None:
        """The user wants so many of some operators; more than there are slots wait for more."""
        self._asked |= counts
        self.place(self.slots)

    def choose(self, instances: Mapping[str, Sequence[int]]) -> None:
        """Operators get their instances in these slots; what the user asked for stays."""
        for op, slots in instances.items():
            chosen = tuple(sorted({*slots}))
            self._checked(op, len(chosen))
            assert 0 <= chosen[0] <= chosen[-1] < self.slots, (op, chosen, self.slots)
            if len(chosen) == self._asked.get(op, len(chosen)):
                self._decided[op] = len(chosen)
                self.slots_of = {**self.slots_of, op: chosen}
        self._tidy()

    def place(self, slots: int, hosts: Sequence[str] = ()) -> None:
        """Use so many slots: operators keep their counts, as far as there are slots."""
        self.slots = slots
        counts = {**self._decided, **self._asked}
        wanted = {op: min(count, slots) for op, count in counts.items()}
        work = {op: float(count) for op, count in wanted.items()}  # nobody has measured it
        self.slots_of = place_instances(
            wanted, slots, work=work, talks=self._talks, hosts=hosts, now=self.slots_of
        )
        self._tidy()

    def renumber(self, placed: Instances) -> None:
        """The same instances under other numbers of their slots."""
        self.slots_of = placed

    # --- inside ----------------------------------------------------------------------------
    def _is_global(self, operator: str) -> bool:
        return any(grouping.kind == "global" for grouping in self._groupings[operator])

    def _tidy(self) -> None:
        """An operator that is in every slot is not mentioned, and stays so with other slots."""
        everywhere = tuple(range(self.slots))
        self.slots_of = {op: slots for op, slots in self.slots_of.items() if slots != everywhere}
        self._decided = {op: n for op, n in self._decided.items() if op in self.slots_of}

    def _checked(self, operator: str, count: object) -> int:
        if operator not in self._groupings:
            known = list(self._groupings)
            raise UnknownName(
                f"parallelism names {operator!r}, which is no operator behind an exchange; those "
                f"are {', '.join(known) or 'none'}",
                name=operator,
                known=known,
            )
        return check_parallelism(operator, count, self._groupings[operator])


def talking_operators(program: Program) -> dict[tuple[str, str], float]:
    """Pairs of operators behind exchanges of which one sends its rows to the other."""
    graph = program.graph
    behind: dict[int, set[str]] = {}  # the operators whose slots a node's rows are in
    pairs: dict[tuple[str, str], float] = {}
    for node in program.order:
        arriving: set[str] = set()
        exchanged = False
        for edge in graph.inputs(node.id):
            arriving |= behind[edge.producer]
            exchanged |= edge.grouping.kind != "local"
        if exchanged:
            pairs |= {(before, node.name): 1.0 for before in arriving}
            arriving = {node.name}
        behind[node.id] = arriving
    return pairs
