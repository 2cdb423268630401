"""A bit flips, a byte turns to garbage, a file is cut, between two starts of a flow on Spark.

The sister of `tests/scenario/test_flips.py`, with the same flow and the same damage to the same
kinds of files, but on real Spark: its checkpoint, its Python workers, its tables. That is some
hundred starts, so it runs with `--run-slow`; `test_damage.py` has the most important ones.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.scenario.damaged_place import (
    FUNCTIONS,
    LAST,
    ROWS,
    SCHEMA,
    TUNING,
    Fold,
    Pinning,
    declared,
)
from tests.scenario.flips import ANY, KINDS, ON, STOP, damaged, kind_of
from tests.scenario.oracle import bag
from tests.spark.feeding import ONCE, read_files, state_rows, write_epoch

import headgate as hg
from headgate.commit import faults
from headgate.commit.published import TableCompaction
from headgate.commit.publishing import STAGING_GRACE_EPOCHS
from headgate.control.tuner import load_tuning, save_tuning
from headgate.errors import HeadgateError
from headgate.state.storage import Storage

pytestmark = pytest.mark.slow
BUCKETS = 8
EXPECTED = Fold([*ROWS, []])  # at the end a tick closes the windows that the last rows completed


class Died(Exception):
    """The driver is dead."""


class Place:
    """The folder of a flow on Spark, as it was right after its last commit, again and again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.root, self.kept = folder / "live", folder / "kept"
        self.delivered: dict[str, dict[int, Counter[Any]]] = {}
        for epoch in range(LAST + 1):
            write_epoch(folder / "in", SCHEMA, epoch, ROWS[epoch])

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def die(point: str, epoch: int) -> None:
            if (point, epoch) == ("manifest-written", LAST):
                raise Died

        with monkeypatch.context() as patched:
            patched.setattr(faults, "reach", die)
            with pytest.raises(Exception, match="Died"):
                self._start(2, Pinning())
        storage = Storage.at(str(self.root / "checkpoint"))
        compaction = TableCompaction(storage.child("tables", "tabled"), "damaged", "tabled")
        assert compaction.run(LAST + STAGING_GRACE_EPOCHS, 0.0)
        compaction.run(LAST + STAGING_GRACE_EPOCHS, 1e12)
        save_tuning(storage, TUNING)
        write_epoch(self._folder / "in", SCHEMA, LAST + 1, ROWS[LAST + 1])
        self.root.rename(self.kept)
        paths = (path for path in sorted(self.kept.rglob("*")) if path.is_file())
        self.files = [str(path.relative_to(self.kept)) for path in paths]

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.kept, self.root)
        self.delivered = {}

    def go_on(self, slots: int) -> None:
        """Deliver what waits and run one more epoch; all must be that of a plain fold."""
        query = self._start(slots, None)
        self.check_delivered()
        for sink in FUNCTIONS:
            assert sorted(self.delivered[sink]) == [LAST, LAST + 1, LAST + 2], sink
        for operator, rows in EXPECTED.state.items():
            assert bag(state_rows(query.coordinator, operator)) == rows, operator
        for sink in ("tabled", "published"):
            assert bag(query.table(sink).toArrow().to_pylist()) == EXPECTED.closed, sink
        assert load_tuning(query.coordinator.checkpoint.storage) in (None, TUNING)

    def check_delivered(self) -> None:
        """What functions got, whether or not all came: never a wrong row."""
        for sink, by_epoch in self.delivered.items():
            for epoch, rows in by_epoch.items():
                assert rows == EXPECTED.sinks[sink][epoch], (sink, epoch)

    def _start(self, slots: int, manager: Any) -> Any:
        source = read_files(self._spark, self._folder / "in", SCHEMA)
        functions = {name: self._function(name) for name in FUNCTIONS}
        options = hg.Options(warm_dir=str(self.root / "warm"), buckets=BUCKETS, keep_manifests=3)
        query = declared(source, str(self.root / "out"), functions).start(
            self._spark,
            slots=slots,
            checkpoint=str(self.root / "checkpoint"),
            trigger=ONCE,
            manager=manager,
            options=options,
        )
        query.awaitTermination()
        return query

    def _function(self, name: str) -> Any:
        def take(frame: DataFrame, epoch: int) -> None:
            rows = frame.toArrow().to_pylist()
            told = Counter(r["operator"] for r in rows) if name == "dead" else bag(rows)
            self.delivered.setdefault(name, {})[epoch] = told

        return take


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(spark, tmp_path_factory.mktemp("flips"))
    with pytest.MonkeyPatch.context() as patched:
        made.prepare(patched)
    return made


def test_undamaged_it_goes_on_and_has_every_kind_of_file_and_no_other(place: Place) -> None:
    place.reset()
    place.go_on(slots=3)

    assert {kind_of(name) for name in place.files} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_flips(kind: str, place: Place) -> None:
    rng = random.Random(f"flips on Spark {kind}")
    of_kind = [name for name in place.files if kind_of(name) == kind]
    for slots in (2, 2, 1):
        name = rng.choice(of_kind)
        place.reset()
        path = place.root / name
        whole = path.read_bytes()
        how, data = damaged(whole, rng)
        path.write_bytes(data)
        what, outcome = f"{name}: {how}, then {slots} slots", ON
        try:
            place.go_on(slots)
        except HeadgateError:
            outcome = STOP
            place.check_delivered()
        except BaseException as problem:
            raise AssertionError(what) from problem
        assert KINDS[kind][1] in (ANY, outcome), what
        if outcome == STOP:
            path.write_bytes(whole)
            place.go_on(slots)
