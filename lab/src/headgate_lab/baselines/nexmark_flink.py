"""Nexmark in Flink SQL 2.3: one process for all queries, so that it is warm, over CSV files.

A query's time is that of a job over all files without that of one over the first epoch's: start-up
and deployment are in both. Mini-batches, two phases, state on the heap, as in `flink_sql`.

A job that takes too long costs the process; the next query starts another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from headgate_lab.baselines.answering import Answering
from headgate_lab.baselines.flink_sql import RIVAL
from headgate_lab.baselines.result import RivalUnavailable

TYPES = {pa.int64(): "BIGINT", pa.string(): "STRING"}
LEAST_MS = 200
LONGEST_S = 600.0
DRIVER = Path(__file__).parent / "driver" / "nexmark_flink_driver.py"


class FlinkProcess:
    """Flink, started once: `seconds("q5")` runs a query over all files, and over the first."""

    def __init__(
        self,
        *,
        all_files: Path,
        first_files: Path,
        schemas: Mapping[str, pa.Schema],
        queries: Mapping[str, str],
        slots: int,
        work: Path,
        longest_s: float = LONGEST_S,
    ) -> None:
        python = RIVAL.setup() / "bin" / "python"
        work.mkdir(parents=True, exist_ok=True)
        settings = work / "settings.json"
        settings.write_text(
            json.dumps(
                {
                    "all": str(all_files),
                    "first": str(first_files),
                    "tables": {name: _columns(schema) for name, schema in schemas.items()},
                    "queries": dict(queries),
                    "slots": slots,
                    "out": str(work / "out"),
                }
            )
        )
        command = [str(python), str(DRIVER), str(settings)]
        self._asked = Answering("flink", command, work / "flink.log", longest_s)

    def seconds(self, query: str) -> float:
        """Of all epochs but the first.

        Raises:
            RivalUnavailable: when Flink cannot run the query, or took no time that can be measured.
        """
        first, whole = (int(self._asked.ask(f"{query} {which}")) for which in ("first", "all"))
        if whole - first < LEAST_MS:
            raise RivalUnavailable("flink: its start-up hides so few events; draw more of them")
        return (whole - first) / 1000

    def __enter__(self) -> FlinkProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._asked.close()


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {TYPES.get(field.type, 'TIMESTAMP(3)')}" for field in schema)
