"""What runs in Spark's Python workers: decode, run the task, encode.

A worker has no affinity to a slot and may be forked or reused at any time, so everything kept in
this module is a cache that can be made again: the flow's program, the epoch's plan, the state
store with its mapped warm copies.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import pickle
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyspark import Accumulator, Broadcast, TaskContext

from headgate.commit.costs_in_use import CostFiles, CostsAsAsked
from headgate.commit.routing_in_use import TableFiles
from headgate.errors import EngineError, StateFileError
from headgate.routing.route import Route
from headgate.runtime.exchange import Stage, slot_labels
from headgate.slot.file_rows import files_of, read_pieces, read_whole
from headgate.slot.plan import WARM_OFF, EpochPlan
from headgate.slot.program import Program
from headgate.slot.report import Counted, Report, moment, this_machine
from headgate.slot.rows import SourceRows
from headgate.slot.slot_task import run_slot_task
from headgate.slot.task import Services, failed_task, run_source_task
from headgate.slot.wire import TUPLE_SCHEMA, BatchTuple, Kind, anchor_row, decode, encode
from headgate.state.storage import Storage
from headgate.state.store import StateStore
from headgate.topology.files import Piece

PLAN_PROPERTY = "headgate.plan"
INPUT_PROPERTY = "headgate.input"
OWNER = "headgate.owner"  # the file that names the JVM a local folder belongs to
INLINE_PINS_MAX = 2_000  # a table with more is read from the checkpoint by each worker
PROGRAMS_MAX = 4  # flows of one session whose tasks take turns in a worker
_programs: dict[str, Program] = {}
_plans: dict[str, EpochPlan] = {}
_stores: dict[tuple[Any, ...], StateStore] = {}


def level_stage(
    code: Broadcast[bytes],
    program_id: str,
    level: int,
    reports: Accumulator[list[Report]] | None = None,
    *,
    anchored: bool = True,
) -> Stage:
    """A level of the flow's job: rows of a source partition (level 0) or a slot's batch tuples in,
    batch tuples and a control record out.

    If slots are not `anchored`, Spark's partition says which one a task is: that whose label is
    sent there. `reports` gets what leaves a task apart from its rows: timings, and what it counted.
    """

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start = moment(time.perf_counter_ns())
        program, (plan, problem) = _program(code, program_id), _plan()
        services, slot = _services(plan), None
        if level == 0:
            producer = task_partition()
            made = run_source_task(program, plan, services, producer, _rows(program, batches))
        else:
            here = None if anchored else plan.slots_at(level)[task_partition()]
            producer, tuples = _gather(batches, here)
            slot = producer
            made = run_slot_task(program, plan, services, level, slot, tuples)
        if problem is not None:
            made = iter([failed_task(plan, level, producer, slot, problem)])
        yield from encode(made, labels_after(plan, level))
        services.timed(level, producer, "", 0, start)
        if reports is not None:
            counted = [Counted(*place, data) for place, data in services.statistics.items()]
            reports.add([*services.timings, *counted, this_machine()])

    stage.__name__ = f"headgate_level_{level}" if level else "headgate_route"
    return stage


def labels_after(plan: EpochPlan, level: int) -> list[int]:
    """By slot, the label under which a level's tuples find the slot's task in the next level."""
    last = bool(plan.at_work) and level == len(plan.at_work)
    slots = range(plan.slots) if last else plan.slots_at(level + 1)
    labels = [0] * plan.slots
    for slot, label in zip(slots, slot_labels(len(slots)), strict=True):
        labels[slot] = label
    return labels


def warming_stage(level_1: Stage, slots: int) -> Stage:
    """For a new executor: take in source rows and drop them, then run a slot's code without any."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        row = anchor_row(0, slot_labels(slots)[0])
        columns = [pa.array([v], f.type) for v, f in zip(row, TUPLE_SCHEMA, strict=True)]
        yield from level_1([pa.RecordBatch.from_arrays(columns, schema=TUPLE_SCHEMA)])

    stage.__name__ = "headgate_warming"
    return stage


