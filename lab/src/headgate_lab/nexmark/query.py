"""A query of Nexmark: its flow, what it reads, and how its result is compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headgate as hg
from headgate_lab.nexmark.auction_site import AuctionSite

Declares = Callable[[AuctionSite], hg.Stream]


@dataclass(frozen=True)
class Query:
    """One of q0 to q23.

    Attributes:
        declare: Makes the flow; returns the stream of results.
        reads: The tables that it reads.
        key: Columns that tell the rows of an updating result apart: only the last of each counts.
            None: every row counts.
        stateful: Does it keep state?
        writes: Does it write its results itself?
        helpers: What else was written for it.
    """

    name: str
    declare: Declares
    reads: tuple[str, ...] = ("bid",)
    key: tuple[str, ...] | None = None
    stateful: bool = True
    writes: bool = False
    helpers: tuple[Callable[..., Any], ...] = ()

    @property
    def title(self) -> str:
        """The first line of its documentation."""
        return (self.declare.__doc__ or self.name).strip().splitlines()[0]

    @property
    def lines(self) -> int:
        """Lines of code that a user writes: without documentation, comments and empty lines."""
        return sum(code_lines(inspect.getsource(part)) for part in (self.declare, *self.helpers))


def last_rows(rows: pa.Table, key: tuple[str, ...] | None) -> pa.Table:
    """What is left of an updating result: the last row of each key, unless that says "delete".

    `rows` are in the order in which they were told. A column `change` is gone then.
    """
    if key is not None:
        numbered = rows.append_column("@at", pa.array(np.arange(len(rows))))
        latest = numbered.group_by(list(key)).aggregate([("@at", "max")])["@at_max"]
        rows = rows.take(latest)
    if "change" in rows.column_names:
        rows = rows.filter(pc.not_equal(rows["change"], "delete")).drop_columns(["change"])
    return rows


def code_lines(source: str) -> int:
    """Lines with code on them, docstrings left out.

    Examples:
        >>> code_lines("def f():  # says" + chr(10) * 2 + "    # so" + chr(10) + "    return 1")
        2
    """
    told, quoted = 0, False
    for line in (line.strip() for line in source.splitlines()):
        marks = line.count('"""')
        if quoted or line.startswith('"""'):
            quoted = quoted != (marks == 1)
            continue
        told += bool(line) and not line.startswith("#")
    return told
