"""This tree against an earlier one, on a handful of hot paths, in minutes.

The earlier tree is the last tag (`BASE` while there is none) and is unpacked beside this one. Each
has a process of its own, with a JVM that stays warm; they take turns path by path over the very
same files. A ratio above 1 says that this tree is faster. Each has two: by the clock, medians of
micro-batches, and by the CPU time of all processes of a run. While others use the cores, only the
second can be trusted.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from headgate.demo import Machine, write_epochs
from headgate.errors import EngineError
from headgate_lab.bench import regression_driver
from headgate_lab.bench.text import TextOptions, text_rows
from headgate_lab.record import side_by_side, work_folder
from headgate_lab.streams import chain_keys, correlated_pairs

Say = Callable[[str], None]
BASE = "95c021a"  # version 0.2.0: the base until there is a tag
ROOT = Path(__file__).parents[4]
WIDE = {"wide_1kb": 1_000, "wide_4kb": 4_000}  # bytes of a row's payload
PATHS = ("text_split", "text_by_key", "chain", *WIDE, "empty_epoch", "state")
TOLD = ("ms", "base_over_this", "cpu_ms", "base_over_this_cpu", "ms_raw", "cpu_ms_raw")
_BUILD = "from setuptools import setup; setup()"  # compiles the loops, where there is a compiler


@dataclass(frozen=True)
class RegressionOptions:
    """Sizes that give all paths of both trees, and their JVMs, less than five minutes."""

    base: str | None = None  # a tag or commit; None: the last tag, or `BASE`
    paths: tuple[str, ...] = PATHS
    rounds: int = 3
    warmup_rounds: int = 1  # not counted: a JVM compiles
    epochs: int = 6
    warmup: int = 2  # epochs of each run
    text_rows: int = 200_000
    chain_rows: int = 300_000
    wide_bytes: int = 40_000_000  # of an epoch
    held: int = 2_000_000
    touched: int = 100_000
    seed: int = 7


QUICK = RegressionOptions(
    rounds=1, warmup_rounds=0, epochs=2, warmup=1, text_rows=500, chain_rows=500,
    wide_bytes=200_000, held=5_000, touched=500,
)  # fmt: skip


def run_regression(options: RegressionOptions, say: Say, root: Path = ROOT) -> dict[str, Any]:
    """Milliseconds of each path in both trees, and base over this."""
    base = options.base or base_of(root)
    commit = _git(root, "rev-parse", "--short", f"{base}^{{commit}}").strip()
    say(f"this tree against {base} ({commit})")
    with (
        work_folder() as folder,
        ExitStack() as opened,
    ):
        work = Path(folder)
        trees = {"base": unpack(root, commit, work / "base"), "this": root}
        asked = {path: _work(path, options, work) for path in options.paths}
        processes = {
            name: opened.enter_context(_process(tree, work / f"{name}.log"))
            for name, tree in trees.items()
        }

        def turn(name: str, path: str) -> dict[str, float]:
            where = {"tree": str(trees[name]), "scratch": str(work)}
            return _ask(processes[name], {**asked[path], **where}, f"{path} of {name}")

        found = {path: _take_turns(path, turn, options, say) for path in options.paths}
    ran = {path: f for path, f in found.items() if "problem" not in f}
    return {
        "base": base,
        "base_commit": commit,
        **{what: {path: f[what] for path, f in ran.items()} for what in TOLD},
        "left_out": {path: f["problem"] for path, f in found.items() if "problem" in f},
        "options": asdict(options),
        "machine": asdict(Machine.here()),
    }


def base_of(root: Path) -> str:
    """The last tag behind this commit, or `BASE`."""
    try:
        return _git(root, "describe", "--tags", "--abbrev=0").strip()
    except EngineError:
        return BASE


def unpack(root: Path, commit: str, to: Path) -> Path:
    """The files of a commit, with its loops compiled if it has some."""
    with tarfile.open(fileobj=io.BytesIO(_run(root, "git", "archive", commit))) as archive:
        archive.extractall(to, filter="data")
    if list(to.glob("src/headgate/routing/*.c")):
        _run(to, sys.executable, "-c", _BUILD, "-q", "build_ext", "--inplace")
    return to


def _take_turns(
    path: str,
    turn: Callable[[str, str], dict[str, float]],
    options: RegressionOptions,
    say: Say,
) -> dict[str, Any]:
    """Both trees in turns; a path that one of them cannot run is left out, and why."""
    cpu_ms: dict[str, list[float]] = {"base": [], "this": []}

    def run(name: str) -> float:
        told = turn(name, path)
        cpu_ms[name].append(told["cpu_ms"])
        return told["ms"]

    contestants = {name: partial(run, name) for name in cpu_ms}
    try:
        for _ in range(options.warmup_rounds):
            for warm_up in contestants.values():
                warm_up()
        turns = side_by_side(contestants, options.rounds)
    except _CannotRun as problem:
        say(f"{path:12} left out: {problem}")
        return {"problem": str(problem)}
    counted = {name: values[options.warmup_rounds :] for name, values in cpu_ms.items()}
    found: dict[str, Any] = {}
    for what, ratio, raw in (
        ("ms", "base_over_this", turns.raw),
        ("cpu_ms", "base_over_this_cpu", counted),
    ):
        found[what] = {name: median(values) for name, values in raw.items()}
        found[ratio] = median(b / t for b, t in zip(raw["base"], raw["this"], strict=True))
        found[f"{what}_raw"] = {name: list(values) for name, values in raw.items()}
    ms = found["ms"]
    say(
        f"{path:12} {ms['base']:8.1f} -> {ms['this']:8.1f} ms, {found['base_over_this']:.2f}x; "
        f"by CPU time {found['base_over_this_cpu']:.2f}x"
    )
    return found


def _work(path: str, options: RegressionOptions, folder: Path) -> dict[str, Any]:
    """What a driver is asked; writes the files that the path reads."""
    if path == "state":
        sizes = {"held": options.held, "touched": options.touched, "epochs": options.epochs}
        return {"kind": "state", **sizes}
    text = TextOptions(rows_per_epoch=options.text_rows, seed=options.seed)
    kinds: dict[str, tuple[str, bool, str, Callable[[int], pa.Table]]] = {
        "text_split": ("by_text", True, "text", partial(text_rows, text)),
        "text_by_key": ("by_text", False, "text", partial(text_rows, text)),
        "chain": ("chained", True, "pairs", lambda e: _pairs(options.chain_rows, e, options)),
        **{
            name: ("wide", False, name, partial(_wide, payload_bytes=size, options=options))
            for name, size in WIDE.items()
        },
        "empty_epoch": ("chained", True, "one", lambda e: _pairs(1, e, options)),
    }
    flow, split, files, rows = kinds[path]
    table = rows(0)
    if not (folder / files).exists():
        write_epochs((rows(epoch) for epoch in range(options.epochs)), folder / files)
    types = {"int64": "long", "large_string": "string"}
    columns = ", ".join(f"{f.name} {types.get(str(f.type), f.type)}" for f in table.schema)
    return {
        "kind": "flow",
        "flow": flow,
        "split": split,
        "folder": str(folder / files),
        "columns": columns,
        "epochs": options.epochs,
        "warmup": options.warmup,
    }


def _pairs(rows: int, epoch: int, options: RegressionOptions) -> pa.Table:
    return correlated_pairs(rows, seed=options.seed, epoch=epoch)


def _wide(epoch: int, *, payload_bytes: int, options: RegressionOptions) -> pa.Table:
    made = chain_keys(
        options.wide_bytes // payload_bytes,
        seed=options.seed,
        epoch=epoch,
        chain=3,
        payload_bytes=payload_bytes,
    )
    return made.table


class _CannotRun(Exception):
    """A tree says that it cannot run a path, and why."""


@contextmanager
def _process(tree: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver with the modules of a tree, and nothing of the other's."""
    paths = [tree / "src"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-P", str(regression_driver.__file__)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
        try:
            yield process
        finally:
            process.communicate()  # its input ends, so it ends


def _ask(process: subprocess.Popen[str], work: dict[str, Any], what: str) -> dict[str, float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(work) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith(regression_driver.ANSWER):
            told = json.loads(line.removeprefix(regression_driver.ANSWER))
            if "problem" in told:
                raise _CannotRun(f"{what}: {told['problem']}")
            return {name: float(value) for name, value in told.items()}
    raise EngineError(f"{what}: its process ended without an answer")


def _git(root: Path, *arguments: str) -> str:
    return _run(root, "git", *arguments).decode()


def _run(folder: Path, *command: str) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise EngineError(
            f"bench regression compares this tree with an earlier commit of its git repository, "
            f"and {' '.join(command[:2])!r} failed in {folder}: {reason}. Run it in a clone that "
            "has the commit, or give another with --base"
        )
    return done.stdout
