"""Warm copies of a killed run go with the next one; those of a live run stay."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from headgate.runtime.leftovers import OWNER, born, claim


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


def test_a_folder_is_that_of_the_process_above_the_workers_and_stays_claimed(mine: str) -> None:
    claim(mine)
    claim(mine)

    owner = json.loads((Path(mine) / OWNER).read_text())
    assert owner["born"] == born(owner["pid"]) and owner["pid"] != os.getpid()
    assert os.listdir(mine) == ["headgate-7", OWNER] or os.listdir(mine) == [OWNER, "headgate-7"]
