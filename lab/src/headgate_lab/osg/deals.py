"""Rows per epoch: how evenly an epoch's rows are dealt to instances, over the least that can be.

An epoch's stage ends with its busiest instance. It cannot be shorter than the even share, nor than
the longest row (`bound_ms`). Dealt are epochs of several sizes, authors as drawn or a dear and a
cheap one in turn, with what instances have told after so many rows. No time passes while rows are
dealt: queues are those of the epoch, so those who look at queues see how many rows they have sent.

Two questions about the paper's synchronisation have their answers here. What is lost by several
schedulers that know nothing of each other? And what would it bring to begin an epoch with the
debts of those before: as they were estimated, or settled?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headgate.arrays import F64, I32, I64
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.instance_costs import InstanceCosts
from headgate.slot.cost_shuffle import greedy, longest_first, round_robin
from headgate_lab.osg.epochs import EngineCosts, small_tasks
from headgate_lab.osg.reach import FollowerGraph
from headgate_lab.osg.stream import NOISE
from headgate_lab.osg.stream_kernel import load_aware, shorter_of_two

STREAMS = ("drawn", "interleaved")
LOOK_ROWS = 100  # a load-aware scheduler looks at its queues after so many rows
DEBTS = ("none", "estimated", "settled")


@dataclass(frozen=True)
class DealOptions:
    rows: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000)
    learn_rows: int = 100_000
    epochs: int = 10  # of each size; more, if they are small, for so many rows in all
    rows_in_all: int = 10_000
    epsilon: float = 0.00002
    schedulers: tuple[int, ...] = (1, 2, 4)
    seed: int = 5


@dataclass(frozen=True)
class Known:
    """What is known of authors: by all instances together, by each of its own; and what is true:
    an author's mean, of which rows take 10 % more or less.
    """

    times_ms: F64
    own_ms: F64
    mean_ms: F64


def in_turn(drawn: I32, weight: F64 | I64) -> I32:
    """The same authors, a dear one and a cheap one in turn, otherwise in their order."""
    order = np.argsort(weight[drawn], kind="stable")
    half = len(drawn) // 2
    cheap, dear = np.sort(order[:half]), np.sort(order[half:])
    turns = np.empty(len(drawn), np.int64)
    turns[0::2], turns[1::2] = dear, cheap
    return drawn[turns]


def bound_ms(spent_ms: F64, k: int) -> float:
    """No stage of these rows is shorter: the even share, or the longest row."""
    return max(float(spent_ms.sum()) / k, float(spent_ms.max()))


# --- who deals ---------------------------------------------------------------------------------
Dealer = Callable[[I32, int, Known, int], I32]


def _round_robin(author: I32, k: int, known: Known, seed: int) -> I32:
    return round_robin(0, len(author), k)


def by_author(author: I32, k: int, known: Known | None, seed: int) -> I32:
    """Local or shuffle: rows stay where they were read; sources are partitioned by author."""
    place: I32 = (mix(author.astype(np.uint64)) % np.uint64(k)).astype(np.int32)
    return place


def fewer_of_two(author: I32, k: int, known: Known | None, seed: int) -> I32:
    """Power of two: of two drawn instances the one that has got fewer rows."""
    first, second = np.random.default_rng([seed, 12]).integers(0, k, (2, len(author)))
    waiting = np.ones((len(author), k))
    target: I32 = shorter_of_two(np.zeros(len(author)), waiting, first, second)
    return target


def as_storm(author: I32, k: int, known: Known | None, seed: int) -> I32:
    """Load-aware: drawn by how much room queues had when they were looked at last."""
    rows = len(author)
    draw = np.random.default_rng([seed, 13]).random(rows)
    seconds = np.arange(rows) / LOOK_ROWS
    waiting = np.full((rows, k), 2.0 * rows)  # nothing ends while rows are dealt
    target: I32 = load_aware(seconds, waiting, draw, 1.0, rows)
    return target


def _paper(author: I32, k: int, known: Known, seed: int) -> I32:
    return greedy(known.own_ms, author.astype(np.int64), np.zeros(k), ahead=False)


def _online(author: I32, k: int, known: Known, seed: int) -> I32:
    return greedy(known.times_ms, author.astype(np.int64), np.zeros(k))


def _longest_first(author: I32, k: int, known: Known, seed: int) -> I32:
    return longest_first(known.times_ms, author.astype(np.int64), np.zeros(k))


def _means_known(author: I32, k: int, known: Known, seed: int) -> I32:
    """The floor of all estimates: only what nobody can know of a row is unknown."""
    return longest_first(known.mean_ms, author.astype(np.int64), np.zeros(k))


DEALERS: dict[str, Dealer] = {
    "round_robin": _round_robin,
    "local_or_shuffle": by_author,
    "power_of_two": fewer_of_two,
    "load_aware": as_storm,
    "paper": _paper,
    "online": _online,
    "longest_first": _longest_first,
    "means_known": _means_known,
}


# --- the experiment ----------------------------------------------------------------------------
def deal(
    graph: FollowerGraph, cost_ms: F64, instances: tuple[int, ...], options: DealOptions
) -> dict[str, Any]:
    """Busiest instance over `bound_ms`, by stream, rows per epoch, dealer and instances."""
    over: dict[str, Any] = {}
    apart: dict[str, Any] = {}
    debts: dict[str, Any] = {}
    sent: dict[str, int] = {}
    for k in instances:
        known, messages = learnt(graph, cost_ms, k, options)
        sent[str(k)] = messages
        for rows in options.rows:
            for stream in STREAMS:
                epochs = list(_epochs(graph, cost_ms, stream, rows, options))
                put = over.setdefault(stream, {}).setdefault(str(rows), {})
                for name, dealer in DEALERS.items():
                    put.setdefault(name, {})[str(k)] = _over(
                        [(dealer(a, k, known, e), s) for e, (a, s) in enumerate(epochs)], k
                    )
                put.setdefault("small_partitions", {})[str(k)] = _small(epochs, k)
            drawn = list(_epochs(graph, cost_ms, "drawn", rows, options))
            for many in options.schedulers:
                dealt = [(_by_several(many, a, k, known), s) for a, s in drawn]
                apart.setdefault(str(many), {}).setdefault(str(rows), {})[str(k)] = _over(dealt, k)
            for debt in DEBTS:
                dealt = list(_with_debts(debt, drawn, k, known))
                debts.setdefault(debt, {}).setdefault(str(rows), {})[str(k)] = _over(dealt, k)
    return {"over_bound": over, "schedulers": apart, "debts": debts, "sketches_sent": sent}


def learnt(graph: FollowerGraph, cost_ms: F64, k: int, options: DealOptions) -> tuple[Known, int]:
    """What is known after so many rows in epochs of 1,000, and how often sketches were sent."""
    shape = SketchShape.within(options.epsilon)
    instances = [InstanceCosts(shape) for _ in range(k)]
    h = mix(np.arange(graph.nodes, dtype=np.uint64))
    model, sent, rows = None, 0, 1_000
    for epoch in range(-(-options.learn_rows // rows)):
        author = graph.authors(rows, options.seed * 10_000 + epoch)
        spent = _noisy(cost_ms[author], [options.seed, 31, epoch])
        if model is None:
            target = round_robin(0, rows, k)
        else:
            target = longest_first(model.times_ms(h), author.astype(np.int64), np.zeros(k))
        news = 0
        for j, instance in enumerate(instances):
            sketch = CostSketch(shape)
            sketch.update(h[author[target == j]], spent[target == j])
            news += instance.add(sketch)
        if news:
            sent += news
            empty = CostSketch(shape)
            model = CostModel.of([instance.sent or empty for instance in instances])
    assert model is not None, f"{options.learn_rows} rows are too few to learn from"
    mean_ms = np.repeat(cost_ms[:, None], k, axis=1)
    return Known(model.times_ms(h), model.own_times_ms(h), mean_ms), sent


def _noisy(cost_ms: F64, seed: list[int]) -> F64:
    spent: F64 = cost_ms * np.exp(
        np.random.default_rng(seed).normal(-(NOISE**2) / 2, NOISE, len(cost_ms))
    )
    return spent


def _epochs(
    graph: FollowerGraph, cost_ms: F64, stream: str, rows: int, options: DealOptions
) -> list[tuple[I32, F64]]:
    """Authors and what their rows really take."""
    found = []
    for epoch in range(max(options.epochs, options.rows_in_all // rows)):
        author = graph.authors(rows, options.seed * 20_000 + rows + epoch)
        if stream == "interleaved":
            author = in_turn(author, cost_ms)
        found.append((author, _noisy(cost_ms[author], [options.seed, 32, rows, epoch])))
    return found


def _over(dealt: list[tuple[I32, F64]], k: int) -> float:
    return float(np.mean([np.bincount(t, s, k).max() / bound_ms(s, k) for t, s in dealt if len(t)]))


def _small(epochs: list[tuple[I32, F64]], k: int) -> float:
    """Eight tasks per core in place of one, each with a fixed cost, which the bound has not."""
    costs = EngineCosts()
    over = []
    for _, spent in epochs:
        busy = small_tasks(np.repeat(spent[:, None], k, axis=1), costs)
        over.append(float(busy.max()) / bound_ms(spent, k))
    return float(np.mean(over))


def _by_several(schedulers: int, author: I32, k: int, known: Known) -> I32:
    """Source tasks deal their parts of an epoch over all instances, each from another one on."""
    parts = np.array_split(author, schedulers)
    return np.concatenate(
        [
            longest_first(known.times_ms, part.astype(np.int64), np.zeros(k), s)
            for s, part in enumerate(parts)
        ]
    )


def _with_debts(
    debt: str, epochs: list[tuple[I32, F64]], k: int, known: Known
) -> list[tuple[I32, F64]]:
    """Epochs dealt by longest first that begin with what instances had in all epochs before."""
    busy, dealt = np.zeros(k), []
    for author, spent in epochs:
        before = busy.copy()
        target = longest_first(known.times_ms, author.astype(np.int64), busy)
        if debt == "none":
            busy = np.zeros(k)
        elif debt == "settled":
            busy = before + np.bincount(target, spent, k)
        dealt.append((target, spent))
    return dealt
