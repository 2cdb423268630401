"""The side tables of a flow's lookups: read by the driver, stored, named by plans and manifests.

A start reads every table. One with `refresh=` is read again at the first epoch that begins when it
is due. What was read is saved before the epoch that uses it, and becomes true with the manifest of
that epoch; all its attempts see the same version. If a table cannot be read, the version in use
stays: that of the last manifest, at a start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa

from headgate.commit.facts import SideTable, SideTableFacts
from headgate.errors import DeclarationError, HeadgateError, OperatorFailed
from headgate.slot.program import Program
from headgate.slot.side_table import SideIndex
from headgate.state.named_table import read_table, write_table
from headgate.state.storage import Storage
from headgate.topology.graph import STATELESS
from headgate.topology.lookup import Lookup
from headgate.topology.text import describe

log = logging.getLogger("headgate")


class SideTablesInUse:
    """Versions by operator. A start reads before it claims the checkpoint, and saves afterwards: if
    a table is not to be had, the driver that runs goes on.
    """

    def __init__(
        self, program: Program, storage: Storage, stored: Mapping[str, SideTable], now_ms: int
    ) -> None:
        self.storage = storage
        self.lookups: dict[str, Lookup] = {
            node.name: node.spec.function
            for node in program.graph.nodes
            if node.kind in STATELESS and isinstance(node.spec.function, Lookup)
        }
        self.versions = {op: stored[op] for op in self.lookups if op in stored}
        self._tried_ms: dict[str, int] = {}
        self._unsaved: dict[str, pa.Table | str] = {}  # what was read, or why it was not
        self.read(now_ms)

    @property
    def names(self) -> dict[str, str]:
        return {operator: version.file for operator, version in self.versions.items()}

    def read(self, now_ms: int) -> None:
        """Read what has not been read yet, and what is to be read again by now."""
        for operator, lookup in self.lookups.items():
            tried, every = self._tried_ms.get(operator), lookup.refresh_ms
            if tried is None or (every is not None and now_ms - tried >= every):
                self._tried_ms[operator] = now_ms
                self._unsaved[operator] = self._read(operator, lookup)

    def save(self, epoch: int, generation: int) -> Iterator[SideTableFacts]:
        """Store what was read, for epochs from this one on; `generation` is the driver's.

        It is in names, so that no other driver collects the files.
        """
        for operator, read in self._unsaved.items():
            if isinstance(read, str):
                now = self.versions[operator]
                yield SideTableFacts(epoch, operator, now.file, now.rows, now.read_ms, read)
                continue
            name = write_table(self.storage, f"{operator}-g{generation:09d}", read)
            read_ms = self._tried_ms[operator]
            self.versions[operator] = SideTable(name, read.num_rows, read_ms)
            yield SideTableFacts(epoch, operator, name, read.num_rows, read_ms)
        self._unsaved.clear()

    def _read(self, operator: str, lookup: Lookup) -> pa.Table | str:
        """What the table holds now; if it cannot be used, but the version of before can: why."""
        try:
            assert lookup.read is not None, "only the driver reads tables"
            table = lookup.version(lookup.read())
            SideIndex.of(table, lookup.key)  # raises if a key is there twice
        except Exception as problem:
            why = problem.message if isinstance(problem, HeadgateError) else describe(problem)
            before = self.versions.get(operator)
            if before is None or not self._fits(before, lookup):
                kind = DeclarationError if isinstance(problem, DeclarationError) else OperatorFailed
                raise kind(
                    f"{operator!r}: its side table ({lookup.text}) cannot be used: {why}",
                    operator=operator,
                ) from problem
            log.warning(
                "%s: its side table (%s) cannot be used, the rows of before stay: %s",
                *(operator, lookup.text, why),
            )
            return why
        return table

    def _fits(self, version: SideTable, lookup: Lookup) -> bool:
        """Is a stored version whole, and one of the lookup as it is declared now?"""
        try:
            table = read_table(self.storage, version.file, "side table")
            if not table.schema.equals(lookup.table):
                return False
            SideIndex.of(table, lookup.key)
        except HeadgateError:
            return False
        return True
