"""The buffer matrix of a task: shared batches for consumers that have different keys.

Whether a task shares the batches of a group is decided by its first rows for it, once, so that a
producer's rows of an edge are all shared or all distinct; the decision depends on rows and plan
only. The payload of a cell is made once, however many slots it goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headgate.slot.buffers import Buffers
from headgate.slot.plan import Control, EpochPlan, add_counts
from headgate.slot.program import Program
from headgate.slot.rows import Rows
from headgate.slot.sharing import (
    AT,
    STAYS,
    Cells,
    ShareGroup,
    Targets,
    cells_of,
    shared_is_cheaper,
)

Cell = tuple[int, ...]  # the producer, then a target for each consumer
Emit = Callable[[int, int, int, pa.Buffer], None]


class BufferMatrix:
    """Buffers by cell; `emit` gets channel, slot, rows and payload of what leaves."""

    def __init__(
        self, program: Program, plan: EpochPlan, control: Control, slot: int | None, emit: Emit
    ) -> None:
        self._program, self._plan, self._control, self._slot = program, plan, control, slot
        self._emit = emit
        self._buffers = Buffers[Cell](self._send)
        self._shares: dict[int, bool] = {}
        self._places: dict[int, int] = {}

    def put(
        self, group: ShareGroup, rows: Rows, parts: Sequence[Rows], targets: Sequence[Targets]
    ) -> bool:
        """Take in what leaves of these rows, if this task shares the group's batches.

        `parts` are the rows as each consumer would get them alone; `targets` their slots.
        """
        if self._shares.get(group.producer) is False:
            return False
        cells = cells_of(targets, self._plan.slots)
        if group.producer not in self._shares:
            self._shares[group.producer] = self._decide(group, rows, parts, targets, cells)
        if cells is None or not self._shares[group.producer]:
            return False
        first = self._places.get(group.producer, 0)
        self._places[group.producer] = first + len(rows)
        places = first + np.arange(len(rows), dtype=np.int64)
        self._fill(group, Rows(rows.batch, {**rows.lineage, AT: places}).take(cells.order), cells)
        return True

    def close(self) -> None:
        """All that is left, in a fixed order."""
        groups, batching = self._program.share_groups, self._plan.batching
        self._buffers.close(lambda cell: batching.rows_max(*groups[cell[0]].edges))

    def _decide(
        self,
        group: ShareGroup,
        rows: Rows,
        parts: Sequence[Rows],
        targets: Sequence[Targets],
        cells: Cells | None,
    ) -> bool:
        if cells is None:
            return False
        widths = [part.bytes / len(part) for part in parts]
        batching = self._plan.batching
        return batching.scheme == "shared" or shared_is_cheaper(
            group, batching, targets, widths, rows.bytes / len(rows), cells
        )

    def _fill(self, group: ShareGroup, rows: Rows, cells: Cells) -> None:
        batch_rows = self._plan.batching.rows_max(*group.edges)
        start = 0
        for cell, count in cells:
            part = rows.slice(start, count)
            start += count
            if any(target != STAYS for target in cell):
                self._buffers.put((group.producer, *cell), part, batch_rows)
                self._account(group, cell, part)

    def _account(self, group: ShareGroup, cell: Cell, part: Rows) -> None:
        """Rows count on every edge; bytes once per slot, on the first edge that leads there."""
        counted: set[int] = set()
        for edge, target in zip(group.edges, cell, strict=True):
            if target == STAYS:
                continue
            size = 0 if target in counted else part.bytes
            counted.add(target)
            counts = [len(part), 0, size, 0] if target == self._slot else [0, len(part), 0, size]
            before = self._control.edges.get(str(edge.id))
            self._control.edges[str(edge.id)] = add_counts(before, counts)

    def _send(self, cell: Cell, batch: pa.RecordBatch) -> None:
        """The batch of a cell, once to every slot of it."""
        producer, *targets = cell
        group = self._program.share_groups[producer]
        payload = batch.serialize()
        for slot in sorted({*targets} - {STAYS}):
            channel = group.channel([target == slot for target in targets])
            self._emit(channel, slot, batch.num_rows, payload)
