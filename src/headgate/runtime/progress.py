"""An epoch's record as a progress dict with the names that StreamingQueryProgress uses."""

from __future__ import annotations

from typing import Any

from headgate.control.coordinator import Coordinator


def progress_of(record: dict[str, Any], coordinator: Coordinator, query_id: str) -> dict[str, Any]:
    """What dashboards for Spark streams expect, plus the whole record under "headgate"."""
    job_s = record.get("job_ms", 0.0) / 1e3
    rows = record.get("rows", 0)
    state = record.get("state", {})
    return {
        "id": query_id,
        "name": coordinator.program.graph.name,
        "batchId": record["epoch"],
        "numInputRows": rows,
        "processedRowsPerSecond": rows / job_s if job_s else 0.0,
        "durationMs": {
            "planning": record.get("plan_ms"),
            "job": record.get("job_ms"),
            **{f"level{level}": ms for level, ms in record.get("levels_ms", {}).items()},
        },
        "eventTime": {"watermarkUs": record.get("watermark_us")},
        "stateOperators": [
            {
                "operatorName": operator,
                "numRowsTotal": sum(slot["rows"] for slot in slots.values()),
                "memoryUsedBytes": sum(slot["bytes"] for slot in slots.values()),
            }
            for operator, slots in state.items()
        ],
        "sources": [
            {"description": name, "numInputRows": count}
            for name, count in record.get("source_rows", {}).items()
        ],
        "headgate": record,
    }
