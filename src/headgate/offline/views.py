"""The few numbers of an epoch that people look at, derived from its facts.

Every view (terminal, report, JSON) takes them from here, so they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from headgate.commit.facts import EpochFacts, Json, OutcomeFacts, PlanFacts, epochs_of, facts_of

EPOCH_COLUMNS = {
    "epoch": 6,
    "rows": 11,
    "seconds": 8,
    "rows/s": 9,
    "locality": 9,
    "imbalance": 10,
    "shuffled": 10,
    "local": 10,
}
"""What is shown of an epoch, and how many characters it takes on a terminal."""


@dataclass(frozen=True)
class EpochView:
    """One epoch. What the engine did not measure is None (the testing kit has no job times)."""

    epoch: int
    rows: int
    seconds: float | None
    locality: float | None
    imbalance: float | None
    bytes_shuffled: int
    bytes_local: int
    slots: int
    routing_version: int
    attempts: int

    @classmethod
    def of(cls, facts: EpochFacts) -> EpochView:
        """The view of an epoch; a replayed one has almost no facts.

        `seconds` is planning and job: what the epoch costs before it is committed. `imbalance` is
        that of the operator whose busiest slot is furthest above its mean.
        """
        timed = facts.engine.plan_ms is not None or facts.engine.job_ms is not None
        uneven = [x for x in facts.imbalance.values() if x is not None]
        return cls(
            epoch=facts.epoch,
            rows=facts.rows,
            seconds=facts.engine.seconds if timed else None,
            locality=facts.locality,
            imbalance=max(uneven, default=None),
            bytes_shuffled=facts.bytes_shuffled,
            bytes_local=facts.bytes_local,
            slots=facts.slots,
            routing_version=facts.routing_version,
            attempts=facts.attempts,
        )

    @property
    def rows_per_second(self) -> float | None:
        return self.rows / self.seconds if self.seconds else None

    @property
    def cells(self) -> list[str]:
        """As text, in the columns of `EPOCH_COLUMNS`."""
        return [
            str(self.epoch),
            f"{self.rows:,}",
            "–" if self.seconds is None else f"{self.seconds:.2f}",
            number(self.rows_per_second),
            percent(self.locality),
            times(self.imbalance),
            short(self.bytes_shuffled, "B"),
            short(self.bytes_local, "B"),
        ]

    def to_json(self) -> Json:
        return asdict(self) | {"rows_per_second": self.rows_per_second}


@dataclass(frozen=True)
class RunView:
    """Totals and medians over epochs; an epoch without rows counts for totals only."""

    epochs: int
    rows: int
    rows_per_second_median: float | None
    epoch_seconds_median: float | None
    locality: float | None
    imbalance_median: float | None
    bytes_shuffled: int
    bytes_local: int
    retries: int

    @classmethod
    def of(cls, views: Sequence[EpochView]) -> RunView:
        busy = [view for view in views if view.rows]
        return cls(
            epochs=len(views),
            rows=sum(view.rows for view in views),
            rows_per_second_median=_median(view.rows_per_second for view in busy),
            epoch_seconds_median=_median(view.seconds for view in busy),
            locality=_mean_locality(busy),
            imbalance_median=_median(view.imbalance for view in busy),
            bytes_shuffled=sum(view.bytes_shuffled for view in views),
            bytes_local=sum(view.bytes_local for view in views),
            retries=sum(view.attempts - 1 for view in views),
        )

    def to_json(self) -> Json:
        return asdict(self)


def each_epoch(journal: Iterable[Json]) -> list[EpochFacts]:
    """The epochs of a journal, in order, each once."""
    by_epoch = {facts.epoch: facts for facts in epochs_of(journal)}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mean_locality(views: Sequence[EpochView]) -> float | None:
    """Weighted by rows, so that it is the share of all rows that stayed."""
    known = [(view.locality, view.rows) for view in views if view.locality is not None]
    rows = sum(count for _, count in known)
    return sum(share * count for share, count in known) / rows if rows else None


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


def short(number: float, unit: str = "") -> str:
    """A number in three digits: 1.23 M, 45.6 k, 0.50.

    Examples:
        >>> short(1_234_567), short(4_560, "B"), short(0.5), short(12), short(0, "B")
        ('1.23 M', '4.56 kB', '0.50', '12', '0 B')
    """
    if unit == "s":
        return f"{number:.2f} s" if number < 10 else f"{number:.0f} s"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            scaled = number / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {letter}{unit}"
    text = f"{number:.0f}" if float(number).is_integer() else f"{number:.2f}"
    return f"{text} {unit}".strip()


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else short(value, unit)
