"""What the benchmark compares: one operator without seals, and every other as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headgate.state.columns import MappedMemory
from headgate.state.layout import StateSchema
from headgate.state.seals import Seals
from headgate.state.state_file import Chain
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from unit.state.keys import int_keys

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_seals.py"
SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))


def test_it_leaves_out_the_seals_of_one_operator_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((MappedMemory, "reserve"), (Seals, "stamp"), (Seals, "attach")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    runpy.run_path(str(BENCH))["leave_out_seals"]()
    folder = tmp_path / "warm"
    store = StateStore(Storage.at(str(tmp_path / "files")), warm_dir=str(folder), buckets=1)
    sums = {}
    for operator in ("sealed", "unsealed"):
        chain: Chain = ()
        for epoch in range(3):
            keys = int_keys(np.arange(epoch * 500, (epoch + 2) * 500))
            with store.open(operator, 0, SCHEMA, chain, epoch=epoch, level=1, now_ms=0) as session:
                session.write(keys, {"n": session.read(keys)["n"] + 1})
                chain = session.commit()
        with store.open(operator, 0, SCHEMA, chain, epoch=3, level=1, now_ms=0) as session:
            sums[operator] = int(session.all()["n"].sum())

    assert sums == {"sealed": 3_000, "unsealed": 3_000}
    assert list(folder.glob("sealed/*/*-seals"))
    assert not list(folder.glob("unsealed/*/*-seals"))
