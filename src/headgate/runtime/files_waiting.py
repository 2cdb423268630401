"""How many files wait for the next epochs: what Spark's file source has listed and not taken.

Its offsets do not say so, and it reports no metrics: with a limit per epoch it keeps the rest of a
listing in a private field, from which it takes the next epochs. It keeps none where it lists anew
every time (`latestFirst`), and with `availableNow` the list of all: there nobody knows. A rest of
less than a fifth of a limit it forgets and lists again, so it counts as none.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = "FileStreamSource"
UNREAD, ALL_NOW, OPTIONS = "unreadFiles", "allFilesForTriggerAvailableNow", "sourceOptions"


class FilesWaiting:
    """Asked in an epoch's function, so while no listing is made."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None
        self._unread: list[tuple[Any, Any]] = []  # sources of this query and their field

    def count(self, query: StreamingQuery | None) -> int | None:
        """None: no source is a file source, or it does not tell."""
        if query is None:
            return None
        try:
            if query is not self._query:
                self._query, self._unread = query, _found(query)
            left = [field.get(source) for source, field in self._unread]
            return sum(0 if files is None else files.size() for files in left) if left else None
        except (Py4JError, TypeError, AttributeError):
            self._unread = []  # another version of Spark
            return None


def _found(query: StreamingQuery) -> list[tuple[Any, Any]]:
    jvm: Any = query._jsq
    sources = jvm.streamingQuery().sources()
    every = [sources.apply(number) for number in range(sources.size())]
    found = []
    for source in every:
        kind = source.getClass()
        if kind.getSimpleName() != SOURCE:
            continue
        unread, all_now, options = (kind.getDeclaredField(n) for n in (UNREAD, ALL_NOW, OPTIONS))
        for field in (unread, all_now, options):
            field.setAccessible(True)
        if all_now.get(source) is not None or options.get(source).latestFirst():
            return []
        found.append((source, unread))
    return found
