"""Which slots leave: those that are cheapest to do without, host by host where that can be.

A host is given back only if no slot is left on it. So hosts all of whose slots can leave go first:
the slowest ones, and of equals those whose state is cheapest to move, per slot. What is left to
choose is chosen slot by slot in the same order.

The slots of a flow are numbered without gaps. When some have left, those that stay and have numbers
above the new count take the numbers that became free (`new_order`). Their state does not move, but
the host reads it once more under the new number. So the price of a set of slots is that of moving
their state, and `REREAD` of it for every slot that is renumbered; and that is a sum over slots, as
one with a high number that leaves is one less to be renumbered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headgate.arrays import F64, I64

REREAD = 0.5  # price of reading a slot's state once more, of moving it


def choose_leaving(
    cost: F64,
    capacity: F64,
    count: int,
    hosts: Sequence[str] = (),
    already: Sequence[int] = (),
) -> tuple[int, ...]:
    """So many slots, ascending, those that are leaving `already` among them.

    `cost` is that of moving all state of a slot. Of equal slots the last ones leave.

    Examples:
        >>> choose_leaving(np.array([5.0, 5.0, 5.0]), np.ones(3), 1)
        (2,)
        >>> choose_leaving(np.array([5.0, 1.0, 5.0]), np.ones(3), 1)
        (1,)
        >>> choose_leaving(np.ones(4), np.array([1.0, 0.5, 1.0, 0.5]), 2)
        (1, 3)
        >>> choose_leaving(np.array([1.0, 9.0, 9.0, 1.0]), np.ones(4), 2, ["a", "b", "b", "a"])
        (0, 3)
    """
    slots = len(cost)
    assert 0 <= count < slots, (count, slots)
    renumbered = np.arange(slots) >= slots - count
    price = cost * np.where(renumbered, 1.0 - REREAD, 1.0)
    names = list(hosts) if len(hosts) == slots else [""] * slots
    of_host: dict[str, list[int]] = {}
    for slot, name in enumerate(names):
        if slot in already:
            continue
        of_host.setdefault(name, []).append(slot)

    def worth(group: Sequence[int]) -> tuple[float, float, int]:
        mine = np.array(group)
        return float(capacity[mine].mean()), float(price[mine].mean()), -int(mine.max())

    chosen = sorted({*already})[:count]
    for group in sorted(of_host.values(), key=worth):
        if len(chosen) + len(group) <= count:
            chosen += group
    others = (slot for slot in range(slots) if slot not in chosen)
    chosen += sorted(others, key=lambda slot: worth([slot]))[: count - len(chosen)]
    return tuple(sorted(chosen))


def new_order(slots: int, leaving: Sequence[int]) -> I64:
    """The slots in their new order: entry i becomes slot i, and those that leave come last.

    Who stays and has a number below the new count keeps it.

    Examples:
        >>> new_order(5, (1, 4)).tolist()
        [0, 3, 2, 1, 4]
        >>> new_order(4, (0, 2)).tolist()
        [3, 1, 0, 2]
    """
    gone = sorted({*leaving})
    left = slots - len(gone)
    order = np.arange(slots)
    holes = [slot for slot in gone if slot < left]
    order[holes] = [slot for slot in range(left, slots) if slot not in gone]
    order[left:] = gone
    return order
