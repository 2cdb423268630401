"""This tree against an earlier one, on a handful of hot paths, in minutes.

The earlier tree is the last tag (`BASE` while there is none) and is unpacked beside this one. Each
has a process of its own, with a JVM that stays warm; they take turns path by path over the very
same files. A ratio above 1 says that this tree is faster. Ratios hold on a machine that is not
idle, absolute times do not.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
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
from headgate_lab.record import side_by_side
from headgate_lab.streams import chain_keys, correlated_pairs

Say = Callable[[str], None]
BASE = "95c021a"  # version 0.2.0: the base until there is a tag
ROOT = Path(__file__).parents[4]
PATHS = ("text_split", "text_by_key", "chain", "wide_4kb", "empty_epoch", "state")
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
    wide_rows: int = 4_000
    held: int = 2_000_000
    touched: int = 100_000
    seed: int = 7


QUICK = RegressionOptions(
    rounds=1, warmup_rounds=0, epochs=2, warmup=1, text_rows=500, chain_rows=500, wide_rows=50,
    held=5_000, touched=500,
)  # fmt: skip


def run_regression(options: RegressionOptions, say: Say, root: Path = ROOT) -> dict[str, Any]:
    """Milliseconds of each path in both trees, and base over this."""
    base = options.base or base_of(root)
    commit = _git(root, "rev-parse", "--short", f"{base}^{{commit}}").strip()
    say(f"this tree against {base} ({commit})")
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, ExitStack() as opened:
        work = Path(folder)
        trees = {"base": unpack(root, commit, work / "base"), "this": root}
        asked = {path: _work(path, options, work) for path in options.paths}
        processes = {
            name: opened.enter_context(_process(tree, work / f"{name}.log"))
            for name, tree in trees.items()
        }

        def turn(name: str, path: str) -> float:
            where = {"tree": str(trees[name]), "scratch": str(work)}
            return _ask(processes[name], {**asked[path], **where}, f"{path} of {name}")

        found = {path: _take_turns(path, turn, options, say) for path in options.paths}
    return {
        "base": base,
        "base_commit": commit,
        "ms": {path: f["ms"] for path, f in found.items() if "ms" in f},
        "base_over_this": {path: f["base_over_this"] for path, f in found.items() if "ms" in f},
        "left_out": {path: f["problem"] for path, f in found.items() if "problem" in f},
        "ms_raw": {path: f["raw"] for path, f in found.items() if "ms" in f},
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
    path: str, turn: Callable[[str, str], float], options: RegressionOptions, say: Say
) -> dict[str, Any]:
    """Both trees in turns; a path that one of them cannot run is left out, and why."""
    contestants = {name: partial(turn, name, path) for name in ("base", "this")}
    try:
        for _ in range(options.warmup_rounds):
            for run in contestants.values():
                run()
        turns = side_by_side(contestants, options.rounds)
    except _CannotRun as problem:
        say(f"{path:12} left out: {problem}")
        return {"problem": str(problem)}
    ms, raw = turns.medians, {name: list(values) for name, values in turns.raw.items()}
    ratio = median(b / t for b, t in zip(raw["base"], raw["this"], strict=True))
    say(f"{path:12} {ms['base']:8.1f} -> {ms['this']:8.1f} ms, {ratio:.2f}x")
    return {"ms": ms, "raw": raw, "base_over_this": ratio}


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
        "wide_4kb": ("wide", False, "wide", lambda e: _wide(e, options)),
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


def _wide(epoch: int, options: RegressionOptions) -> pa.Table:
    made = chain_keys(options.wide_rows, seed=options.seed, epoch=epoch, chain=3)
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


def _ask(process: subprocess.Popen[str], work: dict[str, Any], what: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(work) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith(regression_driver.ANSWER):
            told = json.loads(line.removeprefix(regression_driver.ANSWER))
            if "problem" in told:
                raise _CannotRun(f"{what}: {told['problem']}")
            return float(told["ms"])
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