def _gather(batches: Iterable[pa.RecordBatch], here: int | None) -> tuple[int, list[BatchTuple]]:
    """The slot, and everything that came for it; its anchor row names it, if it is not given."""
    tuples: list[BatchTuple] = []
    homes: set[int] = set() if here is None else {here}
    for batch in batches:
        for item in decode(batch):
            if item.kind == Kind.ANCHOR:
                homes.add(item.slot)
            else:
                tuples.append(item)
    if len(homes) != 1:
        raise EngineError(
            f"a slot's partition holds the anchors of slots {sorted(homes)}: the union of data "
            "and anchor was not partition-aware; set spark.sql.unionOutputPartitioning=true and "
            "spark.sql.adaptive.enabled=false"
        )
    return homes.pop(), tuples


def _rows(program: Program, batches: Iterable[pa.RecordBatch]) -> Iterator[SourceRows]:
    """The rows of a source task: what Spark hands over, or what the files hold that it names."""
    files = files_of(program)
    if len(files) == len(program.sources):
        for _ in batches:
            pass  # a row that stands for the task
        yield from read_pieces(program, _pieces())
        return
    for source, batch in _untag(batches) if len(program.sources) > 1 else ((0, b) for b in batches):
        if source in files:
            yield from read_whole(program, source, batch)
        else:
            yield SourceRows(source, batch)


def _pieces() -> list[Piece]:
    """This task's part of the epoch's files; a tick has none."""
    context = TaskContext.get()
    packed = None if context is None else context.getLocalProperty(INPUT_PROPERTY)
    if not packed:
        return []
    pieces: list[Piece] = unpack_pieces(packed)[task_partition()]
    return pieces


def pack_pieces(pieces: list[list[Piece]]) -> str:
    """Every task's part of an epoch's files as a string, a local property of the job like the plan;
    "" if there are none.
    """
    if not pieces:
        return ""
    return base64.b64encode(zlib.compress(pickle.dumps(pieces, protocol=5), 1)).decode("ascii")


@lru_cache(maxsize=1)
def unpack_pieces(packed: str) -> list[list[Piece]]:
    pieces: list[list[Piece]] = pickle.loads(zlib.decompress(base64.b64decode(packed)))
    return pieces


