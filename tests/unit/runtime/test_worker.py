"""Warm copies of a killed run go with the next one; those of a live run stay."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Count, Flow
from headgate.runtime import worker
from headgate.runtime.worker import OWNER, _warm_dir, born, claim


def warm_of(folder: Path, name: str, **owner: object) -> Path:
    """A folder of Spark's with a warm copy and something of Spark's own in it."""
    warm = folder / f"blockmgr-{name}" / "headgate-7" / "count"
    warm.mkdir(parents=True)
    (warm / "00000.lock").touch()
    (warm.parents[1] / "shuffle_0").touch()
    told = {"boot": boot(), "namespace": namespace(), "pid": os.getpid(), **owner}
    (warm.parents[1] / OWNER).write_text(json.dumps({"born": born(int(str(told["pid"]))), **told}))
    return warm


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "blockmgr-mine" / "headgate-7").mkdir(parents=True)
    return str(tmp_path / "blockmgr-mine")


def test_what_a_dead_jvm_left_is_removed_and_spark_s_own_files_stay(
    tmp_path: Path, mine: str
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = [
        warm_of(tmp_path, "killed", pid=ended.pid, born="5"),
        warm_of(tmp_path, "reused", born="5"),  # its pid is another process's by now
        warm_of(tmp_path, "before-boot", boot="another"),
    ]

    claim(mine)

    for warm in dead:
        assert os.listdir(warm.parents[1]) == ["shuffle_0"]


def test_what_is_alive_or_cannot_be_told_stays(tmp_path: Path, mine: str) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = [
        warm_of(tmp_path, "alive"),
        warm_of(tmp_path, "container", pid=ended.pid, born="5", namespace="pid:[1]"),
    ]
    for name, told in (("cut", '{"boot": "a'), ("other", "[]"), ("bare", '{"boot": 1')):
        kept.append(warm_of(tmp_path, name))
        (kept[-1].parents[1] / OWNER).write_text(told)
    elsewhere = warm_of(tmp_path / "elsewhere", "killed", boot="another")
    (tmp_path / "blockmgr-link").symlink_to(elsewhere.parents[1])

    claim(mine)

    assert all((warm / "00000.lock").exists() for warm in [*kept, elsewhere])


WORKER = """
import sys
from headgate.runtime.worker import claim
claim(sys.argv[1])
claim(sys.argv[1])
print("claimed", flush=True)
"""


def test_a_folder_is_that_of_the_process_above_the_workers_and_stays_claimed(mine: str) -> None:
    """A shell stands for the JVM: this process may have none above it that can be looked at."""
    command = ["sh", "-c", '"$0" "$@"; read line', sys.executable, "-c", WORKER, mine]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as above:
        assert above.stdout is not None and above.stdout.readline() == b"claimed\n"
        owner = json.loads((Path(mine) / OWNER).read_text())
        assert (owner["pid"], owner["born"]) == (above.pid, born(above.pid))

    assert os.listdir(mine) == ["headgate-7", OWNER] or os.listdir(mine) == [OWNER, "headgate-7"]


def test_every_flow_and_user_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow("f")
    source(flow, "k bigint").key_by("k").process(Count()).to_memory("out")
    plan = replace(plan_for(compiled(flow), 1), warm_dir=str(tmp_path), storage_uri="file:/a")
    mine = _warm_dir(plan)
    other_flow = _warm_dir(replace(plan, storage_uri="file:/b"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    other_user = _warm_dir(plan)

    folders = {mine, other_flow, other_user}
    assert len(folders) == 3
    assert all(folder is not None and Path(folder).parent == tmp_path for folder in folders)


class Loop:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    worker._programs.clear()
    gc.unfreeze()


def _load(name: str) -> Any:
    broadcast = cast(Any, SimpleNamespace(value=pickle.dumps(name)))
    return worker._program(broadcast, name)


def test_a_loaded_program_is_kept_out_of_collections() -> None:
    assert _load("first") == "first"
    frozen = gc.get_freeze_count()
    assert frozen > 10_000  # modules, mostly
    assert _load("first") == "first"
    assert gc.get_freeze_count() <= frozen  # once per program, not per task; some may be freed


def test_what_an_earlier_program_left_behind_goes_when_the_next_is_loaded() -> None:
    garbage = Loop()
    gone = weakref.ref(garbage)
    _load("first")
    del garbage
    gc.collect()
    assert gone() is not None  # frozen while it was alive
    _load("second")
    assert gone() is None


def test_flows_that_take_turns_in_a_worker_are_loaded_once_and_no_more_than_a_few_are_kept() -> (
    None
):
    names = [f"flow {number}" for number in range(worker.PROGRAMS_MAX)]
    loaded = [_load(name) for name in names]

    assert all(_load(name) is program for name, program in zip(names, loaded, strict=True))
    _load("one more")
    assert list(worker._programs) == [*names[1:], "one more"]
