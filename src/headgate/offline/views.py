"""The few numbers of an epoch, a run and a plan that people look at.

Terminal, report and JSON all take them from here, so they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median

from headgate.commit.facts import EpochFacts, OutcomeFacts, PlanFacts, epochs_of, facts_of
from headgate.commit.facts_json import Json
from headgate.commit.latency import LatencyFacts
from headgate.errors import HeadgateError

EPOCH_COLUMNS = {
    "epoch": 6,
    "rows": 11,
    "seconds": 8,
    "rows/s": 9,
    "locality": 9,
    "imbalance": 10,
    "shuffled": 9,
    "local": 8,
    "latency": 9,
}
"""What is shown of an epoch, and how many characters it takes on a terminal."""


@dataclass(frozen=True)
class EpochView:
    """One epoch. What the engine did not measure is None (the testing kit has no job times).

    `seconds` is planning and job: what the epoch costs before it is committed. `imbalance` is that
    of the operator whose busiest slot is furthest above its mean. Of latencies p95 is shown.
    """

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
    latency: LatencyFacts | None

    @classmethod
    def of(cls, facts: EpochFacts) -> EpochView:
        timed = facts.engine.plan_ms is not None or facts.engine.job_ms is not None
        return cls(
            epoch=facts.epoch,
            rows=facts.rows,
            seconds=facts.engine.seconds if timed else None,
            locality=facts.locality,
            imbalance=max((x for x in facts.imbalance.values() if x is not None), default=None),
            bytes_shuffled=facts.bytes_shuffled,
            bytes_local=facts.bytes_local,
            slots=facts.slots,
            routing_version=facts.routing_version,
            attempts=facts.attempts,
            latency=facts.latency,
        )

    @property
    def rows_per_second(self) -> float | None:
        return self.rows / self.seconds if self.seconds else None

    @property
    def latency_text(self) -> str:
        """What 95 of 100 rows took at most; at least that, if sources have no times of arrival."""
        if self.latency is None:
            return "–"
        least = "≥" if self.latency.since == "trigger" else ""
        return least + short(self.latency.p95_ms / 1e3, "s")

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
            self.latency_text,
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
    latency_p95_ms_median: float | None

    @classmethod
    def of(cls, views: Sequence[EpochView]) -> RunView:
        busy = [view for view in views if view.rows]
        known = [(view.locality, view.rows) for view in busy if view.locality is not None]
        rows = sum(rows for _, rows in known)
        return cls(
            epochs=len(views),
            rows=sum(view.rows for view in views),
            rows_per_second_median=_median(view.rows_per_second for view in busy),
            epoch_seconds_median=_median(view.seconds for view in busy),
            locality=sum(share * n for share, n in known) / rows if rows else None,
            imbalance_median=_median(view.imbalance for view in busy),
            bytes_shuffled=sum(view.bytes_shuffled for view in views),
            bytes_local=sum(view.bytes_local for view in views),
            retries=sum(view.attempts - 1 for view in views),
            latency_p95_ms_median=_median(
                view.latency.p95_ms
                for view in busy
                if view.latency is not None and view.latency.since == "arrival"
            ),
        )

    @property
    def sentence(self) -> str:
        said = f"{self.epochs} epochs, {self.rows:,} rows"
        if self.rows_per_second_median is None:
            return said
        return f"{said}, median {short(self.rows_per_second_median)} rows/s"


def each_epoch(journal: Iterable[Json]) -> list[EpochFacts]:
    """The epochs of a journal, in order, each once."""
    by_epoch = {facts.epoch: facts for facts in epochs_of(journal)}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


@dataclass(frozen=True)
class PlanView:
    """One decision: what moved with which epoch, why, what it promised and what it achieved."""

    epoch: int
    moved_keys: int
    why: str
    predicted_locality: float | None
    achieved_locality: float | None
    top_moves: tuple[str, ...]


def plan_views(journal: Iterable[Json]) -> list[PlanView]:
    """The plans of a journal, in order, each with the first outcome recorded after it."""
    views: list[PlanView] = []
    for facts in facts_of(journal):
        if isinstance(facts, OutcomeFacts) and views and views[-1].achieved_locality is None:
            views[-1] = replace(views[-1], achieved_locality=facts.achieved_locality)
        elif isinstance(facts, PlanFacts):
            why = facts.why or facts.failed or "the rest of an earlier plan"
            moved, top = sum(facts.moves.values()), facts.top_moves or ()
            views.append(PlanView(facts.epoch, moved, why, facts.predicted_locality, None, top))
    return views


def mean_error(plans: Sequence[PlanView]) -> float | None:
    """Mean absolute error of the predicted locality, over the plans whose outcome is known."""
    errors = [
        abs(plan.predicted_locality - plan.achieved_locality)
        for plan in plans
        if plan.predicted_locality is not None and plan.achieved_locality is not None
    ]
    return sum(errors) / len(errors) if errors else None


def need_figures() -> None:
    """Refuse, before any work is done, what could not be drawn in the end.

    Figures are an extra: matplotlib is large, and a flow runs without it.
    """
    if find_spec("matplotlib") is None:
        raise HeadgateError(
            'figures need matplotlib, which is not installed; pip install "headgate[figures]"',
            extra="figures",
        )


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


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else short(value, unit)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"
