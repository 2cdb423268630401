"""Online Shuffle Grouping: the experiment of Rivetti et al. 2016, simulated.

The work is the reach of tweets over a follower graph (`headgate_lab.osg.reach`). Simulated, in
virtual time and from seeds: a stream over k = 1..10 instances, every policy on the same tuples;
the same stream in micro-batches; epochs by their number of rows; several schedulers and how they
keep up; and changes in mid-stream. On Spark: `osg_spark`. A speed-up is
the mean completion time of round robin over that of the policy, both over all tuples of a stream;
the figures of a k are means over loads and seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any, get_args

import numpy as np

from headgate.arrays import F64
from headgate.demo import Machine
from headgate_lab.osg.deals import DealOptions, deal
from headgate_lab.osg.epochs import EngineCosts, run_epochs, spreadings
from headgate_lab.osg.online import Settle
from headgate_lab.osg.reach import FollowerGraph, follower_graph, reach
from headgate_lab.osg.recovery import RecoveryOptions, recover
from headgate_lab.osg.stream import POLICIES, SCHEDULERS, completion_ms, scheduled, stream
from headgate_lab.osg.timing_error import timing_error

Say = Callable[[str], None]


@dataclass(frozen=True)
class OsgOptions:
    """Sizes; the defaults are those of the figures in the docs."""

    instances: tuple[int, ...] = tuple(range(1, 11))
    loads: tuple[float, ...] = (0.9, 0.95, 1.0)
    seeds: int = 2
    tuples: int = 65_536
    depth: int = 3
    nodes: int = 9_960
    edges: int = 183_005
    timed_authors: int = 200
    epoch_load: float = 0.8
    engine: EngineCosts = field(default_factory=EngineCosts)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    deals: DealOptions = field(default_factory=DealOptions)
    timing_rows: int = 128_000
    schedulers: tuple[int, ...] = (1, 2, 4)
    schedulers_instances: int = 5


QUICK = OsgOptions(
    instances=(1, 2, 4),
    loads=(0.9,),
    seeds=1,
    tuples=8_192,
    timed_authors=20,
    recovery=RecoveryOptions(tuples=16_384, seeds=1),
    deals=DealOptions(rows=(100, 1_000), learn_rows=20_000, epochs=3, rows_in_all=0),
    timing_rows=16_000,
)


def run_osg(options: OsgOptions, say: Say) -> dict[str, Any]:
    """The figures of `headgate-lab bench osg`."""
    graph = follower_graph(options.nodes, options.edges)
    cost_ms = graph.cost_ms(options.depth)
    found = simulate(graph, cost_ms, options, say)
    say("what the reach of some authors really takes")
    found["workload"] = describe(graph, cost_ms, options)
    return {**found, "options": asdict(options), "machine": asdict(Machine.here())}


def simulate(graph: FollowerGraph, cost_ms: F64, options: OsgOptions, say: Say) -> dict[str, Any]:
    """Everything that needs no Spark; equal options give equal figures."""
    runs = _streams(graph, cost_ms, options, say)
    by_k = {
        policy: {str(k): _speedup(runs, policy, k) for k in options.instances}
        for policy in POLICIES
    }
    ours = list(by_k["osg"].values())
    say("micro-batches")
    epochs = _epochs(graph, cost_ms, options)
    say("rows per epoch")
    deals = deal(graph, cost_ms, options.instances, options.deals)
    say("several schedulers")
    several = _several(graph, cost_ms, options)
    say("changes in mid-stream")
    changes = recover(graph, cost_ms, options.recovery)
    return {
        "speedup_mean": mean(ours),
        "speedup_max": max(ours),
        "speedup_min": min(ours),
        "speedup_mean_from_two": mean(v for k, v in by_k["osg"].items() if k != "1"),
        "speedup_min_of_a_run": min(
            r["completion_ms"]["round_robin"] / r["completion_ms"]["osg"] for r in runs
        ),
        "speedup_by_k": by_k,
        "speedup_by_load": {
            str(load): {policy: _speedup_at(runs, policy, load) for policy in POLICIES}
            for load in options.loads
        },
        "completion_ms": {
            policy: {
                str(k): mean(r["completion_ms"][policy] for r in runs if r["k"] == k)
                for k in options.instances
            }
            for policy in POLICIES
        },
        "messages": _by_scheduler(runs, "messages", options),
        "error": _by_scheduler(runs, "error", options),
        "epochs": epochs,
        "deals": deals,
        "synchronisation": several,
        "timing_error": timing_error(
            graph, cost_ms, rows=options.timing_rows, epsilon=options.deals.epsilon
        ),
        "recovery_windows": {
            change: {policy: facts["recovery_windows"] for policy, facts in by.items()}
            for change, by in changes.items()
        },
        "recovery": changes,
        "runs": runs,
    }


def _streams(
    graph: FollowerGraph, cost_ms: F64, options: OsgOptions, say: Say
) -> list[dict[str, Any]]:
    """Mean completion time of every policy on every stream."""
    runs = []
    for k in options.instances:
        for load in options.loads:
            for seed in range(options.seeds):
                what = stream(
                    graph, cost_ms, tuples=options.tuples, instances=k, load=load, seed=seed
                )
                run: dict[str, Any] = {"k": k, "load": load, "seed": seed}
                run |= {"completion_ms": {}, "messages": {}, "error": {}}
                for name, policy in POLICIES.items():
                    if name in SCHEDULERS:
                        told = scheduled(what, name)
                        target = told.run()
                        run["messages"][name] = told.messages
                        run["error"][name] = told.error(cost_ms, graph.shares)
                    else:
                        target = policy(what)
                    run["completion_ms"][name] = float(completion_ms(what, target).mean())
                runs.append(run)
        say(f"{k} instances: {_speedup(runs, 'osg', k):.2f}x round robin")
    return runs


def _by_scheduler(
    runs: list[dict[str, Any]], what: str, options: OsgOptions
) -> dict[str, dict[str, float]]:
    """Messages sent, or how far estimates were from true costs in the end, by instances."""
    return {
        name: {
            str(k): mean(run[what][name] for run in runs if run["k"] == k)
            for k in options.instances
        }
        for name in SCHEDULERS
    }


def _several(graph: FollowerGraph, cost_ms: F64, options: OsgOptions) -> dict[str, Any]:
    """Speed-up and messages by scheduler, way to settle and number of schedulers, at all loads."""
    found: dict[str, Any] = {}
    k = options.schedulers_instances
    for load in options.loads:
        what = stream(graph, cost_ms, tuples=options.tuples, instances=k, load=load, seed=0)
        base = float(completion_ms(what, POLICIES["round_robin"](what)).mean())
        for name in ("osg_paper", "osg_cumulated", "osg"):
            for settle in get_args(Settle):
                for many in options.schedulers:
                    told = scheduled(what, name, settle=settle, schedulers=many)
                    took = float(completion_ms(what, told.run()).mean())
                    put = (
                        found.setdefault(name, {}).setdefault(settle, {}).setdefault(str(many), [])
                    )
                    put.append((base / took, told.messages))
    return {
        name: {
            settle: {
                many: {"speedup": mean(s for s, _ in all_), "messages": mean(m for _, m in all_)}
                for many, all_ in by.items()
            }
            for settle, by in by_settle.items()
        }
        for name, by_settle in found.items()
    }


def _speedup(runs: list[dict[str, Any]], policy: str, k: int) -> float:
    return _ratio([r["completion_ms"] for r in runs if r["k"] == k], policy)


def _speedup_at(runs: list[dict[str, Any]], policy: str, load: float) -> float:
    return _ratio([r["completion_ms"] for r in runs if r["load"] == load], policy)


def _ratio(took: list[dict[str, float]], policy: str) -> float:
    return mean(one["round_robin"] / one[policy] for one in took)


def _epochs(graph: FollowerGraph, cost_ms: F64, options: OsgOptions) -> dict[str, Any]:
    """The stream in micro-batches: completion time, stage over round robin's, imbalance."""
    found: dict[str, Any] = {}
    for k in options.instances:
        what = stream(
            graph, cost_ms, tuples=options.tuples, instances=k, load=options.epoch_load, seed=0
        )
        for name, spreading in spreadings(graph.nodes, k).items():
            done = run_epochs(what, spreading, options.engine)
            late = len(done.tuples) // 2  # the first half still learns
            found.setdefault(name, {})[str(k)] = {
                "completion_ms": float(done.completion_ms.mean()),
                "imbalance": float(np.mean(done.imbalance[late:])),
                "epochs": len(done.tuples),
            }
    for name, by_k in found.items():
        for k_text, facts in by_k.items():
            base = found["round_robin"][k_text]["completion_ms"]
            facts["speedup"] = base / found[name][k_text]["completion_ms"]
    return found


def describe(graph: FollowerGraph, cost_ms: F64, options: OsgOptions) -> dict[str, Any]:
    """The workload's facts beside the paper's; edges counted against time really taken."""
    seen = graph.edges_seen(options.depth)
    neighbours = graph.neighbours()
    sample = np.unique(graph.authors(options.timed_authors, seed=99)).tolist()
    took_ms = []
    for author in sample:
        tries = []
        for _ in range(3):
            start = time.perf_counter()
            reach(author, options.depth, neighbours)
            tries.append((time.perf_counter() - start) * 1000)
        took_ms.append(median(tries))
    real = np.array(took_ms)
    return {
        "nodes": graph.nodes,
        "edges": len(graph.followers),
        "degree_max": int(graph.degrees.max()),
        "top_share": float(graph.shares.max()),
        "cost_ms_mean": float((graph.shares * cost_ms).sum()),
        "cost_ms_max": float(cost_ms.max()),
        "cost_ms_top_author": float(cost_ms[graph.shares.argmax()]),
        "measured_ms": {
            "least": float(real.min()),
            "mean": float(real.mean()),
            "most": float(real.max()),
        },
        "measured_against_counted_correlation": float(np.corrcoef(real, seen[sample])[0, 1]),
    }
