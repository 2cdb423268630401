"""Rivals, one module each, all doing the same job through the same door.

The job is *two chained counts*: rows (k1, k2) reach an operator keyed by k1, which keeps a running
count per key and passes the rows on to an operator keyed by k2, which keeps a running count too.
State lasts from epoch to epoch. Every rival is

    run(epochs: EpochFiles, *, slots: int, work_dir: Path, warmup: int = 1) -> BaselineResult

and reads the same Parquet files. Where a rival's API leaves a choice, the choice is meant to favour
the rival; its module says what was tried, and how well that was measured.
"""
