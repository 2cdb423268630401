"""An analysis and a flow agree: what was promised for some rows is what these rows get."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.scenario.oracle import bag
from tests.spark.feeding import ONCE, state_rows

import headgate as hg
from headgate.demo import trends, write_epochs
from headgate.errors import HeadgateError, UnknownColumn, UnknownSlot
from headgate.offline.analyze import Analysis, AnalyzeOptions, analyze, write
from headgate.offline.analyze_input import shape_of
from headgate.offline.pairs import CountedPairs, count_pairs, hashes_of

SLOTS = 3


def analysed(spark: SparkSession, data: Path, form: str = "parquet", **asked: Any) -> Analysis:
    keys, operators = asked.pop("keys", ["region", "hashtag"]), asked.pop("operators", ())
    shape = shape_of(keys, operators, asked.pop("edges", ()), asked.pop("source", None))
    options = AnalyzeOptions(str(data), form, shape, slots=SLOTS, **{"curve": False, **asked})
    return analyze(spark, options)


def test_a_flow_gets_exactly_the_promised_locality_and_the_fold(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nulls, a composite key and three operators; the same rows, the same routing code."""
    files = write_epochs((_rows(epoch) for epoch in range(2)), tmp_path / "in")
    names = ["by_region", "by_hashtag", "by_both"]
    found = analysed(
        spark,
        files.directory,
        keys=["region", "hashtag", "region,day"],
        operators=names,
        curve=True,
    )
    write(found, tmp_path / "tables")
    flow = hg.Flow("analysed")
    stream = flow.source(_stream(spark, files.directory))
    for name, key in zip(names, (["region"], ["hashtag"], ["region", "day"]), strict=True):
        stream = stream.key_by(*key).process(hg.Count(emit="rows"), name=name)
    stream.discard()

    tables = hg.load_tables(tmp_path / "tables")
    with pytest.raises(UnknownSlot, match=r"is for 3 slots, the flow is to run 2"):
        flow.start(
            spark,
            slots=2,
            checkpoint=str(tmp_path / "other"),
            options=hg.Options(tables=tables),
            manager=None,
        )
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(tmp_path / "ck"),
        trigger=ONCE,
        options=hg.Options(tables=tables),
        manager=None,
    )
    query.awaitTermination()

    told = [record for record in query.journal() if record["kind"] == "epoch"]
    assert len(told) == 2
    for edge, matrix in zip(found.options.shape.edge_names, found.expected.traffic, strict=True):
        local = sum(record["edges"][edge]["local_rows"] for record in told)
        remote = sum(record["edges"][edge]["remote_rows"] for record in told)
        assert (local, local + remote) == (matrix.trace(), matrix.sum())
        assert local / (local + remote) == found.expected.edge_locality[edge]
    for name, by_slot in found.expected.loads.items():
        assert np.sum([record["loads"][name] for record in told], axis=0).tolist() == by_slot
    assert found.expected.locality > found.hashed.locality

    rows = [row for epoch in range(2) for row in _rows(epoch).to_pylist()]
    fold = Counter((row["region"], row["day"]) for row in rows)
    assert bag(state_rows(query.coordinator, "by_both")) == bag(
        {"region": region, "day": day, "count": count} for (region, day), count in fold.items()
    )
    facts = json.loads((tmp_path / "tables" / "analysis.json").read_text())
    assert facts["rows"] == len(rows)
    assert facts["keys"]["by_both"] == len(fold)
    assert facts["curve"][-1]["locality"] == facts["locality"]
    assert {pair["a"] for pair in facts["top_pairs"]} <= {str(row["region"]) for row in rows} | {
        "null",
        *(row["hashtag"] for row in rows),
    }


def test_few_pairs_here_are_the_heaviest_and_the_figures_still_count_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "posts.parquet"
    rows = trends(4_000, seed=5, epoch=0)
    pq.write_table(rows, path)
    shape = shape_of(["region", "hashtag"])
    exact = count_pairs(hashes_of(rows, shape.keys), shape.edges)

    few, complete = analysed(spark, path, max_edges=100), analysed(spark, path)

    assert few.left_out_pairs == len(exact) - 100
    assert few.left_out_rows == exact.n.sum() - np.sort(exact.n)[-100:].sum()
    assert few.rows == complete.rows == 4_000
    assert few.keys == complete.keys
    assert few.expected.traffic[0].sum() == 4_000
    assert few.hashed.locality == complete.hashed.locality
    assert few.hashed.locality < few.expected.locality < complete.expected.locality
    assert "left out" in " ".join(few.notes)
    with CountedPairs(spark.read.parquet(str(path)), shape, 100) as some:
        assert sorted(some.heaviest.n) == sorted(exact.n)[-100:]
        assert some.traffic(few.tables)[0].tolist() == few.expected.traffic[0].tolist()


