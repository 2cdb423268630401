"""Which flows can be told how many rows an epoch should have; what reading a table sees."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headgate as hg
from headgate.commit.checkpoint import Checkpoint
from headgate.runtime import connectors
from headgate.runtime.connectors import Delivery, takes_rows


def flow_of(*sources: Any) -> hg.Flow:
    flow = hg.Flow("told")
    for number, source in enumerate(sources):
        rows = flow.source(source, schema="k bigint", name=f"in{number}")
        rows.key_by("k").process(hg.Count(), name=f"count{number}").to(print, name=f"out{number}")
    return flow


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (hg.Reader("kafka"), True),
        (hg.Reader("kafka", {"maxOffsetsPerTrigger": "7"}), False),
        (hg.Reader("csv", path="in"), False),
        (hg.Reader("csv", path="in", rows_per_file=10), True),
        (hg.Reader("socket"), False),
        (lambda spark, rows_per_epoch: None, True),
        (lambda spark: None, False),
        (lambda spark, folder="in": None, False),
        (lambda spark, rows_per_epoch, folder="in": None, True),
        (lambda spark, *, folder: None, False),
        (lambda spark, *rest, **options: None, False),
    ],
)
def test_a_source_is_told_only_if_it_can_be(source: Any, told: bool) -> None:
    assert takes_rows(flow_of(source).graph()) is told


def test_one_source_that_can_be_told_is_enough() -> None:
    deaf = hg.Reader("socket")

    assert takes_rows(flow_of(deaf, hg.Reader("kafka")).graph())
    assert not takes_rows(flow_of(deaf, deaf).graph())


def test_an_epoch_that_is_published_while_a_table_is_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(lambda spark: None)
    flow.source(lambda spark: None, schema="k bigint", name="more").to_table("rows")
    graph = flow.graph()
    place = Checkpoint(str(tmp_path))
    spark: Any = SimpleNamespace(createDataFrame=lambda rows, schema: rows)
    delivery = Delivery(spark, graph, place)
    last: Any = SimpleNamespace(epoch=4, published={"rows": 3}, sinks={"rows": [{"rows": 3}]})
    listed = connectors.published_files

    def published_in_between(*given: Any) -> Any:
        found = listed(*given)
        place.mark(4, "rows")
        return found

    monkeypatch.setattr(connectors, "published_files", published_in_between)

    assert delivery.table(graph.node("rows"), last, verify=True) == []
