"""What only Spark can get wrong about a checkpoint; the rest is in tests/scenario."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.scenario.oracle import Case, bag, chain
from tests.spark.feeding import (
    ONCE,
    Collected,
    check,
    declare,
    frames,
    read_files,
    run_case,
    write_case,
    write_epoch,
)

import headgate as hg
from headgate.errors import (
    EngineError,
    ForeignCheckpoint,
    IncompatibleFlow,
    OperatorFailed,
    StateFileError,
)
from headgate.runtime.worker import INLINE_PINS_MAX

SCHEMA = "k bigint, v bigint"


@pytest.fixture
def case() -> Case:
    return chain(random.Random(41), epochs=4, rows=100, empty=False)


def begun(spark: SparkSession, case: Case, folder: Path, collected: Collected) -> None:
    """Epochs 0 and 1 are done, 2 and 3 are waiting."""
    write_case(case, folder / "in", range(2))
    run_case(spark, case, folder, collected=collected)
    write_case(case, folder / "in", range(2, 4))


def test_a_deleted_spark_checkpoint_is_noticed_at_start(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    """Without it Spark would number its batches from 0 again, and every one would be skipped."""
    collected = Collected()
    begun(spark, case, tmp_path, collected)
    (tmp_path / "checkpoint" / "spark").rename(tmp_path / "kept")

    with pytest.raises(ForeignCheckpoint) as caught:
        run_case(spark, case, tmp_path, collected=collected)

    assert caught.value.epoch == 1
    (tmp_path / "kept").rename(tmp_path / "checkpoint" / "spark")
    check(run_case(spark, case, tmp_path, collected=collected), case, collected)


def test_a_spark_checkpoint_of_another_query_is_noticed_at_start(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    """Also if it has read everything, so that Spark would find nothing to do and end in peace."""
    collected = Collected()
    begun(spark, case, tmp_path, collected)
    other = declare(case, frames(spark, case, tmp_path / "in"), Collected())
    other.start(spark, slots=2, checkpoint=str(tmp_path / "other"), trigger=ONCE).awaitTermination()
    mine = tmp_path / "checkpoint" / "spark"
    mine.rename(tmp_path / "kept")
    shutil.copytree(tmp_path / "other" / "spark", mine)

    with pytest.raises(ForeignCheckpoint) as caught:
        run_case(spark, case, tmp_path, collected=collected)

    assert caught.value.query_id == json.loads((mine / "metadata").read_text())["id"]
    shutil.rmtree(mine)
    (tmp_path / "kept").rename(mine)
    check(run_case(spark, case, tmp_path, collected=collected), case, collected)


def test_an_older_copy_of_the_spark_checkpoint_is_noticed_at_start(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    """It would number new rows as epochs that are committed already, and they would be skipped."""
    collected = Collected()
    begun(spark, case, tmp_path, collected)
    mine, old = tmp_path / "checkpoint" / "spark", tmp_path / "old"
    shutil.copytree(mine, old)
    run_case(spark, case, tmp_path, collected=collected)
    mine.rename(tmp_path / "kept")
    shutil.copytree(old, mine)

    with pytest.raises(ForeignCheckpoint, match="older than this flow's state"):
        run_case(spark, case, tmp_path, collected=collected)

    shutil.rmtree(mine)
    (tmp_path / "kept").rename(mine)
    check(run_case(spark, case, tmp_path, collected=collected), case, collected)


def test_deleted_manifests_are_noticed(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    begun(spark, case, tmp_path, Collected())
    shutil.rmtree(tmp_path / "checkpoint" / "manifests")

    with pytest.raises(ForeignCheckpoint) as caught:
        run_case(spark, case, tmp_path)

    assert caught.value.batch == 2


def test_a_damaged_state_file_stops_the_flow_and_is_named(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    collected = Collected()
    begun(spark, case, tmp_path, collected)
    files = sorted((tmp_path / "checkpoint" / "state" / "second").rglob("e000000001-*.arrow"))
    whole = [path.read_bytes() for path in files]
    for path, content in zip(files, whole, strict=True):
        path.write_bytes(content[:-20] + bytes(20))

    with pytest.raises(StateFileError) as caught:
        run_case(spark, case, tmp_path, collected=collected, warm_dir="off")

    assert caught.value.operator == "second"
    assert any(str(path).endswith(caught.value.file) for path in files)
    for path, content in zip(files, whole, strict=True):
        path.write_bytes(content)
    done = run_case(spark, case, tmp_path, collected=collected, warm_dir="off")
    check(done, case, collected)


def test_a_large_routing_table_that_is_damaged_before_workers_read_it_is_named(
    case: Case, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has it in memory and sends only its name; a task must not follow what it reads."""
    write_case(case, tmp_path / "in")
    pins = np.arange(2 * INLINE_PINS_MAX, dtype=np.uint64)
    large = hg.hash_table(2).pin_hashes(pins, (pins % np.uint64(2)).astype(np.int32))
    kept: dict[Path, bytes] = {}

    def damage(point: str, epoch: int) -> None:
        if point == "tables-saved" and not kept:
            (path,) = (tmp_path / "checkpoint" / "routing").glob("second-*")
            kept[path] = path.read_bytes()
            path.write_bytes(kept[path][:2_000] + b"?" + kept[path][2_001:])

    monkeypatch.setattr("headgate.commit.faults.reach", damage)
    with pytest.raises(StateFileError, match="bring it back") as caught:
        run_case(spark, case, tmp_path, tables={"second": large}, manager=None)

    ((path, whole),) = kept.items()
    assert caught.value.file == path.name
    path.write_bytes(whole)
    collected = Collected()
    check(run_case(spark, case, tmp_path, collected=collected), case, collected)


