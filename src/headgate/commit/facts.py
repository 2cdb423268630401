"""What is known of an epoch, and all else that the journal holds: frozen, a class for each kind.

The engine measures, the coordinator adds up, policies read. Fields are those of the journal
(docs/reference/journal.md); JSON is made at its edge and nowhere else (`facts_json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from headgate.commit.facts_json import INLINE, SPARSE, Json, Sparse, from_json, to_json
from headgate.commit.latency import LatencyFacts
from headgate.planner.tuning.cost_model import EngineCosts
from headgate.planner.tuning.explained import TunedEpochs

SCHEMA = 1


@dataclass(frozen=True)
class Facts:
    """A record of the journal."""

    kind: ClassVar[str]

    def to_json(self) -> Json:
        return {"schema": SCHEMA, "kind": self.kind, **to_json(self)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return from_json(cls, record)


@dataclass(frozen=True)
class EngineFacts:
    """What an engine measured of its job; the testing kit measures nothing.

    `levels_ms` is the longest task of each level, `task_ms` all of its tasks together and
    `task_cpu_ms` what they had of cores. `cores` is how many tasks can run at once, `cpus` how many
    processors they share.
    """

    plan_ms: Sparse[float] = None
    job_ms: Sparse[float] = None
    levels_ms: Annotated[Mapping[int, float], SPARSE] = field(default_factory=dict)
    task_ms: Annotated[Mapping[int, float], SPARSE] = field(default_factory=dict)
    task_cpu_ms: Annotated[Mapping[int, float], SPARSE] = field(default_factory=dict)
    cores: Sparse[int] = None
    cpus: Sparse[int] = None
    hosts: Annotated[tuple[str, ...], SPARSE] = ()

    @property
    def seconds(self) -> float:
        """Planning and job: what an epoch costs before it is committed."""
        return ((self.plan_ms or 0.0) + (self.job_ms or 0.0)) / 1e3


@dataclass(frozen=True)
class TriggerFacts:
    """What Spark says of triggers: how long the last one took, whether it left rows waiting, and
    how many files were listed for this one and left to the next.
    """

    last_trigger_ms: Sparse[float] = None
    last_rows_wait: Sparse[bool] = None
    files_waiting: Sparse[int] = None


@dataclass(frozen=True)
class EdgeFacts:
    """Rows and bytes of an edge, by whether they stayed in their slot."""

    local_rows: int = 0
    remote_rows: int = 0
    local_bytes: int = 0
    remote_bytes: int = 0
    locality: float | None = None
    between_slots: bool = True
    grouping: str = ""

    @property
    def rows(self) -> int:
        return self.local_rows + self.remote_rows


@dataclass(frozen=True)
class BatchFacts:
    tuples: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class StateSize:
    """An operator's state in one slot."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class CostFacts:
    """A cost-aware shuffle: what rows should have taken and took, slot by slot; what its schedule
    supposed that slots do besides, and how often slots have sent sketches since the start.
    """

    estimated_ms: tuple[float | None, ...]
    measured_ms: tuple[float, ...]
    rows: tuple[int, ...]
    speed: tuple[float, ...] | None = None
    sketches_sent: int = 0
    beside_ms: Sparse[tuple[float, ...]] = None


@dataclass(frozen=True)
class EpochFacts(Facts):
    """An epoch that is committed. Times are advisory: a task run twice counts twice."""

    kind = "epoch"

    epoch: int
    flow: str = ""
    slots: int = 0
    rows: int = 0
    source_rows: Mapping[str, int] = field(default_factory=dict)
    source_tasks: int = 1
    edges: Mapping[str, EdgeFacts] = field(default_factory=dict)
    locality: float | None = None
    bytes_shuffled: int = 0
    bytes_local: int = 0
    messages: int = 0
    message_bytes: int = 0
    batches: Mapping[str, BatchFacts] = field(default_factory=dict)
    bytes_by_distance: Mapping[str, int] = field(default_factory=dict)
    away_rows: Mapping[str, int] = field(default_factory=dict)
    merge_rows: Mapping[str, int] = field(default_factory=dict)
    merge_bytes: Mapping[str, int] = field(default_factory=dict)
    split: tuple[str, ...] = ()
    spread_keys: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    imbalance: Mapping[str, float | None] = field(default_factory=dict)
    operator_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    moving_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # what operators had of cores, and in how much of their time they needed none
    operator_cpu_ms: Annotated[Mapping[str, float], SPARSE] = field(default_factory=dict)
    operator_wait_ms: Annotated[Mapping[str, float], SPARSE] = field(default_factory=dict)
    operator_rows: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, Mapping[int, StateSize]] = field(default_factory=dict)
    sink_rows: Mapping[str, int] = field(default_factory=dict)
    late_rows: Mapping[str, int] = field(default_factory=dict)
    dead_rows: Mapping[str, int] = field(default_factory=dict)
    moved_rows: Mapping[str, int] = field(default_factory=dict)
    routing_version: int = 0
    watermark_us: int | None = None
    now_ms: int = 0
    attempts: int = 1
    tick: Annotated[bool, SPARSE] = False
    latency: Sparse[LatencyFacts] = None
    # slots that had a task in each level, from the first on
    tasks: Annotated[tuple[int, ...], SPARSE] = ()
    # the slots of operators that have an instance in some slots only
    instances: Annotated[Mapping[str, tuple[int, ...]], SPARSE] = field(default_factory=dict)
    costs: Annotated[Mapping[str, CostFacts], SPARSE] = field(default_factory=dict)
    engine: Annotated[EngineFacts, INLINE] = field(default_factory=EngineFacts)
    trigger: Annotated[TriggerFacts, INLINE] = field(default_factory=TriggerFacts)


