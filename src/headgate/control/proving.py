"""Settings are run before they are recommended.

A probe runs an instance of everything in every slot, perhaps in workers that have just started.
What its model says of other slots and instances is a guess, and a start goes by it for many epochs.
So what was chosen is probed too, for as many epochs. Slots and instances that were probed are
kept unless the model made of *their* epochs says that others would be a good deal better, which
are then tried in turn. Rows per epoch and per batch are chosen anew from the last model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headgate.control.measured_flow import Measured
from headgate.planner.tuning.epochs import EpochModel, EpochSettings
from headgate.planner.tuning.explained import TunedEpochs

TRIES = 2  # settings that are probed beside the first ones; each takes as long as the first probe
WORTH = 1.1  # times as fast, or as soon, others must be predicted to be for another try

Probe = Callable[[int, Mapping[str, int]], Measured]


class Chooses(Protocol):
    """The optimizer with the user's wishes; with `kept`, its slots and instances stay."""

    def __call__(self, model: EpochModel, kept: EpochSettings | None = None) -> TunedEpochs: ...


@dataclass(frozen=True)
class Proved:
    """What was chosen, and what was measured with the slots and instances of that choice.

    `tries` are probes beside the first.
    """

    measured: Measured
    tuned: TunedEpochs
    tries: int = 0


def prove(first: Measured, choose: Chooses, probe: Probe) -> Proved:
    """Probe what is chosen until the choice stays; at the latest after `TRIES`, take the best."""
    measured, wanted = first, choose(first.model)
    proved: list[Proved] = []
    while not _was_probed(measured.model, wanted.settings) and len(proved) < TRIES:
        settings = wanted.settings
        measured = probe(settings.slots, settings.instances)
        here = choose(measured.model, settings)
        proved.append(Proved(measured, here))
        wanted = choose(measured.model)
        if not _is_worth_a_try(wanted, here):
            return replace(proved[-1], tries=len(proved))
    if not proved or _was_probed(measured.model, wanted.settings):
        return Proved(measured, wanted, len(proved))
    best = max(proved, key=lambda known: known.tuned.prediction.rows_per_s)
    return replace(best, tries=len(proved))


def _was_probed(model: EpochModel, settings: EpochSettings) -> bool:
    """Are these the slots and instances that the model was measured with?"""
    if model.slots_seen != settings.slots:
        return False
    times = model.times(settings.slots)
    same = times.exactly(model.instances_seen) == times.exactly(settings.instances)
    return bool(same.all())


def _is_worth_a_try(other: TunedEpochs, here: TunedEpochs) -> bool:
    new, old = other.prediction, here.prediction
    return new.rows_per_s > WORTH * old.rows_per_s or WORTH * new.latency_p95_s < old.latency_p95_s