def test_changes_that_state_can_follow_resume_and_others_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    for epoch in range(2):
        write_epoch(tmp_path / "in", SCHEMA, epoch, [{"k": k % 3, "v": k} for k in range(30)])

    def build(declare: Any) -> hg.Flow:
        flow = hg.Flow("changing")
        declare(flow.source(read_files(spark, tmp_path / "in", SCHEMA), name="rows"))
        return flow

    def start(declare: Any, slots: int = 2, **options: Any) -> Any:
        place = str(tmp_path / "checkpoint")
        query = build(declare).start(spark, slots=slots, checkpoint=place, trigger=ONCE, **options)
        query.awaitTermination()
        return query

    def counting(rows: Any) -> Any:
        return rows.key_by("k").process(hg.Count(), name="counts")

    def changed(rows: Any) -> None:
        counts = counting(rows.shuffle().map(_same, SCHEMA, name="new_map"))
        counts.to_memory("new_sink")

    def two_sources(rows: Any) -> None:
        more = rows.flow.source(read_files(spark, tmp_path / "in", SCHEMA))
        counting(rows.union(more)).discard()

    start(lambda rows: counting(rows).discard())
    with pytest.raises(IncompatibleFlow, match="by their position"):
        start(two_sources)
    with pytest.raises(IncompatibleFlow):
        start(lambda rows: rows.key_by("v").process(hg.Count(), name="counts").discard())
    write_epoch(tmp_path / "in", SCHEMA, 2, [{"k": 7, "v": 7}, {"k": 0, "v": 0}])

    done = start(changed, slots=3)

    expected = [{"k": 0, "count": 21}, {"k": 1, "count": 20}, {"k": 2, "count": 20}]
    assert bag(done.state("counts").to_pylist()) == bag([*expected, {"k": 7, "count": 1}])
    assert bag(done.rows("new_sink")) == bag([expected[0], {"k": 7, "count": 1}])


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_dead_letters_take_bad_rows_and_the_flow_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"k": k % 4, "v": k} for k in range(100)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(2)
    flow = hg.Flow("letters")
    good = flow.source(frame, name="rows").shuffle().map(_refuse_multiples_of_30, SCHEMA, name="m")
    good.key_by("k").process(hg.Count(), name="counts").discard()
    flow.dead_letters().to_table("dead")

    query = flow.start(spark, slots=2, checkpoint=str(tmp_path / "checkpoint"))
    query.awaitTermination()

    letters = query.table("dead").toArrow().to_pylist()
    assert sorted(json.loads(row["row"])["v"] for row in letters) == [0, 30, 60, 90]
    assert {row["operator"] for row in letters} == {"m"}
    assert sum(row["count"] for row in query.state("counts").to_pylist()) == 96


def _refuse_multiples_of_30(batch: pa.RecordBatch) -> pa.RecordBatch:
    for v in batch.column("v").to_pylist():
        if v % 30 == 0:
            raise ValueError(f"{v} is round")
    return batch


def test_an_error_in_a_batch_is_raised_by_its_handle(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([{"k": 1, "v": 30}], SCHEMA)
    flow = hg.Flow("batch")
    stream = flow.source(frame, name="rows").map(_refuse_multiples_of_30, SCHEMA, name="m")
    stream.key_by("k").process(hg.Count(), name="counts").discard()

    query = flow.start(spark, slots=1, checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(OperatorFailed, match="30 is round"):
        query.awaitTermination()

    assert isinstance(query.exception(), OperatorFailed) and not query.isActive
    assert query.state("counts").num_rows == 0


def test_a_stage_that_lost_its_slots_is_an_error_and_not_a_wrong_result(
    case: Case, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a vendor's Spark that does not keep the partitions of a union; a cluster's exchanges
    have one, and one process has none.
    """
    write_case(case, tmp_path / "in", range(1))
    with monkeypatch.context() as as_on_a_cluster:
        for module in ("engine", "exchange"):
            name = f"headgate.runtime.{module}.in_one_process"
            as_on_a_cluster.setattr(name, lambda spark: False)
        with pytest.raises(EngineError):
            run_case(spark, case, tmp_path, conf={"spark.sql.unionOutputPartitioning": "false"})
    write_case(case, tmp_path / "in", range(1, 4))
    collected = Collected()
    check(run_case(spark, case, tmp_path, collected=collected), case, collected)
