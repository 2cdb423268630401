"""Folding a chain's tail into a run, or all of it into a snapshot.

Reads immutable files only and is a pure function of the chain, so it needs no lock, and two
attempts at it write the same file. The new file remembers the ones it stands for (`replaces`,
one generation), so a damaged snapshot need not be the end.
"""

from __future__ import annotations

from headgate.state.chain import Chain, Compaction, plan_compaction
from headgate.state.chain_reader import ChainReader, complete, fold_files
from headgate.state.delta import write_file
from headgate.state.digest import is_strong
from headgate.state.task import Task


def compact(task: Task, chain: Chain) -> Chain:
    """The same state in fewer files, if that is due; else the chain as it is."""
    plan = plan_compaction(chain, task.operator, task.slot, task.compact_after)
    weak = task.strong_digests and not all(is_strong(file.digest) for file in chain)
    if weak:  # the checkpoint has got a key: what was written without one may not stay
        plan = Compaction(0, "snapshot")
    if plan is None:
        return chain
    old = chain[plan.start :]
    reader = ChainReader(task.storage, task.layout, task.operator, task.slot, task.now_ms)
    rows = fold_files(reader.files(old), task.layout, keep_removed=plan.kind == "run")
    if not len(rows.ids):
        return ()  # a snapshot of nothing: the chain of an empty state
    replaces = () if weak else tuple(part.bare() for part in old)
    file = write_file(task, rows.ids, rows.removed, complete(rows), plan.kind, replaces)
    return (*chain[: plan.start], file)
