"""Event time behind windows: each operator's own watermark, from the flow's.

What a window emits is as old as the window: measured by the flow's watermark it would be late for
the next window. So the watermark of an operator is what its inputs still hold back: the flow's at a
source, the start of the first open window behind a window, the least where streams merge. A window
closes in the same epoch as the windows before it, once these have handed over their rows; it takes
rows of every window that it has not closed in an earlier epoch. Nothing is lost, whatever the
lengths, and all follows from the two watermarks that the last manifest names.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.operator.rows import EpochClock
from headgate.slot.program import Program


def clocks_behind_windows(program: Program, clock: EpochClock) -> dict[str, EpochClock]:
    """The clocks of the operators whose time is not the flow's, by name.

    Examples:
        >>> import headgate as hg
        >>> from headgate.slot.program import compile_flow
        >>> from headgate.testing import ListSource
        >>> flow = hg.Flow("f")
        >>> rows = flow.source(ListSource("k string, t timestamp", []), event_time="t")
        >>> hours = rows.key_by("k").process(hg.Count(window=hg.Tumbling("1 hour", time="t")))
        >>> days = hg.Sum("count", window=hg.Tumbling("1 day", time="window_start"))
        >>> _ = hours.globally().process(days, name="days")
        >>> program = compile_flow(flow.graph())
        >>> clocks_behind_windows(program, EpochClock(1, 0, 3_600_000_007))["days"].watermark_us
        3600000000
    """
    if clock.watermark_us is None:
        return {}
    now = _marks(program, clock.watermark_us)
    before: dict[int, int] = {}
    if clock.previous_watermark_us is not None:
        before = _marks(program, clock.previous_watermark_us)
    return {
        node.name: replace(
            clock,
            watermark_us=now[node.id],
            previous_watermark_us=before.get(node.id),
            behind_window=True,
        )
        for node in program.stateful
        if node.id in now
    }


def is_closing_due(program: Program, used_us: int | None, known_us: int | None) -> bool:
    """Would an epoch without rows emit windows, with the watermark that is known by now?

    `used_us` is the watermark that the last epoch went by. An operator that acts at the end of
    every epoch and does not say what it holds back may act whenever the watermark has moved.
    """
    if known_us is None or known_us == used_us:
        return False
    ending = [node for node in program.stateful if node.spec.ends_epochs]
    if used_us is None:
        return bool(ending)
    before, now = _marks(program, used_us), _marks(program, known_us)
    for node in ending:
        held = node.spec.held_from(now.get(node.id, known_us))
        if held is None or held != node.spec.held_from(before.get(node.id, used_us)):
            return True
    return False


def _marks(program: Program, watermark_us: int) -> dict[int, int]:
    """Up to where the input of each operator behind a window is complete, if the flow's is here."""
    behind: dict[int, int] = {}
    held_back: dict[int, int] = {}
    for node in program.order:
        producers = [edge.producer for edge in program.graph.inputs(node.id)]
        mark = watermark_us
        if any(producer in held_back for producer in producers):
            mark = min(held_back.get(producer, watermark_us) for producer in producers)
            behind[node.id] = held_back[node.id] = mark
        if node.kind == "stateful":
            held = node.spec.held_from(mark)
            if held is not None:
                held_back[node.id] = held
    return behind
