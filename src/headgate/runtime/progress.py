"""An epoch's record as a progress dict that `StreamingQueryProgress.fromJson` takes as it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH_0 = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Trigger:
    """When an epoch began, how long it took with its sinks, and when the one before began."""

    started_s: float
    duration_s: float
    before_s: float | None = None

    def rate(self, rows: int) -> float:
        """Rows that came per second since the epoch before; 0 if there was none."""
        gap = 0.0 if self.before_s is None else self.started_s - self.before_s
        return rows / gap if gap > 0 else 0.0


def progress_of(
    record: dict[str, Any], query_id: str, run_id: str, trigger: Trigger
) -> dict[str, Any]:
    """What dashboards for Spark streams expect, plus the whole record under "headgate"."""
    job_s = record.get("job_ms", 0.0) / 1e3
    rows = record.get("rows", 0)
    watermark = record.get("watermark_us")
    sinks = record.get("sink_rows", {})
    whole_ms = round(trigger.duration_s * 1e3)
    return {
        "id": query_id,
        "runId": run_id,
        "name": record["flow"],
        "timestamp": _iso(timedelta(seconds=trigger.started_s)),
        "batchId": record["epoch"],
        "batchDuration": whole_ms,
        "numInputRows": rows,
        "inputRowsPerSecond": trigger.rate(rows),
        "processedRowsPerSecond": rows / job_s if job_s else 0.0,
        "durationMs": _durations(record, whole_ms),
        "eventTime": _event_time(watermark),
        "stateOperators": [_state_operator(record, name) for name in record.get("state", {})],
        "sources": [
            {
                "description": name,
                "startOffset": None,
                "endOffset": None,
                "latestOffset": None,
                "numInputRows": count,
                "inputRowsPerSecond": trigger.rate(count),
                "processedRowsPerSecond": count / job_s if job_s else 0.0,
            }
            for name, count in record.get("source_rows", {}).items()
        ],
        "sink": {
            "description": ", ".join(sinks) or "headgate",
            "numOutputRows": sum(sinks.values()),
        },
        "headgate": record,
    }


def _durations(record: dict[str, Any], whole_ms: int) -> dict[str, int]:
    told = {"planning": record.get("plan_ms"), "job": record.get("job_ms")}
    told |= {f"level{level}": ms for level, ms in record.get("levels_ms", {}).items()}
    known = {name: round(ms) for name, ms in told.items() if ms is not None}
    return {"triggerExecution": whole_ms, **known}


def _state_operator(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Rows updated are rows taken in; rows removed and the time of commits are not counted."""
    slots = record["state"][name].values()
    return {
        "operatorName": name,
        "numRowsTotal": sum(slot["rows"] for slot in slots),
        "numRowsUpdated": sum(record.get("loads", {}).get(name, [])),
        "numRowsRemoved": 0,
        "allUpdatesTimeMs": round(sum(record.get("operator_ms", {}).get(name, []))),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 0,
        "memoryUsedBytes": sum(slot["bytes"] for slot in slots),
        "numRowsDroppedByWatermark": record.get("late_rows", {}).get(name, 0),
        "numShufflePartitions": record.get("slots", 0),
        "numStateStoreInstances": record.get("slots", 0),
    }


def _event_time(watermark_us: int | None) -> dict[str, str]:
    if watermark_us is None:
        return {}
    try:
        return {"watermark": _iso(timedelta(microseconds=watermark_us))}
    except OverflowError:
        return {}  # a year that Python has no word for


def _iso(since_1970: timedelta) -> str:
    return (_EPOCH_0 + since_1970).isoformat(timespec="milliseconds").replace("+00:00", "Z")