def _untag(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows of several sources: column 0 says which, column 1 + i holds source i's struct."""
    for batch in batches:
        tags = batch.column(0).to_numpy()
        for source in np.unique(tags).tolist():
            mine = batch.filter(pa.array(tags == source)).column(1 + source)
            yield source, pa.RecordBatch.from_struct_array(mine)


def task_partition() -> int:
    context = TaskContext.get()
    assert context is not None, "a stage runs inside a Spark task"
    return context.partitionId()


def _program(code: Broadcast[bytes], program_id: str) -> Program:
    if program_id not in _programs:
        if len(_programs) >= PROGRAMS_MAX:
            del _programs[next(iter(_programs))]
        _programs[program_id] = pickle.loads(code.value)
        # Put what is loaded by now, most of it imported modules, beyond the garbage collector's
        # reach. PySpark's daemon collects garbage after every task of a worker that it keeps, and
        # the next level's task waits for it: 45 to 58 ms for 112,000 objects, 0.01 ms with this.
        gc.unfreeze()  # what an earlier flow left behind may go
        gc.collect()
        gc.freeze()
    return _programs[program_id]


def pack_plan(plan: EpochPlan) -> str:
    """The plan as a string, to travel as a local property of the epoch's job.

    Spark sends properties along with every task: a large table is only named in it, and read
    from the checkpoint by the workers that do not have it yet.
    """
    is_small = {op: len(r.table.pinned_h) <= INLINE_PINS_MAX for op, r in plan.routes.items()}
    small = {op: route for op, route in plan.routes.items() if is_small[op]}
    large = {op: (r.dispatch, r.slots) for op, r in plan.routes.items() if not is_small[op]}
    packed = pickle.dumps((replace(plan, routes=small, costs={}), large), protocol=5)
    return base64.b64encode(zlib.compress(packed, 1)).decode("ascii")


def _plan() -> tuple[EpochPlan, StateFileError | None]:
    """The plan of the job this task belongs to, unpacked once per process and epoch.

    And why it cannot be followed, if a table of it cannot be read: the task answers with that.
    """
    context = TaskContext.get()
    packed = None if context is None else context.getLocalProperty(PLAN_PROPERTY)
    if packed is None:
        raise EngineError(f"the task's job has no local property {PLAN_PROPERTY}")
    if packed not in _plans:
        _plans.clear()
        plan, large = pickle.loads(zlib.decompress(base64.b64decode(packed)))
        try:
            tables = {op: _table_files(plan.tables_uri).load(plan.table_files[op]) for op in large}
        except StateFileError as problem:
            return plan, problem
        routes = {op: Route(table, *large[op]) for op, table in tables.items()}
        plan = replace(plan, routes={**plan.routes, **routes})
        if plan.cost_files:
            costs = CostsAsAsked(_cost_files(plan.costs_uri), plan.cost_files)
            plan = replace(plan, costs=costs)
        _plans[packed] = plan
    return _plans[packed], None


@lru_cache(maxsize=1)
def _table_files(uri: str) -> TableFiles:
    return TableFiles(Storage.at(uri))


@lru_cache(maxsize=1)
def _cost_files(uri: str) -> CostFiles:
    return CostFiles(Storage.at(uri))


def _services(plan: EpochPlan) -> Services:
    key = (plan.storage_uri, plan.warm_dir, plan.buckets, plan.signed, plan.identity)
    if key not in _stores:
        _stores[key] = StateStore(
            Storage.at(plan.storage_uri),
            warm_dir=_warm_dir(plan),
            buckets=plan.buckets,
            strong_digests=plan.signed,
            identity=plan.identity,
        )
    return Services(_stores[key])


def _warm_dir(plan: EpochPlan) -> str | None:
    """A folder of this host, apart from those of other flows and users; Spark deletes its local
    dirs. Somebody else may make it first, and then it is not used (`state/warm_copy.py`).
    """
    if plan.warm_dir == WARM_OFF:
        return None
    local_dirs = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    root = plan.warm_dir or local_dirs[0]
    if not root:
        return None
    if not plan.warm_dir:
        claim(root)
    flow = xxhash.xxh3_64_hexdigest(plan.storage_uri.encode())
    return os.path.join(root, f"headgate-{os.geteuid()}-{flow}")


# --- warm copies that killed runs left behind -----------------------------------------------
def claim(local_dir: str) -> None:
    """Say whose this local folder of Spark's is, and remove what dead JVMs left beside it.

    Spark deletes its local folders when a JVM ends, but one that is killed leaves them, and our
    warm copies in them. In doubt a folder stays: another user's, one of a process of another
    container, one whose file is not whole. Every worker calls this once; it reads one small file
    for each JVM that uses the disk.
    """
    mine = Path(local_dir)
    with suppress(OSError):  # a file that is there already, a disk that is full: slower, not wrong
        owner = json.dumps(_identity(_jvm()))
        with open(mine / OWNER, "x") as file:
            file.write(owner)
    for folder in mine.parent.glob("blockmgr-*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = folder.lstat()
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_own and _is_dead(json.loads((folder / OWNER).read_text())):
                for warm in folder.glob("headgate-*"):
                    shutil.rmtree(warm)
                (folder / OWNER).unlink()


def born(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: tells a pid from its reuse."""
    try:
        return _stat(pid)[19]  # field 22
    except OSError:
        return None


def _stat(pid: int) -> list[str]:
    """Fields 3 and up of a process's stat; the name in field 2 may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _jvm() -> int:
    """The process above this worker that is no Python: Spark may fork workers from a daemon."""
    pid, python = os.getpid(), os.readlink("/proc/self/exe")
    while os.readlink(f"/proc/{pid}/exe") == python:
        pid = int(_stat(pid)[1])
    return pid


def _identity(pid: int) -> dict[str, str | int | None]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.readlink("/proc/self/ns/pid")
    return {"boot": boot, "namespace": namespace, "pid": pid, "born": born(pid)}


def _is_dead(owner: dict[str, str | int]) -> bool:
    """A process of another container cannot be seen from here: it counts as alive."""
    now = _identity(int(owner["pid"]))
    same_names = owner["namespace"] == now["namespace"]
    return owner["boot"] != now["boot"] or (same_names and owner["born"] != now["born"])