def test_text_formats_fewer_keys_than_slots_and_what_cannot_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"a": [1, 2, 1, 2], "b": ["7", "8", "7", "8"]})
    pa.csv.write_csv(rows, tmp_path / "few.csv")

    few = analysed(spark, tmp_path / "few.csv", "csv", keys=["a", "b"])
    typed = analysed(spark, tmp_path / "few.csv", "csv", keys=["a", "b"], schema="a int, b string")

    assert few.expected.locality == typed.expected.locality == 1.0
    assert (few.types["b"], typed.types["b"]) == ("int", "string")
    assert "b has 2 keys for 3 slots" in " ".join(few.notes)
    h = hashes_of(rows, [["b"]])[0]
    assert typed.tables["b"].is_pinned(h).all() and not few.tables["b"].is_pinned(h).any()

    with pytest.raises(UnknownColumn, match="no column 'c'; its columns are a, b"):
        analysed(spark, tmp_path / "few.csv", "csv", keys=["a", "c"])
    pq.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(HeadgateError, match="has no rows"):
        analysed(spark, tmp_path / "empty.parquet", keys=["a", "b"])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(HeadgateError, match=r"cannot read .*bad\.parquet as parquet"):
        analysed(spark, tmp_path / "bad.parquet", keys=["a", "b"])


def test_source_partitions_draw_keys_and_the_flow_gets_what_is_promised_behind_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every gate is beside the slot that a blind plan would have chosen for its rows."""
    rows = _rows(0)
    plain = write_epochs([rows], tmp_path / "plain")
    ignored = analysed(spark, plain.directory)
    h = hashes_of(rows, [["region"]])[0]
    gate = ignored.tables["region"].route(h)
    at = (gate + 1) % SLOTS
    rows = rows.append_column("gate", pa.array(gate)).append_column("at", pa.array(at))
    files = write_epochs([rows], tmp_path / "in")

    found = analysed(spark, files.directory, source="gate", source_slot="at")
    write(found, tmp_path / "tables")

    assert found.source is not None and found.without is not None
    assert found.source.slot_by_text == [(str(n), (n + 1) % SLOTS) for n in range(SLOTS)]
    assert found.without.locality == ignored.expected.locality
    assert found.without.first_hop_locality == 0
    assert found.expected.first_hop_locality > 0.9
    stays = (found.tables["region"].route(h) == at).mean()
    assert found.expected.first_hop_locality == pytest.approx(stays)
    assert sorted(path.stem for path in (tmp_path / "tables").glob("*.parquet")) == [
        "hashtag",
        "region",
    ]

    flow = hg.Flow("gated")
    stream = flow.source(_stream(spark, files.directory), name="in")
    counted = stream.key_by("region").process(hg.Count(emit="rows"), name="region")
    counted.key_by("hashtag").process(hg.Count(), name="hashtag").to_memory("out")
    tables = hg.load_tables(tmp_path / "tables")
    query = flow.start(
        spark,
        slots=SLOTS,
        checkpoint=str(tmp_path / "ck"),
        trigger=ONCE,
        options=hg.Options(tables=tables),
        manager=None,
    )
    query.awaitTermination()
    (record,) = (r for r in query.journal() if r["kind"] == "epoch")
    assert record["locality"] == found.expected.locality
    assert not record["edges"]["in->region"]["between_slots"]
    with pytest.raises(UnknownColumn, match="no column 'where'"):
        analysed(spark, files.directory, source="gate", source_slot="where")


def _rows(epoch: int) -> pa.Table:
    """Posts whose region is sometimes null, with a day as a date."""
    posts = trends(1_500, seed=3, epoch=epoch, regions=9, hashtags=200)
    region = posts["region"].to_pylist()
    region[::50] = [None] * len(region[::50])
    day = pa.array((np.arange(len(region)) % 4 + 20_000).astype(np.int32)).cast(pa.date32())
    return pa.table({"region": region, "hashtag": posts["hashtag"], "day": day})


def _stream(spark: SparkSession, folder: Path) -> Any:
    schema = "region string, hashtag string, day date"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
