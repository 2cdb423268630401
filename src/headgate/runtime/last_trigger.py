"""What Spark says of a trigger when it is over, for the facts of the next epoch.

How long it took as a whole tells idle time from work. Where a source reports the latest offset that
it had when an epoch was planned, an end before it means that rows were left waiting; Kafka does,
files do not.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from headgate.commit.facts import LastTrigger


def last_trigger(progress: StreamingQueryProgress | None, epoch: int) -> LastTrigger:
    """Facts about the trigger before this epoch's; none if Spark speaks of another one."""
    if progress is None or progress.batchId != epoch - 1 or "addBatch" not in progress.durationMs:
        return LastTrigger()
    offsets = [(_offset(s.endOffset), _offset(s.latestOffset)) for s in progress.sources]
    known = [(end, latest) for end, latest in offsets if latest is not None]
    return LastTrigger(
        progress.durationMs["triggerExecution"],
        any(end != latest for end, latest in known) if known else None,
    )


def _offset(told: str | None) -> Any:
    return None if told is None else json.loads(told)
