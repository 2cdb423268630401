"""How a flow runs: what a user may say about it, and that with what the start has found out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from os import PathLike

from headgate.commit.changed_state import bare
from headgate.commit.journal import KEEP_RECORDS
from headgate.errors import DeclarationError, EngineError
from headgate.planner.tuning.cost_model import Calibration
from headgate.routing.identity import Identity
from headgate.routing.table import BUCKETS, RoutingTable
from headgate.slot.plan import BatchRows, Scheme
from headgate.topology.arguments import check_count, named_fields
from headgate.typical import BYTE_S, MESSAGE_S, PARK_BYTES


@named_fields
@dataclass(frozen=True, kw_only=True)
class Options:
    """What a start seldom needs; give it to `flow.start(options=hg.Options(...))`.

    Args:
        tables: Routing tables by operator, such as `hg.load_tables` returns; they fix the number
            of slots. An operator without one keeps the table it had, or is hashed.
        racks: Rack of each host, for a manager that should prefer near slots to far ones.
        batch_rows: Rows per batch tuple, for all edges or by "producer->consumer" (default: as
            declared with `batched`, else chosen while the flow runs; at first as many as fit).
            Results do not depend on it.
        sharing: Batches for consumers with different keys: "distinct", "shared", or the cheaper.
        calibration: What the engine charges, for choosing slots and rows per epoch: a file of
            `headgate calibrate`, what `calibrate` returned, or "probe" to measure it now, by a
            dozen small jobs (default: the checkpoint's if made on this engine, else typical costs).
        warm_dir: Folder on each host for warm copies of state (default: Spark's local dir;
            "off": none).
        buckets: Hash buckets per operator; a power of two, fixed for the life of a checkpoint.
        drop_state: Names of operators that are gone and whose state may be forgotten, and of sinks
            that are gone and whose undelivered rows may be; "operator:name" and "sink:name" say
            which. May stay at later starts.
        renamed: What has another name now, `{"old": "new"}`: operators, sources, columns of keys,
            inputs and state ("operator.column" for those of one operator), functions of `Update`;
            "operator:old" and "source:old" say which. May stay at later starts.
        reset: Names of operators that begin from nothing if their state cannot follow a change of
            the flow; those whose state can, keep it. So it may stay at later starts.
        keep_manifests: How many epochs back the checkpoint can be read.
        keep_journal: How many records the journal keeps: one per epoch, and one per plan, change
            of slots and retry.
        durable: Flush an epoch's files to disk before it is committed, so that a crash of the
            machine loses none of them; only local disks (and mounts) need it.
        key: Signs the checkpoint, so that nobody without it can change it unnoticed (default: the
            environment's HEADGATE_KEY; without one nothing is signed).
        trust_unsigned: Take over a checkpoint that was written without a key, and sign it from now
            on.
        park_bytes: Columns that no operator on the way reads do not travel with their rows if
            together they have at least so many bytes a row: they wait in files of the checkpoint,
            if that is a folder on a disk and has no key (None: they always travel).
        tick: Run epochs on an idle stream too (default: only if some operator has a TTL).
        conf: More Spark SQL settings for the epochs' session.
        clock_ms: Processing time, for tests.
    """

    tables: Mapping[str, RoutingTable] = field(default_factory=dict)
    racks: Mapping[str, str] = field(default_factory=dict)
    batch_rows: BatchRows = None
    sharing: Scheme = "auto"
    calibration: Calibration | str | PathLike[str] | None = None
    warm_dir: str | None = None
    buckets: int = BUCKETS
    drop_state: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    reset: Collection[str] = ()
    keep_manifests: int = 8
    keep_journal: int = KEEP_RECORDS
    durable: bool = True
    key: str | bytes | None = field(default=None, repr=False)
    trust_unsigned: bool = False
    park_bytes: int | None = PARK_BYTES
    tick: bool | None = None
    conf: Mapping[str, str] | None = None
    clock_ms: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        for name in ("buckets", "keep_manifests", "keep_journal"):
            count = check_count(getattr(self, name), f"{name}=", error=EngineError)
            object.__setattr__(self, name, count)
        if self.park_bytes is not None:
            count = check_count(self.park_bytes, "park_bytes=", least=0, error=EngineError)
            object.__setattr__(self, "park_bytes", count)
        if self.buckets & (self.buckets - 1) or self.buckets > 65536:
            raise EngineError(f"buckets={self.buckets}; it must be a power of two up to 65536")
        # a text alone would be taken for the names of its letters
        for name in ("drop_state", "reset"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Collection):
                raise DeclarationError(
                    f"{name}={given!r}; it takes a list of names, such as ['counts']"
                )
        _check_renamed(self.renamed)


def _check_renamed(renamed: object) -> None:
    texts = isinstance(renamed, Mapping) and all(
        isinstance(name, str) for pair in renamed.items() for name in pair
    )
    if not isinstance(renamed, Mapping) or not texts:
        raise DeclarationError(
            f"renamed={renamed!r}; it takes old names with their new ones, such as "
            "{'counts': 'per_user'}"
        )
    if told := [new for new in renamed.values() if new != bare(new)]:
        raise DeclarationError(
            f"renamed={dict(renamed)!r}: of which kind it is, is said with the old name; give "
            f"{bare(told[0])!r} as the new one"
        )
    # An operator and a source may both have had one name, and may both come to have one.
    kinds = [old.removesuffix(bare(old)) for old in renamed]
    olds = {*zip(kinds, map(bare, renamed), strict=True)}
    news = [*zip(kinds, renamed.values(), strict=True)]
    # "operator.old" is a column of one operator; another one's may get the same name.
    said = [*zip((old.rpartition(".")[0] for old in renamed), news, strict=True)]
    twice = sorted({one[1][1] for one in said if said.count(one) > 1})
    chained = sorted(name for _, name in olds.intersection(news))
    if twice or chained:
        raise DeclarationError(
            f"renamed={dict(renamed)!r}: {', '.join(twice or chained)} is there twice. To exchange "
            "names, or pass them on, start once with each step; a source and an operator may have "
            "one name, if it is said which is which: 'source:old', 'operator:old'"
        )


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """A start's options, and what it has found out besides.

    `last_epoch` is the one with which the input ends, and all windows close (None: it does not).
    `identity` is how a new checkpoint tells keys apart (None: with a secret of its own).
    `chosen_batch_rows` and `chosen_instances` are what an optimizer begins with, by edge and by
    operator, where the user says nothing.
    """

    slots: int
    statistics_bytes: int = 0
    message_s: float = MESSAGE_S
    byte_s: float = BYTE_S
    last_epoch: int | None = None
    identity: Identity | None = None
    chosen_batch_rows: Mapping[str, int] = field(default_factory=dict)
    chosen_instances: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        slots = check_count(self.slots, "slots=", error=EngineError)
        object.__setattr__(self, "slots", slots)
