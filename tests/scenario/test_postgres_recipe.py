"""The guide's PostgreSQL sink, as it is printed, on a real server: every epoch counts once."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.errors import SinkFailed
from headgate.testing import ListSource, run

pg8000 = pytest.importorskip("pg8000.dbapi")
GUIDE = Path(__file__).parents[2] / "docs/guide/recipes.md"
EPOCHS = [[{"word": f"w{(i * i + e) % 5}"} for i in range(12)] for e in range(3)]
Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """A server of our own, on loopback, run by a user without rights: it refuses to be root."""
    program = shutil.which("postgres")
    if program is None:
        pytest.skip("no PostgreSQL is installed here")
    folder = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
    folder.chmod(0o755)
    data, who = folder / "data", {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bin_folder = Path(program).resolve().parent
    subprocess.run(
        [bin_folder / "initdb", "-D", data, "-U", "app", "-A", "trust", "-N"],
        check=True, capture_output=True, cwd=folder, **who,
    )  # fmt: skip
    control = [bin_folder / "pg_ctl", "-D", data, "-w"]
    listen = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder} -F"
    subprocess.run(
        [*control, "-l", folder / "log", "-o", listen, "start"],
        check=True, cwd=folder, stdout=subprocess.DEVNULL, **who,
    )  # fmt: skip
    try:
        yield lambda: pg8000.connect("app", host="127.0.0.1", port=port, database="postgres")
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd=folder,
                       stdout=subprocess.DEVNULL, **who)  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)


def printed() -> Callable[[Connect, list[dict[str, Any]], int], None]:
    """The function that the guide prints."""
    blocks = re.findall(
        r"^```python no-run\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    (code,) = (block for block in blocks if "to_postgres" in block)
    names: dict[str, Any] = {}
    exec(code[: code.index("def connect()")], names)
    found: Callable[[Connect, list[dict[str, Any]], int], None] = names["to_postgres"]
    return found


@pytest.mark.parametrize("fault", ["before", "after", "twice"])
def test_every_epoch_counts_once_whenever_the_sink_dies(
    connect: Connect, fault: str, tmp_path: Path
) -> None:
    write, faults, calls = printed(), [fault], list[int]()
    admin = connect()
    admin.autocommit = True
    admin.cursor().execute("drop table if exists totals, epochs")

    def sink(rows: Any, epoch: int) -> None:
        now = faults.pop() if faults and epoch == 1 else "none"
        if now == "before":
            raise ConnectionError("no database")
        write(connect, rows, epoch)
        calls.append(epoch)
        if now == "twice":
            write(connect, [{**row, "count": -1} for row in rows], epoch)
        if now == "after":
            raise ConnectionError("the driver died")

    def start() -> None:
        flow = hg.Flow("words")
        words = flow.source(ListSource("word string", EPOCHS))
        words.key_by("word").process(hg.Count(), name="count").to(sink, name="pg")
        run(flow, checkpoint=tmp_path / "checkpoint")

    if fault != "twice":
        with pytest.raises(SinkFailed):
            start()
    start()

    cursor = admin.cursor()
    cursor.execute("select word, count from totals")
    wanted: dict[str, int] = {}
    for row in (row for rows in EPOCHS for row in rows):
        wanted[row["word"]] = wanted.get(row["word"], 0) + 1
    assert dict(cursor.fetchall()) == wanted
    assert sorted(set(calls)) == [0, 1, 2] and len(calls) == 3 + (fault == "after")
    admin.close()
