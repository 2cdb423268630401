"""An epoch's facts as a progress dict that `StreamingQueryProgress.fromJson` takes as it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.commit.facts import EngineFacts, EpochFacts

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


def progress_of(facts: EpochFacts, query_id: str, run_id: str, trigger: Trigger) -> dict[str, Any]:
    """What dashboards for Spark streams expect, plus the whole record under "headgate"."""
    job_s = (facts.engine.job_ms or 0.0) / 1e3
    rows, sinks = facts.rows, facts.sink_rows
    whole_ms = round(trigger.duration_s * 1e3)
    return {
        "id": query_id,
        "runId": run_id,
        "name": facts.flow,
        "timestamp": _iso(timedelta(seconds=trigger.started_s)),
        "batchId": facts.epoch,
        "batchDuration": whole_ms,
        "numInputRows": rows,
        "inputRowsPerSecond": trigger.rate(rows),
        "processedRowsPerSecond": rows / job_s if job_s else 0.0,
        "durationMs": _durations(facts.engine, whole_ms),
        "eventTime": _event_time(facts.watermark_us),
        "stateOperators": [_state_operator(facts, name) for name in facts.state],
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
            for name, count in facts.source_rows.items()
        ],
        "sink": {
            "description": ", ".join(sinks) or "headgate",
            "numOutputRows": sum(sinks.values()),
        },
        "headgate": facts.to_json(),
    }


def _durations(engine: EngineFacts, whole_ms: int) -> dict[str, int]:
    told = {"planning": engine.plan_ms, "job": engine.job_ms}
    told |= {f"level{level}": ms for level, ms in engine.levels_ms.items()}
    known = {name: round(ms) for name, ms in told.items() if ms is not None}
    return {"triggerExecution": whole_ms, **known}


def _state_operator(facts: EpochFacts, name: str) -> dict[str, Any]:
    """Rows updated are rows taken in; rows removed and the time of commits are not counted."""
    slots = facts.state[name].values()
    return {
        "operatorName": name,
        "numRowsTotal": sum(size.rows for size in slots),
        "numRowsUpdated": sum(facts.loads.get(name, ())),
        "numRowsRemoved": 0,
        "allUpdatesTimeMs": round(sum(facts.operator_ms.get(name, ()))),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 0,
        "memoryUsedBytes": sum(size.bytes for size in slots),
        "numRowsDroppedByWatermark": facts.late_rows.get(name, 0),
        "numShufflePartitions": facts.slots,
        "numStateStoreInstances": facts.slots,
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
