"""When operators should get another number of instances, and in which slots: seldom, if it pays.

Instances move state, so a change must shorten epochs clearly, by what was measured wherever such
numbers were tried before, and give back within some epochs what moving the state takes. Which slots
an operator gets is decided with those it has: what need not move stays. An operator whose instances
did not change as asked belongs to somebody else, and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headgate.commit.facts import EpochFacts
from headgate.control.measured_flow import instances_of
from headgate.control.tuning_history import Experience
from headgate.planner.instances import place_instances
from headgate.planner.tuning.epochs import EpochModel, EpochSettings

PAYS = 0.1  # of an epoch's time, that other instances must save
PAYBACK_EPOCHS = 120  # within which moving the state must have paid
SETTLED = 3  # epochs after which instances have changed, or will not
COPIED = 2  # times: state that moves is read from one place and written to another


@dataclass(frozen=True)
class Instances:
    """The slots of operators whose instances should change, and why."""

    slots: Mapping[str, tuple[int, ...]]
    why: str


class InstanceAdvisor:
    """Remembers what it asked for; `given` are numbers that turned out not to be its to choose."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self.given: dict[str, int] = {}
        self._asked: Mapping[str, tuple[int, ...]] = {}
        self._asked_at = 0
        self._epochs = 0

    def observe(self, epoch: EpochFacts) -> str:
        """A note if instances that were asked for did not come."""
        if not self._asked:
            return ""
        missing = {
            op: slots_of(epoch, op)
            for op, slots in self._asked.items()
            if slots_of(epoch, op) != slots
        }
        if not missing or epoch.slots != self._asked_at:
            self._asked, self._epochs = {}, 0
            return ""
        self._epochs += 1
        if self._epochs < SETTLED:
            return ""
        self.given |= {op: len(slots) for op, slots in missing.items()}
        self._asked, self._epochs = {}, 0
        return f"instances of {', '.join(sorted(missing))} did not change; they are left alone"

    def ask(
        self, model: EpochModel, epoch: EpochFacts, wanted: EpochSettings, rows: int
    ) -> Instances | None:
        """Other instances in the slots there are, if epochs of so many rows gain by them."""
        now = replace(wanted, rows_per_epoch=rows, instances=instances_of(epoch))
        then = replace(wanted, rows_per_epoch=rows)
        before_s = self._experience.corrected(model, now).epoch_s
        after_s = self._experience.corrected(model, then).epoch_s
        saved_s = before_s - after_s
        if self._asked or saved_s < PAYS * before_s:
            return None
        changed = self.placed(model, epoch, wanted)
        if not changed or saved_s * PAYBACK_EPOCHS < _moving_s(model, epoch, changed):
            return None
        counts = ", ".join(f"{op} {len(slots)}" for op, slots in sorted(changed.items()))
        why = f"instances of {counts}: epochs of {rows:,} rows are expected to take "
        return Instances(changed, f"{why}{after_s:.2g} s in place of {before_s:.2g}")

    def placed(
        self, model: EpochModel, epoch: EpochFacts, wanted: EpochSettings
    ) -> dict[str, tuple[int, ...]]:
        """The slots of all operators whose instances would change; asked for from now on."""
        slots, times = wanted.slots, model.times(wanted.slots)
        column = times.exactly(wanted.instances)
        told = times.of(column, float(wanted.rows_per_epoch), wanted.batch_rows)
        counts = dict(zip(times.names, column[:, 0].tolist(), strict=True))
        work = (told.busiest_s[:, 0] * column[:, 0]).tolist()
        has = {op: slots_of(epoch, op) for op in counts}
        found = place_instances(
            counts,
            slots,
            work=dict(zip(times.names, work, strict=True)),
            talks=times.talks(column),
            hosts=epoch.engine.hosts if epoch.slots == slots else (),
            now=has,
        )
        same = epoch.slots == slots
        everywhere = tuple(range(slots))
        changed = {
            op: placed
            for op, placed in found.items()
            if placed != (has[op] if same else everywhere) and op not in self.given
        }
        self._asked, self._asked_at, self._epochs = changed, slots, 0
        return changed


def slots_of(epoch: EpochFacts, operator: str) -> tuple[int, ...]:
    return epoch.instances.get(operator) or tuple(range(epoch.slots))


def _moving_s(
    model: EpochModel, epoch: EpochFacts, changed: Mapping[str, tuple[int, ...]]
) -> float:
    """What moving the state takes: that of slots that lose it, or what new ones get of it."""
    moving = 0.0
    for op, slots in changed.items():
        state = {slot: found.bytes for slot, found in epoch.state.get(op, {}).items()}
        leaving = sum(size for slot, size in state.items() if slot not in slots)
        coming = len({*slots} - {*slots_of(epoch, op)}) / len(slots)
        moving += max(leaving, coming * sum(state.values()))
    return COPIED * moving * model.costs.byte_s
