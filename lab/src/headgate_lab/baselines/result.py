"""What every rival hands back: how long it took, and what it counted, so that it can be checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.demo import EpochFiles
from headgate.errors import HeadgateError


class RivalUnavailable(HeadgateError, RuntimeError):
    """A rival cannot run on this machine: a package is missing or does not install."""


@dataclass(frozen=True)
class BaselineResult:
    """Times of the epochs after warm-up, and the final counts of all epochs.

    `rows` were processed in `seconds_per_epoch` in all. An engine that has no epochs reports one
    stretch over everything it read, without its start-up. Counts are (key, count), by key.
    """

    name: str
    rows: int
    seconds_per_epoch: tuple[float, ...]
    counts_k1: pa.Table
    counts_k2: pa.Table

    @property
    def seconds(self) -> float:
        return sum(self.seconds_per_epoch)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    def agrees_with(self, other: BaselineResult | tuple[pa.Table, pa.Table]) -> bool:
        """Whether both counted the same; compare with a rival or with `oracle(...)`."""
        if isinstance(other, BaselineResult):
            other = (other.counts_k1, other.counts_k2)
        return bool(self.counts_k1.equals(other[0]) and self.counts_k2.equals(other[1]))


def counts_table(
    keys: npt.NDArray[np.int64] | list[int], counts: npt.NDArray[np.int64] | list[int]
) -> pa.Table:
    """Counts in the one form in which they can be compared: (key, count) int64, by key."""
    key, count = np.asarray(keys, dtype=np.int64), np.asarray(counts, dtype=np.int64)
    order = np.argsort(key)
    return pa.table({"key": key[order], "count": count[order]})


def oracle(epochs: EpochFiles) -> tuple[pa.Table, pa.Table]:
    """The counts that every rival must end with: one batch group-by over all rows."""
    rows = pa.concat_tables(epochs.read(epoch, ["k1", "k2"]) for epoch in range(len(epochs)))
    counted = [rows.group_by(key).aggregate([([], "count_all")]) for key in ("k1", "k2")]
    k1, k2 = (
        counts_table(table[key].to_numpy(), table["count_all"].to_numpy())
        for key, table in zip(("k1", "k2"), counted, strict=True)
    )
    return k1, k2


def timed_rows(epochs: EpochFiles, warmup: int) -> int:
    """Rows of the epochs that count; refuses a run in which none would be left."""
    if not 0 <= warmup < len(epochs):
        raise ValueError(f"{warmup} warm-up epochs leave nothing of {len(epochs)} to time")
    return sum(epochs.rows(epoch) for epoch in range(warmup, len(epochs)))
