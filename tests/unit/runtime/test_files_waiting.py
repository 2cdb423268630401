"""Files that wait, asked of stand-ins for sources; tests/spark/test_files.py has real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.runtime.files_waiting import FilesWaiting


def seq(items: list[Any]) -> Any:
    return SimpleNamespace(size=lambda: len(items), apply=lambda at: items[at])


def source(
    unread: int | None, *, all_now: object = None, newest_first: bool = False, kind: str = ""
) -> Any:
    fields = {
        "unreadFiles": None if unread is None else seq([0] * unread),
        "allFilesForTriggerAvailableNow": all_now,
        "sourceOptions": SimpleNamespace(latestFirst=lambda: newest_first),
    }

    def field(name: str) -> Any:
        return SimpleNamespace(setAccessible=lambda _: None, get=lambda _: fields[name])

    named = SimpleNamespace(
        getSimpleName=lambda: kind or "FileStreamSource", getDeclaredField=field
    )
    return SimpleNamespace(getClass=lambda: named)


def query_of(*sources: Any) -> Any:
    running = SimpleNamespace(sources=lambda: seq(list(sources)))
    return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: running))


@pytest.mark.parametrize(
    ("query", "files"),
    [
        (query_of(source(3), source(None), source(2)), 5),
        (query_of(source(None)), 0),
        (query_of(source(3), source(9, kind="KafkaMicroBatchStream")), 3),
        (query_of(source(9, kind="KafkaMicroBatchStream")), None),
        (query_of(source(3), source(None, all_now=seq([]))), None),
        (query_of(source(3, newest_first=True)), None),
        (None, None),
        (SimpleNamespace(), None),  # not a query of this Spark
    ],
)
def test_files_that_were_listed_and_not_taken_wait(query: Any, files: int | None) -> None:
    waiting = FilesWaiting()

    assert [waiting.count(query), waiting.count(query)] == [files, files]


def test_a_query_that_follows_is_asked_for_its_own_sources() -> None:
    waiting = FilesWaiting()

    assert [waiting.count(query_of(source(n))) for n in (3, 4)] == [3, 4]
