"""The demo before and after the manager took over, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from headgate.cli.console import safe
from headgate.offline.views import (
    EpochView,
    PlanView,
    RunView,
    mean_error,
    number,
    percent,
    short,
    times,
)

_MOVES_TOLD = 5


@dataclass(frozen=True)
class Phases:
    """Epochs with hashed keys, those after the manager's first plan, and its plans.

    The very first epoch starts the Python workers and the epoch in which the first plan moves most
    of the state is neither one nor the other: both are left out of the medians.
    """

    before: Sequence[EpochView]
    after: Sequence[EpochView]
    plans: Sequence[PlanView]

    @classmethod
    def of(cls, views: Sequence[EpochView], hash_epochs: int, plans: Sequence[PlanView]) -> Phases:
        first = plans[0].epoch if plans else len(views)
        before = [v for v in views[1:] if v.epoch < min(hash_epochs, first)]
        return cls(before, [v for v in views if v.epoch > first], plans)

    def compared(self) -> list[tuple[str, str, str]]:
        """Name, before, after."""
        rows: list[tuple[str, Callable[[Sequence[EpochView]], str]]] = [
            ("rows staying in slot", lambda v: percent(RunView.of(v).locality)),
            ("busiest slot over mean", lambda v: times(RunView.of(v).imbalance_median)),
            ("bytes over the exchange", lambda v: short(_bytes(v), "B")),
            ("rows/s", lambda v: number(RunView.of(v).rows_per_second_median)),
            ("seconds", lambda v: number(RunView.of(v).epoch_seconds_median, "s")),
        ]
        return [(name, _shown(show, self.before), _shown(show, self.after)) for name, show in rows]

    def told(self) -> list[str]:
        """What the manager did, in a few lines."""
        if not self.plans:
            return []
        moved = sum(plan.moved_keys for plan in self.plans)
        lines = [f"\nThe manager made {len(self.plans)} plans and moved {moved:,} keys."]
        lines += [f"[dim]epoch {p.epoch}: {safe(p.why)}[/]" for p in self.plans[:3]]
        moves = [line for plan in self.plans for line in plan.top_moves][:_MOVES_TOLD]
        lines += [f"[dim]  {safe(line)}[/]" for line in moves]
        error = mean_error(self.plans)
        if error is not None:
            lines.append(f"[dim]Predicted locality was off by {error:.3f} on average.[/]")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "hash": RunView.of(self.before).to_json() if self.before else None,
            "managed": RunView.of(self.after).to_json() if self.after else None,
            "plans": [asdict(plan) for plan in self.plans],
            "predicted_locality_error": mean_error(self.plans),
        }


def _bytes(views: Sequence[EpochView]) -> float:
    return median(view.bytes_shuffled for view in views)


def _shown(show: Callable[[Sequence[EpochView]], str], views: Sequence[EpochView]) -> str:
    return show(views) if views else "–"
