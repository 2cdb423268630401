"""One tree's side of `bench regression`: runs hot paths when told to, and answers what they cost.

It is this tree's file, and it runs with the `headgate` of an older tree too. So it takes what both
have: where they differ, rows are read and keyed as a user of that tree would. One JSON object a
line comes in, a path and its work; one goes out.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ANSWER = "ANSWER "  # what else is printed is Spark's
SLOTS = 2
_sessions: list[Any] = []
_states: dict[str, Any] = {}


def state(work: dict[str, Any]) -> dict[str, float]:
    """Read and write the state of known keys, by the tree's own bench; CPU ms of an epoch."""
    if "driver" not in _states:
        file = Path(work["tree"]) / "benchmarks" / "bench_state.py"
        spec = importlib.util.spec_from_file_location("bench_state", file)
        assert spec is not None and spec.loader is not None
        bench = importlib.util.module_from_spec(spec)
        sys.modules["bench_state"] = bench
        spec.loader.exec_module(bench)
        folder = tempfile.mkdtemp(dir=work["scratch"])
        _states["driver"] = bench.Driver(folder, "large", work["held"], work["touched"], False)
    driver = _states["driver"]
    took = float(median(driver.run(driver.batch())["all"] for _ in range(work["epochs"])))
    return {"ms": took, "cpu_ms": took}


def by_text(rows: Any, split: bool) -> list[Any]:
    import headgate as hg

    return [_keyed(rows, key, hg.Sum("amount"), f"by_{key}", split) for key in ("user", "page")]


def chained(rows: Any, split: bool) -> list[Any]:
    import headgate as hg

    first = _keyed(rows, "k1", hg.Count(emit="rows"), "by_k1", split)
    return [_keyed(first, "k2", hg.Count(), "by_k2", split)]


def wide(rows: Any, split: bool) -> list[Any]:
    """A chain of three that passes rows on; their payload is read behind the last of them."""
    import headgate as hg

    for key in ("k1", "k2", "k3"):
        rows = _keyed(rows, key, hg.Count(emit="rows"), f"by_{key}", split)
    rows.filter(_has_payload, name="reads_the_payload").filter(_nothing).to_memory("none")
    return []


def _has_payload(batch: Any) -> Any:
    return batch.column("payload").is_valid()


def _nothing(batch: Any) -> Any:
    import numpy as np

    return np.zeros(batch.num_rows, np.bool_)


FLOWS: dict[str, Callable[[Any, bool], list[Any]]] = {
    "by_text": by_text,
    "chained": chained,
    "wide": wide,
}


def flow(work: dict[str, Any]) -> dict[str, float]:
    """Wall ms of the median micro-batch after the first ones, by Spark's clock; CPU ms of them all.

    The second is that of this process, its JVM and its workers from start to end of the query, per
    micro-batch: it counts what the query's start takes, and hardly what else the machine does.
    """
    import headgate as hg

    before = cpu_ms()
    with _folder(work["scratch"]) as folder:
        flow, spark = hg.Flow("regression"), _session()
        for outlet in FLOWS[work["flow"]](_source(flow, spark, work), work["split"]):
            if hasattr(outlet, "discard"):
                outlet.discard()
        query = flow.start(
            spark,
            slots=SLOTS,
            checkpoint=folder,
            trigger={"availableNow": True},
            manager=None,
        )
        query.awaitTermination()
        spark_query: Any = query.sparkQuery
        done = [p for p in spark_query.recentProgress if "addBatch" in p.durationMs]
        if len(done) != work["epochs"]:
            raise RuntimeError(f"{work['epochs']} epochs became {len(done)} micro-batches")
        took = float(median(p.durationMs["triggerExecution"] for p in done[work["warmup"] :]))
        return {"ms": took, "cpu_ms": (cpu_ms() - before) / len(done)}


def cpu_ms() -> float:
    """Of this process and all below it, those that ended included."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, layer = 0, {os.getpid()}
    while layer:
        found += sum(stats[pid][1] for pid in layer)
        layer = {pid for pid, (parent, _) in stats.items() if parent in layer}
    return found * 1000 / os.sysconf("SC_CLK_TCK")


def _source(flow: Any, spark: Any, work: dict[str, Any]) -> Any:
    import headgate as hg

    if hasattr(hg, "Files"):
        return flow.source(hg.Files(work["folder"], max_files=1))
    reader = spark.readStream.schema(work["columns"]).option("maxFilesPerTrigger", 1)
    return flow.source(reader.parquet(work["folder"]))


def _keyed(rows: Any, key: str, operator: Any, name: str, split: bool) -> Any:
    keyed = rows.key_by(key)
    if "split" in inspect.signature(keyed.process).parameters:  # as up to the commit 4e2145c
        return keyed.process(operator, name=name, split=split)
    keyed = rows.key_by(key, grouping="partial" if split else "hash")
    return keyed.process(operator, name=name)


def _session() -> Any:
    if not _sessions:
        from pyspark.sql import SparkSession

        from headgate.runtime.session import LOCAL_FILES

        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.Builder().master(f"local[{SLOTS}]").appName("regression")
        settings = {
            **LOCAL_FILES,
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.ui.showConsoleProgress": "false",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(SLOTS),
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        _sessions.append(builder.getOrCreate())
    return _sessions[0]


@contextmanager
def _folder(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    kinds: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {"flow": flow, "state": state}
    for line in sys.stdin:
        work = json.loads(line)
        try:
            told: dict[str, Any] = dict(kinds[work["kind"]](work))
        except Exception as problem:
            reason = str(problem).splitlines() or ["no message"]
            told = {"problem": f"{type(problem).__name__}: {reason[0]}"}
        sys.stdout.write(f"{ANSWER}{json.dumps(told)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
