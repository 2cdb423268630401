"""What a manager did, derived from the plans in a journal: for terminal, report and JSON alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headgate.commit.facts import OutcomeFacts, PlanFacts, facts_of
from headgate.commit.json_codec import Json


@dataclass(frozen=True)
class PlanView:
    """One decision: what moved with which epoch, why, what was promised and what came of it."""

    epoch: int
    moved_keys: int
    why: str
    predicted_locality: float | None
    achieved_locality: float | None
    top_moves: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Promised minus achieved; None while either is unknown."""
        if self.predicted_locality is None or self.achieved_locality is None:
            return None
        return self.predicted_locality - self.achieved_locality


def plan_views(journal: Iterable[Json]) -> list[PlanView]:
    """The plans of a journal, in order, each with the first outcome told after it."""
    views: list[PlanView] = []
    for facts in facts_of(journal):
        if isinstance(facts, OutcomeFacts) and views and views[-1].achieved_locality is None:
            views[-1] = replace(views[-1], achieved_locality=facts.achieved_locality)
        elif isinstance(facts, PlanFacts):
            views.append(
                PlanView(
                    epoch=facts.epoch,
                    moved_keys=sum(facts.moves.values()),
                    why=facts.why or facts.failed or "the rest of an earlier plan",
                    predicted_locality=facts.predicted_locality,
                    achieved_locality=None,
                    top_moves=facts.top_moves or (),
                )
            )
    return views


def mean_error(plans: Sequence[PlanView]) -> float | None:
    """Mean absolute error of the predicted locality, over the plans whose outcome is known."""
    errors = [abs(plan.error) for plan in plans if plan.error is not None]
    return sum(errors) / len(errors) if errors else None
