"""When a probe is over: enough epochs, the end of the flow, or patience that has run out.

The query is a stand-in with a script of what each look shows, and its clock goes on by a second
with each; tests/spark/test_tuning.py has the real one.
"""

from __future__ import annotations

from typing import Any

from headgate.runtime.tune_probe import IDLE_SECONDS, watch

LOOKS_MAX = 1_000  # an endless wait ends as a failure, not as a hang


class Query:
    """Each look is a pair: rows of the epoch that has ended (None: none has), is one at work?

    The last look stays for ever.
    """

    def __init__(self, *looks: tuple[int | None, bool], ends: bool = False, keeps: int = 100):
        self._looks, self._ends, self._keeps = looks, ends, keeps
        self._all: list[dict[str, Any]] = []
        self._epoch = 0
        self.now_s = 0.0
        self._at_work = False

    def awaitTermination(self, timeout: float | None = None) -> bool:
        look = int(self.now_s)
        assert look < LOOKS_MAX, "nobody ends this wait"
        rows, self._at_work = self._looks[min(look, len(self._looks) - 1)]
        if rows is not None:
            record = {"epoch": self._epoch, "plan_ms": 250.0, "job_ms": 1000.0}
            self._all.append({"batchId": self._epoch, "numInputRows": rows, "headgate": record})
            self._epoch += 1
        self.now_s += 1.0
        return self._ends and look + 1 >= len(self._looks)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return self._all[-self._keeps :]

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self._at_work, "isDataAvailable": self._at_work}

    def watched(self, epochs: int, wait_s: float) -> list[str]:
        said: list[str] = []
        watch(self, epochs, wait_s=wait_s, say=said.append, clock=lambda: self.now_s)
        return said


def test_a_source_without_rows_is_not_waited_for_longer_than_stated() -> None:
    query = Query((None, False))

    assert query.watched(epochs=4, wait_s=20) == ["no rows have come for 21 s"]


def test_epochs_are_told_as_they_pass() -> None:
    query = Query((None, True), (1_000, True), (2_000, True))

    assert query.watched(epochs=2, wait_s=20) == [
        "epoch 1 of 2: 1,000 rows in 1.25 s",
        "epoch 2 of 2: 2,000 rows in 1.25 s",
    ]


def test_an_epoch_at_work_may_take_longer_than_all_patience() -> None:
    query = Query(*[(None, True)] * 90, (10, False))

    assert len(query.watched(epochs=1, wait_s=20)) == 1
    assert query.now_s == 91


def test_a_source_that_runs_dry_ends_the_probe() -> None:
    query = Query((10, True), (None, False))

    told = query.watched(epochs=4, wait_s=60)

    assert told[-1].startswith("no more rows") and query.now_s <= 3 + IDLE_SECONDS


def test_ticks_of_an_idle_flow_are_no_rows() -> None:
    """A flow with timers runs an epoch every second, without rows, and never rests."""
    query = Query((0, True))

    assert query.watched(epochs=4, wait_s=20) == ["no rows have come for 21 s"]


def test_more_epochs_than_a_query_remembers_are_counted() -> None:
    query = Query((10, True), keeps=3)

    assert len(query.watched(epochs=7, wait_s=20)) == 7


def test_a_flow_that_ends_is_not_waited_for() -> None:
    query = Query((10, True), (20, False), ends=True)

    assert len(query.watched(epochs=9, wait_s=20)) == 2 and query.now_s == 2
