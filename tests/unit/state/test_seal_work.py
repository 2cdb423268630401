"""What sealing costs follows the rows a session asks for, or a digest takes its place.

Rows that are sealed or compared with their seals are counted: time says nothing on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.state import seals
from headgate.state.layout import StateSchema
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.state.warm_copy import forget_mappings
from unit.state.keys import int_keys

SCHEMA = StateSchema(key=pa.schema([("k", pa.int64())]), values=pa.schema([("n", pa.int64())]))
HELD = 4_000
FEW = np.arange(40)


class Sessions:
    """One state and its warm copy; `run` says how many rows went through `row_seals`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = StateStore(
            Storage.at(str(folder / "files")), warm_dir=str(folder / "warm"), buckets=8
        )
        self._chain: Chain = ()
        self._epoch = self._rows = 0
        made = seals.row_seals

        def counted(h: Any, *rest: Any) -> Any:
            self._rows += len(h)
            return made(h, *rest)

        monkeypatch.setattr(seals, "SEALED_AT_LEAST", 10)
        monkeypatch.setattr(seals, "row_seals", counted)

    def run(self, keys: Any) -> int:
        """Add one to the number of each key, as an operator does."""
        self._rows = 0
        with self._store.open(
            "op", 0, SCHEMA, self._chain, epoch=self._epoch, level=1, now_ms=0
        ) as session:
            batch = int_keys(keys)
            session.write(batch, {"n": session.read(batch)["n"] + 1})
            self.sealed = session._table.seals._sealed
            self.positions = len(session._table.h)
            self._chain = session.commit()
        self._epoch += 1
        return self._rows

    def rest(self) -> None:
        """Few rows at a time, until all positions have seals."""
        while self.run(FEW) or True:
            if self.sealed == self.positions:
                return
            assert self._epoch < 3 * seals.SESSIONS


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    made = Sessions(tmp_path, monkeypatch)
    made.run(np.arange(HELD))
    yield made
    forget_mappings()


def test_a_session_that_asks_for_few_rows_pays_for_those(sessions: Sessions) -> None:
    sessions.rest()

    assert sessions.run(FEW) <= 3 * len(FEW)


def test_a_table_of_which_sessions_ask_for_much_has_a_digest(sessions: Sessions) -> None:
    sessions.rest()
    much = np.arange(0, HELD, 4)
    for _ in range(seals.SESSIONS + 1):
        sessions.run(much)

    assert sessions.run(much) == 0
    assert sessions.sealed == 0


def test_a_session_that_fills_a_sealed_table_checks_no_row_twice(sessions: Sessions) -> None:
    """New keys need no proof that they were missing: the rebuild looks at every row."""
    sessions.rest()

    assert sessions.run(np.arange(HELD // 2, 2 * HELD)) <= HELD
    assert sessions.run(FEW) <= 2 * (len(FEW) + seals.more_sealed(sessions.positions))