@dataclass(frozen=True)
class CutFacts:
    units: int
    pieces: int


@dataclass(frozen=True)
class PlanFacts(Facts):
    """A decision of a manager; `epoch` and `moves` are known when it is carried out."""

    kind = "plan"

    epoch: int = 0
    moves: Mapping[str, int] = field(default_factory=dict)
    planner: Sparse[str] = None
    why: Sparse[str] = None
    failed: Sparse[str] = None
    overtaken: Sparse[str] = None
    top_moves: Sparse[tuple[str, ...]] = None
    seconds: Sparse[float] = None
    predicted_locality: Sparse[float] = None
    # of planners of keys
    planned_keys: Sparse[Mapping[str, int]] = None
    predicted_imbalance: Sparse[Mapping[str, float]] = None
    left: Sparse[Mapping[str, int]] = None
    # of planners of units
    resource: Sparse[str] = None
    slot_loads_pct: Sparse[tuple[float, ...]] = None
    planned_loads_pct: Sparse[tuple[float, ...]] = None
    predicted_distance_pct: Sparse[float] = None
    migration_s: Sparse[float] = None
    migration_s_per_mb: Sparse[float] = None
    bound_pct: Sparse[float] = None
    gap_pct: Sparse[float] = None
    extent: Sparse[str] = None
    cut: Sparse[CutFacts] = None
    # of hot keys
    hot_keys: Sparse[tuple[str, ...]] = None
    spread: Sparse[Mapping[str, int]] = None
    split: Sparse[tuple[str, ...]] = None


@dataclass(frozen=True)
class OutcomeFacts(Facts):
    """What the last plan promised and what came of it; `error` is the difference."""

    kind = "outcome"

    error: float
    epoch: int = 0
    predicted_locality: Sparse[float] = None
    achieved_locality: Sparse[float] = None
    predicted_distance_pct: Sparse[float] = None
    achieved_distance_pct: Sparse[float] = None


@dataclass(frozen=True)
class ScaleFacts(Facts):
    """The number of slots changes with this epoch; `gone` leave, if not the last ones."""

    kind = "scale"

    epoch: int
    before: int
    slots: int
    why: str
    gone: Sparse[tuple[int, ...]] = None


@dataclass(frozen=True)
class ElasticFacts(Facts):
    """How a change of slots went on the cluster, or why it failed."""

    kind = "elastic"

    slots: int
    before: Sparse[int] = None
    failed: Sparse[str] = None
    cores: Sparse[int] = None
    ready_s: Sparse[float] = None
    arrived: Sparse[tuple[str, ...]] = None
    warmed_s: Sparse[tuple[float, ...]] = None
    read_source: Sparse[bool] = None
    rehearsed_s: Sparse[tuple[float, ...]] = None
    released: Sparse[tuple[str, ...]] = None


@dataclass(frozen=True)
class RetryFacts(Facts):
    """An attempt at an epoch that was given up."""

    kind = "retry"

    epoch: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class SideTable:
    """A version of a lookup's side table: its file, and when it was read."""

    file: str
    rows: int
    read_ms: int


@dataclass(frozen=True)
class SideTableFacts(Facts):
    """A side table was read, or could not be (`failed`) and stays as it was."""

    kind = "side_table"

    epoch: int
    operator: str
    file: str
    rows: int
    read_ms: int
    failed: Sparse[str] = None


@dataclass(frozen=True)
class DamageFacts(Facts):
    """A file that is damaged or gone, and what was done about it."""

    kind = "damage"

    file: str
    reason: str
    done: str
    epoch: Sparse[int] = None
    sink: Sparse[str] = None
    operator: Sparse[str] = None


@dataclass(frozen=True)
class TunedStart:
    """What a start with "auto" rests on."""

    rows_per_epoch: int | None
    costs: EngineCosts
    engine: str
    calibrated: str


@dataclass(frozen=True)
class StartFacts(Facts):
    kind = "start"

    slots: int
    at_ms: int
    spark: str
    describe: Mapping[str, Any]
    tuned: Sparse[TunedStart] = None


@dataclass(frozen=True)
class TuningFacts(Facts):
    """What the tuner says after an epoch."""

    kind = "tuning"

    epoch: int
    note: Annotated[str, SPARSE] = ""
    slots: Sparse[int] = None
    why: Sparse[str] = None
    settings: Sparse[TunedEpochs] = None
    rows_per_epoch: Sparse[int] = None
    why_rows: Sparse[str] = None
    # the slots of operators whose instances change
    instances: Sparse[Mapping[str, tuple[int, ...]]] = None
    why_instances: Sparse[str] = None
    # rows of a batch, by stream
    batch_rows: Sparse[Mapping[str, int]] = None


KINDS: Mapping[str, type[Facts]] = {kind.kind: kind for kind in Facts.__subclasses__()}


def facts_of(journal: Iterable[Mapping[str, Any]]) -> Iterator[Facts]:
    """The records of a journal, in its order, without those that this version cannot read."""
    for record in journal:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            yield KINDS[record["kind"]].from_json(record)


def epochs_of(journal: Iterable[Mapping[str, Any]]) -> list[EpochFacts]:
    found = facts_of(record for record in journal if record["kind"] == EpochFacts.kind)
    return [facts for facts in found if isinstance(facts, EpochFacts)]
