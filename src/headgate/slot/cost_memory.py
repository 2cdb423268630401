"""What an instance has measured and not told yet, kept on its host from epoch to epoch.

It is beside the slot's warm copies, or in this process where there are none. It is advice: an
instance whose notes are lost, or that has moved to another host, goes on from what the plan says it
has told. Of an epoch that is run again the measurements count once, and what it had to tell is told
again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pyarrow as pa

from headgate.routing.costs import CostSketch
from headgate.routing.instance_costs import InstanceCosts
from headgate.slot.plan import EpochPlan
from headgate.state.store import StateStore

KEPT_MAX = 256  # instances in a process's memory; half a megabyte each if all cells are in use
_kept: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()


class Place(NamedTuple):
    """An instance in an epoch: of an operator, in a slot, at a level."""

    plan: EpochPlan
    operator: str
    slot: int
    level: int

    @property
    def now(self) -> list[int]:
        return [self.plan.epoch, self.level]


class Told(NamedTuple):
    """An instance's sketches, if they are due to be sent, and whether it has told what it knows:
    it has become stable, and times have not changed since, nor seem to.
    """

    sent: CostSketch | None
    settled: bool


def tell(store: StateStore, place: Place, measured: CostSketch) -> Told:
    """Add what an instance has measured in a task."""
    plan, operator, slot, _ = place
    copy = None if store.warm is None else store.warm.lock(operator, slot)
    key = plan.storage_uri, operator, slot
    try:
        noted = _kept.get(key) if copy is None else copy.note()
        instance, last, sent_at = _recalled(noted, place, measured)
        if last != place.now:
            sent_at = place.now if instance.add(measured) else sent_at
            noted = instance.to_bytes({"last": place.now, "sent_at": sent_at})
            if copy is None:
                _keep(key, noted)
            else:
                copy.keep_note(noted)
        return Told(instance.sent if sent_at == place.now else None, instance.is_settled)
    finally:
        if copy is not None:
            copy.release()


def _keep(key: tuple[str, str, int], noted: bytes) -> None:
    _kept[key] = noted
    _kept.move_to_end(key)
    while len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)


def _recalled(
    noted: bytes | None, place: Place, measured: CostSketch
) -> tuple[InstanceCosts, list[int], list[int]]:
    """The instance as it was left, when that was, and when it sent last."""
    if noted is not None:
        try:
            instance, told = InstanceCosts.from_bytes(noted)
        except (pa.ArrowException, KeyError, ValueError):  # of another version
            pass
        else:
            if instance.sketch.shape == measured.shape and told["last"] <= place.now:
                return instance, told["last"], told["sent_at"]
    instance, model = InstanceCosts(measured.shape), place.plan.costs.get(place.operator)
    if model is not None and place.slot < model.instances and model.shape == measured.shape:
        instance.adopt(model.sketches[place.slot])
    return instance, [], []
