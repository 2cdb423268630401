"""Rivals, one module each, all doing the same job through the same door.

The job is *two chained counts*: rows (k1, k2) reach an operator keyed by k1, which keeps a running
count per key and passes the rows on to an operator keyed by k2, which keeps a running count too.
State lasts from epoch to epoch. Every rival is

    run(epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int = 1) -> BaselineResult

reads the same Parquet files, and is set up the way that ran fastest here; where its API leaves a
choice, the choice favours the rival and its module says so.
"""
