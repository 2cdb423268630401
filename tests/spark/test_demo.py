"""The demo and the examples, small, on a real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mock_kafka import mock_broker
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def headgate(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would: in a process of its own, in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "headgate.cli", *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "HEADGATE_MASTER": "local[2]"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_demo_ends_with_a_checked_result_and_a_report(tmp_path: Path) -> None:
    small = ["--rows-per-epoch", "2000", "--epochs", "3", "--slots", "3", "--seed", "5"]

    done = headgate(tmp_path, "demo", *small, "--json", "-")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["check"]["agrees"]
    assert told["check"]["rows"] == told["run"]["rows"] == 6000
    assert [epoch["epoch"] for epoch in told["epochs"]] == [0, 1, 2]
    assert "WARN" not in done.stderr
    out = tmp_path / "artifacts" / "demo"
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 8
    assert "http" not in page

    seen = headgate(tmp_path, "inspect", str(out / "checkpoint"), "--json")
    operators = {operator["name"]: operator for operator in json.loads(seen.stdout)["operators"]}
    assert operators["by_hashtag"]["rows"] == told["check"]["hashtags"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    ["wordcount", "trends", "cards", "sensors", "auctions", "trades", "linear_road", "sentiment"],
)
def test_an_example_runs_from_its_file(example: str, tmp_path: Path) -> None:
    target = f"{ROOT / 'examples' / example}.py:flow"

    done = headgate(tmp_path, "run", target, "--slots", "2", "--epochs", "3", "--json", "f.json")

    assert done.returncode == 0, done.stderr
    epochs = json.loads((tmp_path / "f.json").read_text())["epochs"]
    assert sum(epoch["rows"] for epoch in epochs) > 0


@pytest.mark.slow
def test_the_example_with_kafka_sends_every_epoch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip(
        "confluent_kafka", reason="it needs confluent-kafka: pip install 'headgate[kafka]'"
    )
    target = f"{ROOT / 'examples' / 'turnover.py'}:flow"
    orders = [b'{"country": "%s", "cents": %d}' % (b"at" if i % 2 else b"de", i) for i in range(9)]
    with mock_broker() as broker:
        monkeypatch.setenv("KAFKA_SERVERS", broker)
        quiet = {"bootstrap.servers": broker, "log_level": 0}
        for more in (orders[:5], [*orders[5:], b"no order"], []):
            producer = kafka.Producer(quiet)
            for order in more:
                producer.produce("orders", order)
            assert producer.flush(30) == 0
            done = headgate(tmp_path, "run", target, "--slots", "2", "--once")
            assert done.returncode == 0, done.stderr

        reader = kafka.Consumer({**quiet, "group.id": "test", "isolation.level": "read_committed"})
        reader.assign([kafka.TopicPartition("turnover", n, 0) for n in range(4)])
        found = []
        while len(found) < 4 and (message := reader.poll(10)) is not None:
            found.append((message.key(), json.loads(message.value())["cents"]))
        extra = reader.poll(1)
        reader.close()

    assert sorted(found) == [(b"at", 4), (b"at", 16), (b"de", 6), (b"de", 20)]
    assert extra is None, "an epoch was sent twice"


def test_an_error_of_user_code_is_one_panel(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import headgate as hg\n"
        "def broken(row):\n"
        "    raise ValueError('no such fish')\n"
        "def flow(spark):\n"
        "    flow = hg.Flow('broken')\n"
        "    rows = flow.source(spark.range(10), name='rows')\n"
        "    rows.map_rows(broken, 'id bigint', name='cook').to_console()\n"
        "    return flow\n"
    )

    done = headgate(tmp_path, "run", "app.py:flow", "--slots", "2")

    assert done.returncode == 1
    assert "no such fish" in done.stderr and "cook" in done.stderr
    assert "Traceback" not in done.stderr
