"""Shapes of flows: which operators there are, who feeds whom, and through which grouping.

A shape is inert. `Wiring` derives from it what the protocol needs to know of every instance: its
predecessors, its successors, and how it picks the receiver of a tuple. An instance without
predecessors is a root: it gets its PROPAGATE from the manager.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from headgate.errors import DeclarationError

Grouping = Literal["fields", "local", "shuffle"]
SOURCE = "S"


class Address(NamedTuple):
    """One process: an instance of an operator, or the manager."""

    operator: str
    slot: int

    def __str__(self) -> str:
        return f"{self.operator}{self.slot}" if self.slot >= 0 else self.operator


MANAGER = Address("manager", -1)


class Edge(NamedTuple):
    """A stream from one operator to another."""

    upstream: str
    grouping: Grouping


class Operator(NamedTuple):
    """`instances` copies of one operator; stateful ones count tuples per key."""

    name: str
    instances: int
    stateful: bool
    inputs: tuple[Edge, ...]


class Output(NamedTuple):
    """A consumer as its producer sees it."""

    consumer: str
    grouping: Grouping
    instances: tuple[Address, ...]


@dataclass(frozen=True)
class Shape:
    """Operators in topological order; the first is the source."""

    name: str
    operators: tuple[Operator, ...]

    @cached_property
    def stateful(self) -> dict[str, int]:
        """Instance count of every stateful operator."""
        return {o.name: o.instances for o in self.operators if o.stateful}

    @cached_property
    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """Stateful operators that feed each other directly."""
        return tuple(
            (edge.upstream, o.name)
            for o in self.operators
            for edge in o.inputs
            if o.stateful and edge.upstream in self.stateful
        )

    def with_slots(self, slots: int) -> Shape:
        """The same with one instance of every stateful operator per slot."""
        return Shape(
            self.name,
            tuple(o._replace(instances=slots) if o.stateful else o for o in self.operators),
        )

    @cached_property
    def trails(self) -> dict[str, tuple[str, ...]]:
        """Every way a tuple takes to an operator: it meets the operator once per trail."""
        found: dict[str, tuple[str, ...]] = {SOURCE: (SOURCE,)}
        for operator in self.operators[1:]:
            found[operator.name] = tuple(
                trail + operator.name for edge in operator.inputs for trail in found[edge.upstream]
            )
        return found


class Wiring:
    """Who is connected with whom, instance by instance."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.operator = {o.name: o for o in shape.operators}
        self.siblings = {
            o.name: tuple(Address(o.name, i) for i in range(o.instances)) for o in shape.operators
        }
        self.instances = tuple(a for several in self.siblings.values() for a in several)
        self.outputs: dict[str, tuple[Output, ...]] = {
            o.name: tuple(
                Output(c.name, e.grouping, self.siblings[c.name])
                for c in shape.operators
                for e in c.inputs
                if e.upstream == o.name
            )
            for o in shape.operators
        }
        self.successors = {a: self._successors(a) for a in self.instances}
        self.predecessors = {
            a: frozenset(p for p in self.instances if a in self.successors[p])
            for a in self.instances
        }
        self.roots = tuple(a for a in self.instances if not self.predecessors[a])
        self.sources = self.siblings[SOURCE]

    def _successors(self, address: Address) -> tuple[Address, ...]:
        return tuple(
            consumer
            for out in self.outputs[address.operator]
            for consumer in out.instances
            if out.grouping != "local" or consumer.slot == address.slot % len(out.instances)
        )


def _fields(*upstream: str) -> tuple[Edge, ...]:
    return tuple(Edge(name, "fields") for name in upstream)


def _build(name: str, rng: random.Random, *parts: tuple[str, bool, tuple[Edge, ...]]) -> Shape:
    operators = [Operator(SOURCE, rng.choice((1, 2, 2, 3)), False, ())]
    for part, keyed, inputs in parts:
        operators.append(Operator(part, rng.choice((2, 2, 3)), keyed, inputs))
    return Shape(name, tuple(operators))


def _pair(rng: random.Random) -> Shape:
    """The paper's application: two counts in a row."""
    return _build("pair", rng, ("A", True, _fields("S")), ("B", True, _fields("A")))


def _chain(rng: random.Random) -> Shape:
    """Three counts in a row."""
    return _build(
        "chain",
        rng,
        ("A", True, _fields("S")),
        ("B", True, _fields("A")),
        ("C", True, _fields("B")),
    )


def _bridge(rng: random.Random) -> Shape:
    """Stateless operators before and between the counts, as in the paper's Figure 3."""
    return _build(
        "bridge",
        rng,
        ("P", False, (Edge("S", rng.choice(("local", "shuffle"))),)),
        ("A", True, _fields("P")),
        ("Q", False, (Edge("A", rng.choice(("local", "shuffle"))),)),
        ("B", True, _fields("Q")),
    )


def _diamond(rng: random.Random) -> Shape:
    """One count feeds two, and both feed a last one."""
    return _build(
        "diamond",
        rng,
        ("A", True, _fields("S")),
        ("B", True, _fields("A")),
        ("C", True, _fields("A")),
        ("D", True, _fields("B", "C")),
    )


def _fan(rng: random.Random) -> Shape:
    """Several consumers, of the source and of a count."""
    return _build(
        "fan",
        rng,
        ("A", True, _fields("S")),
        ("B", True, _fields("S")),
        ("C", True, _fields("A")),
        ("D", True, _fields("A")),
    )


def _random(rng: random.Random) -> Shape:
    """Any small DAG."""
    parts: list[tuple[str, bool, tuple[Edge, ...]]] = []
    for name in "ABCD"[: rng.randint(2, 4)]:
        keyed = not parts or rng.random() < 0.7
        known = [SOURCE, *(n for n, _, _ in parts)]
        upstream = rng.sample(known, min(len(known), 1 if rng.random() < 0.6 else 2))
        groupings: tuple[Grouping, ...] = ("fields",) if keyed else ("local", "shuffle")
        parts.append((name, keyed, tuple(Edge(u, rng.choice(groupings)) for u in upstream)))
    return _build("random", rng, *parts)


SHAPES: dict[str, Callable[[random.Random], Shape]] = {
    "pair": _pair,
    "chain": _chain,
    "bridge": _bridge,
    "diamond": _diamond,
    "fan": _fan,
    "random": _random,
}
ANY = "any"


def draw_shape(name: str, rng: random.Random) -> Shape:
    """The named shape with drawn instance counts; "any" draws the shape too."""
    if name == ANY:
        name = rng.choice(tuple(SHAPES))
    if name not in SHAPES:
        known = ", ".join((ANY, *SHAPES))
        raise DeclarationError(f"there is no topology {name!r}; choose one of {known}", name=name)
    return SHAPES[name](rng)
