"""How many rows a batch tuple of each stream should have.

Every tuple costs n, so few large ones are cheaper. But a tuple is copied some six times between two
Python workers, whole each time, and a task fills one for every slot it sends to: large ones take
memory. Nothing leaves a slot's task before it ends, so no row is earlier for a smaller one.

So the rule is that of Sax et al. 2013: the smallest batch that is as good as the largest, as nearly
as `SPARE` of an epoch's time. Of all sizes that spend no more than that on messages, those are
taken that need least memory: where single rows would take r seconds, and a row in a batch m bytes,
batches are in proportion to sqrt(r / m). Some kilobytes are always good. More rows than a pair of
tasks exchanges make no difference. B_max, and what tuples on their way may take of memory, are
never exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.epoch_times import Traffic

SPARE = 0.005  # of an epoch's time, for messages that larger batches would save
COPIES = 6  # of a tuple between two Python workers (docs/decisions/0017)
SMALL_BYTES = 32 << 10  # a batch that takes no memory to speak of
MEMORY_BYTES = 256 << 20  # for tuples on their way, of all tasks that run at once


def batch_rows_max(costs: EngineCosts, row_bytes: float, tasks: int, memory: int) -> int:
    """As many as fit in a message, and in the memory that tasks at once have for tuples."""
    within = memory / (COPIES * max(1, tasks)) / max(row_bytes, 1.0)
    return max(1, min(costs.batch_rows_max(row_bytes), int(within)))


def choose_batches(
    traffic: Sequence[Traffic],
    costs: EngineCosts,
    *,
    epoch_s: float,
    cpus: int,
    largest: Mapping[str, int],
    spare: float = SPARE,
) -> dict[str, int]:
    """Rows per batch of every stream.

    Args:
        epoch_s: With batches as large as they may be.
        cpus: Processors that share the work on messages.
        largest: No more rows than these (`batch_rows_max`).
        spare: Share of the epoch's time that may go to more messages than there must be.
    """
    # Rows of a pair of tasks: beyond them a batch saves no message.
    enough = {t.stream: math.ceil(t.rows / (t.senders * t.targets)) for t in traffic}
    # What single rows would take of the epoch's time: senders and receivers pay half each.
    single_s = {
        t.stream: t.rows
        * costs.message_s
        * (0.5 / min(t.senders, cpus) + 0.5 / min(t.targets, cpus))
        for t in traffic
    }
    weights = {t.stream: max(t.row_bytes, 1.0) * t.targets for t in traffic}
    spread = sum(math.sqrt(single_s[t.stream] * weights[t.stream]) for t in traffic)
    budget = spare * epoch_s
    found = {}
    for t in traffic:
        wanted = float(enough[t.stream])
        if budget > 0:
            needed = math.sqrt(single_s[t.stream] / weights[t.stream]) * spread / budget
            wanted = min(wanted, max(needed, SMALL_BYTES / max(t.row_bytes, 1.0)))
        found[t.stream] = min(largest[t.stream], rounded_up(wanted))
    return found


def rounded_up(rows: float) -> int:
    """To two digits, so that a little more or less changes nothing.

    Examples:
        >>> [rounded_up(x) for x in (0.2, 7, 96, 101, 1_234, 25_000)]
        [1, 7, 96, 110, 1300, 25000]
    """
    least = max(1, math.ceil(rows * (1 - 1e-9)))
    unit = int(10 ** max(0, len(str(least)) - 2))
    return -(-least // unit) * unit
