"""Does Spark's checkpoint go on where the manifests end? If not, rows would be lost or doubled.

Spark runs again only the last micro-batch it planned, and plans it before the epoch begins. So a
batch is either the one after the last manifest's, or that manifest's own: then Spark's plan of it
must be the one that was committed. Spark knows nothing of ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headgate.commit.checkpoint import Checkpoint
from headgate.commit.manifest import Manifest
from headgate.commit.spark_files import check_entries
from headgate.errors import ForeignCheckpoint, IncompatibleFlow
from headgate.slot.program import Program

TICK = "(tick)"


def check_start(place: Checkpoint, last: Manifest | None, query_id: str | None) -> None:
    """Refuse to start when Spark's checkpoint has vanished, is damaged or is not the one.

    One that has no rows left to run would otherwise end without an error.
    """
    check_entries(place.storage)
    if last is None:
        return
    if query_id is None:
        raise ForeignCheckpoint(
            f"{place.storage.uri} holds state up to epoch {last.epoch}, but Spark's checkpoint in "
            f"{place.spark_uri} is gone: it would read its sources from the start again. Restore "
            "it, or start with a new checkpoint folder",
            epoch=last.epoch,
        )
    check_epoch(place, last, last.batch, query_id, place.spark_offsets(last.batch))


def check_epoch(
    place: Checkpoint, last: Manifest | None, batch: int, query_id: str, offsets: str | None
) -> None:
    """May Spark's query run this batch, whose offsets have this digest, after the last manifest?"""
    if last is None:
        if batch > 0:
            raise ForeignCheckpoint(
                f"Spark starts at batch {batch}, but {place.storage.uri} has no manifest: the "
                "manifests were deleted or belong to another folder; restore them, or start with "
                "a new checkpoint folder",
                batch=batch,
            )
        return
    if last.query_id != query_id or batch > last.batch + 1:
        raise ForeignCheckpoint(
            f"the Spark checkpoint in {place.spark_uri} (query {query_id}, batch {batch}) is not "
            f"the one this flow's state was made with (query {last.query_id}, last batch "
            f"{last.batch}): it was deleted or replaced. Restore it, or start with a new "
            "checkpoint folder",
            batch=batch,
            query_id=query_id,
        )
    if batch < last.batch:
        raise _rolled_back(place, last, f"it runs batch {batch} again")
    if batch == last.batch and last.offsets is not None and offsets != last.offsets:
        what = "has no plan of" if offsets is None else "planned other rows for"
        raise _rolled_back(place, last, f"it {what} batch {batch} (file offsets/{batch})")


def has_old_tick(place: Checkpoint, wanted: bool) -> bool:
    """Is Spark's last source a tick, as it was up to format 3? Then it has to stay.

    Checkpoints of format 2 do not tell; theirs is, if the flow wants to tick.
    """
    return TICK in (place.spark_sources(unsaid=[TICK] if wanted else []) or [])


def check_sources(place: Checkpoint, names: Sequence[str]) -> None:
    """Spark's offsets belong to sources by their position: the same ones must come in that order.

    A source may get another name, if the others stay where they are.
    """
    before = place.spark_sources()
    changes = [] if before is None else source_changes(before, names)
    if changes:
        raise IncompatibleFlow(
            f"the flow's sources changed, and the offsets in Spark's checkpoint {place.spark_uri} "
            f"belong to sources by their position: {'; '.join(changes)}. Declare the sources as "
            "they were, or start with a new checkpoint folder",
            changes=changes,
        )
    place.keep_spark_sources(names)


def source_changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What Spark's offsets cannot follow, in words; nothing if they can."""
    old, new = ([name for name in names if name != TICK] for names in (before, after))
    changes = []
    if len(old) != len(new):
        changes += [f"source {name!r} is new" for name in new if name not in old]
        changes += [f"source {name!r} is gone" for name in old if name not in new]
    elif any(name in old and old.index(name) != at for at, name in enumerate(new)):
        changes.append(f"sources were {', '.join(old)}, and are {', '.join(new)}")
    return changes


def check_sinks(
    place: Checkpoint, last: Manifest | None, program: Program, dropped: Collection[str]
) -> None:
    """Rows that are committed but not delivered need their sink; else they would be lost."""
    if last is None:
        return
    now = {sink.name: sink.spec.kind for sink in program.sinks}
    before = last.describe.get("sinks", {})
    changes = []
    for name, files in last.sinks.items():
        rows = sum(file["rows"] for file in files)
        same = name in now and now[name] == before.get(name, now[name])
        if same or not rows or name in dropped or place.is_marked(last.epoch, name):
            continue
        is_now = f"is a {now[name]} now" if name in now else "is gone"
        changes.append(
            f"sink {name!r} {is_now}, and {rows} rows of epoch {last.epoch} are committed for it "
            f"and not delivered (start with drop_state=[{name!r}] if they may be lost)"
        )
    if changes:
        raise IncompatibleFlow(
            f"{'; '.join(changes)}. Start {place.storage.uri} once with its sinks as they were: "
            "the rows are delivered before any other",
            changes=changes,
        )


def _rolled_back(place: Checkpoint, last: Manifest, why: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        f"the Spark checkpoint in {place.spark_uri} is older than this flow's state, which holds "
        f"everything up to batch {last.batch}: {why}. It was put back from a copy, was "
        "changed, or lost its last files when the machine stopped. Going on would lose rows: "
        "restore the whole checkpoint folder from one copy, or start with a new one",
        epoch=last.epoch,
    )
