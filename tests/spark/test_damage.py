"""Files of a flow are damaged between two starts on Spark: warm copies, and all a checkpoint holds.

A smaller sister of `tests/scenario/test_flips.py`. One flow is stopped, damaged and started again,
time after time. Warm copies that are damaged are not used; damage in the checkpoint is refused,
until the file is back, or does not matter. State and sinks are those of a plain fold throughout.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.scenario.oracle import Case, chain
from tests.spark.feeding import Collected, check, run_case, write_case

import headgate as hg
from headgate.errors import (
    CheckpointError,
    DamagedManifest,
    HeadgateError,
    SinkFailed,
    StateFileError,
)
from headgate.runtime.query import FlowQuery

EPOCHS = 8
BEGUN = 3
# One file in each of some warm copies: files that every epoch reads, then some that it reads when
# state moves. Copies that one task would meet together hide each other then, so there are fewer.
READ = {
    "first/00000": "-records", "first/00001": "-h",  # marks of integer keys are read by scans only
    "second/00000": "-records", "second/00001": "-h",
}  # fmt: skip
MOVED = {"first/00000": "-seals", "second/00001": "-c000-ref"}


def tables(case: Case, first: int) -> dict[str, hg.RoutingTable]:
    """Every other key of each operator in slot `first`, the rest in the other one."""
    made = {}
    for operator, (schema, keys) in case.keys.items():
        columns = [pa.array([key[0] for key in keys], schema.field(0).type)]
        homes = [(first + number) % 2 for number in range(len(keys))]
        made[operator] = hg.hash_table(2).pin(columns, homes)
    return made


class Forgetful(Collected):
    """A sink that may fail, so that committed rows wait for the next start."""

    fails = False

    def sink(self, name: str) -> Any:
        take = super().sink(name)

        def maybe(frame: DataFrame, epoch: int) -> None:
            if self.fails:
                raise ConnectionError("the database is away")
            take(frame, epoch)

        return maybe


class Story:
    """One flow and its folder, from start to start; every start has one more epoch to do."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.rng = spark, folder, random.Random(20)
        self.case = chain(self.rng, epochs=EPOCHS, rows=60, empty=False)
        self.collected, self.last = Forgetful(), BEGUN - 1
        self.checkpoint = folder / "checkpoint"
        write_case(self.case, folder / "in", range(BEGUN))
        self.come_to_the_end(tables=tables(self.case, 0))

    def go_on(self, **options: Any) -> None:
        self.next_epoch()
        self.come_to_the_end(**options)

    def come_to_the_end(self, **options: Any) -> None:
        """Do all epochs there are; afterwards all must be as if nothing had been."""
        check(self.start(**options), self.case, self.collected, self.last)

    def next_epoch(self) -> None:
        self.last += 1
        write_case(self.case, self.folder / "in", range(self.last, self.last + 1))

    def start(self, **options: Any) -> FlowQuery:
        return run_case(
            self.spark, self.case, self.folder, collected=self.collected,
            warm_dir=str(self.folder / "warm"), manager=None, **options,
        )  # fmt: skip

    def lose_warm_copies(self, kinds: dict[str, str], **options: Any) -> None:
        """Damage a file in each; the next epoch uses none of them."""
        (place,) = (self.folder / "warm").glob("headgate-*")
        before = {path for copy in kinds for path in (place / copy).iterdir()}
        for copy, kind in kinds.items():
            self.damage(next(p for p in (place / copy).iterdir() if p.name.endswith(kind)))
        self.go_on(**options)
        used = [path for path in before if path.exists() and path.name != "head"]
        assert not used, "they are damaged"

    def file(self, pattern: str) -> Path:
        """The newest file of the checkpoint that matches."""
        return max(path for path in self.checkpoint.glob(pattern) if path.is_file())

    def damage(self, path: Path) -> bytes:
        """Flip a bit of every byte, in place, so that no row gets away; returns what was there."""
        whole = path.read_bytes()
        damaged = bytes(byte ^ 1 << self.rng.randrange(8) for byte in whole)
        with path.open("r+b") as file:
            file.write(damaged)
        return whole

    def is_refused(self, pattern: str, error: type[HeadgateError]) -> None:
        """With this file damaged a start fails and calls no sink. The file is put back."""
        path, calls = self.file(pattern), len(self.collected.calls)
        whole = self.damage(path)
        with pytest.raises(error):
            self.start()
        assert len(self.collected.calls) == calls, path
        path.write_bytes(whole)


def test_damage_between_two_starts_is_refused_or_undone(
    spark: SparkSession, tmp_path: Path
) -> None:
    story = Story(spark, tmp_path)

    story.lose_warm_copies(READ)
    story.go_on()  # which builds them again
    story.lose_warm_copies(MOVED, tables=tables(story.case, 1))

    story.collected.fails = True
    story.next_epoch()
    with pytest.raises(SinkFailed):
        story.start()
    story.collected.fails = False
    story.is_refused("sinks/to_sums/*", StateFileError)
    story.is_refused("manifests/*", DamagedManifest)
    story.is_refused("headgate.json", CheckpointError)
    story.is_refused("routing/second-*", StateFileError)
    story.is_refused("spark/offsets/*", HeadgateError)
    story.come_to_the_end()
    shutil.rmtree(tmp_path / "warm")  # or the state is not read
    story.next_epoch()
    story.is_refused("state/second/*/*", StateFileError)
    for pattern in ("journal/*", "marks/*", "generations/*"):
        story.damage(story.file(pattern))
    story.come_to_the_end()
