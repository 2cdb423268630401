"""Tables I and II: the paper's numbers beside ours, and inputs taken from what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.commit.facts import EdgeFacts, EngineFacts, EpochFacts
from headgate_lab.bench.sax import emitted_in
from headgate_lab.bench.sax_inputs import _sampled_bytes, spout_rate
from headgate_lab.bench.sax_page import CONFIGURATIONS, page
from headgate_lab.bench.tune_flows import PAPER_FLOWS, flow_named
from headgate_lab.papers.sax_values import SHOWN_IN_FIGURE_5, TABLES, TOLD_IN_TEXT


@pytest.mark.parametrize("name", PAPER_FLOWS)
def test_the_papers_steps_are_those_of_our_flow(name: str) -> None:
    operators = [n.name for n in flow_named(name, seed=1).program.graph.nodes if n.kind != "sink"]

    for printed in TABLES[name]:
        assert set(printed.dop) == set(printed.batch_rows) == set(operators)
    assert set(SHOWN_IN_FIGURE_5[name]) < set(operators)


def test_the_sums_of_table_ii_are_what_the_text_says() -> None:
    """1129, the spout included."""
    assert sum(TABLES["sentiment"][1].dop.values()) == 1_129


def test_a_page_has_a_row_for_every_step_and_configuration() -> None:
    shown = page({"flows": {name: told(name) for name in PAPER_FLOWS}})

    assert "| parse | 0.5 | 3 | 7 | 2 | 20 | 2,048 |" in shown
    assert "| posTag | 0.5 | 3 | 7 | 2 | 18 | 4 | 228 | 250 |" in shown
    assert shown.count("| not optimized |") == 4
    assert "figure 3: about 1250 s" in shown and "What differs" in shown


def told(name: str) -> dict[str, Any]:
    steps = list(TABLES[name][0].dop)
    return {
        "inputs": {
            "message_us": 20.0,
            "byte_ns": 16.0,
            "spout_rows_per_s": 1e6,
            "spout_dop": 2,
            "ppt_us": dict.fromkeys(steps, 0.5),
        },
        "tables": {
            "algorithm_1": {"dop": dict.fromkeys(steps, 3), "batch_rows": dict.fromkeys(steps, 7)},
            "on_spark": {
                "slots": 2,
                "dop": dict.fromkeys(steps[1:], 2),
                "batch_rows": {"a->b": 5, "b->c": 9},
                "rows_per_epoch": 1_000,
            },
        },
        "figures": {
            "rows": 4_000,
            "uptime_s": dict.fromkeys(CONFIGURATIONS, 2.0),
            "simulated_rows_per_s": dict.fromkeys(CONFIGURATIONS, 9.0),
            "processing_latency_ms": {
                c: dict.fromkeys(SHOWN_IN_FIGURE_5[name], 1.5) for c in CONFIGURATIONS
            },
        },
        "paper": {
            "tables": [
                {"what": t.what, "dop": t.dop, "batch_rows": t.batch_rows} for t in TABLES[name]
            ],
            "text": TOLD_IN_TEXT[name],
        },
    }


def test_rows_emitted_are_those_that_operators_and_sinks_took_in() -> None:
    epoch = EpochFacts(
        0,
        rows=10,
        source_rows={"spout": 10},
        operator_rows={"spout": 10, "parse": 10, "agg": 10},
        sink_rows={"out": 4},
        edges={"spout->parse": EdgeFacts(local_rows=10)},
    )

    assert emitted_in(epoch) == 24


def test_a_spouts_rate_is_that_of_its_longest_task() -> None:
    epochs = [
        EpochFacts(i, rows=rows, engine=EngineFacts(levels_ms={0: 50 + rows / 100, 1: 500}))
        for i, rows in enumerate((1_000, 10_000, 1_000, 10_000, 10_000))
    ]

    assert spout_rate(epochs) == pytest.approx(100_000, rel=0.01)


def test_rows_inside_a_task_are_weighed_by_running_the_steps() -> None:
    flow = flow_named("sentiment", seed=1)
    graph = flow.program.graph

    found = _sampled_bytes(graph, flow.make(50, 0).to_batches()[0])

    assert set(found) == {n.name for n in graph.nodes if n.kind != "sink"}
    assert min(found.values()) > 8 and found["res"] < found["neg"]
