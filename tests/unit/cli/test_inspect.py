"""`headgate inspect` on checkpoints made without a JVM."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.testing import ListSource, run

EPOCHS = [
    [{"region": "oslo", "tag": "#a", "n": 7}, {"region": "lima", "tag": "#b", "n": 8}],
    [{"region": "oslo", "tag": "#b", "n": 7}, {"region": None, "tag": "#a", "n": 7}],
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    flow = hg.Flow("trends")
    posts = flow.source(ListSource("region string, tag string, n bigint", EPOCHS), name="posts")
    regions = posts.key_by("region").process(hg.Count(emit="rows"), name="by_region")
    regions.key_by("tag", "n").process(hg.Count(), name="by_tag").to_memory("out")
    run(flow, slots=3, checkpoint=tmp_path / "ck")
    return str(tmp_path / "ck")


def told(*args: str) -> dict:
    result = CliRunner().invoke(app, ["inspect", *args, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def test_a_checkpoint_tells_its_operators_and_sizes(checkpoint: str) -> None:
    seen = told(checkpoint)

    assert (seen["flow"], seen["epoch"], seen["slots"]) == ("trends", 1, 3)
    rows = {operator["name"]: operator["rows"] for operator in seen["operators"]}
    assert rows == {"by_region": 3, "by_tag": 3}


def test_a_key_is_found_in_the_slot_that_owns_it(checkpoint: str) -> None:
    found = told(checkpoint, "--operator", "by_region", "--key", "oslo")["key"]

    assert found["rows"] == [{"region": "oslo", "count": 2}]
    assert 0 <= found["slot"] < 3


def test_a_key_of_two_columns_is_read_with_their_types(checkpoint: str) -> None:
    found = told(checkpoint, "--operator", "by_tag", "--key", "#b", "--key", "8")["key"]

    assert found["rows"] == [{"tag": "#b", "n": 8, "count": 1}]


def test_null_is_a_key(checkpoint: str) -> None:
    found = told(checkpoint, "--operator", "by_region", "--key", r"\N")["key"]

    assert found["rows"] == [{"region": None, "count": 1}]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_binary_keys_are_shown_and_looked_up_in_hex(tmp_path: Path, kind: pa.DataType) -> None:
    flow = hg.Flow("ids")
    rows = flow.source(ListSource(pa.schema({"id": kind}), [[{"id": b"\x00\xff"}]]))
    rows.key_by("id").process(hg.Count(), name="ids").to_memory("out")
    run(flow, checkpoint=tmp_path)

    found = told(str(tmp_path), "--key", "00ff")["key"]
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path), "--operator", "ids"])
    looked_up = CliRunner().invoke(app, ["inspect", str(tmp_path), "--key", "00FF"])
    wrong = CliRunner().invoke(app, ["inspect", str(tmp_path), "--key", "kate"])

    assert (found["key"], found["rows"]) == (["00ff"], [{"id": "00ff", "count": 1}])
    assert "00ff" in shown.output and looked_up.output.count("00ff") == 2
    assert wrong.exit_code == 1 and "in hex" in wrong.output


def test_numbers_that_json_does_not_have_are_text(tmp_path: Path) -> None:
    flow = hg.Flow("sums")
    rows = flow.source(ListSource("k bigint, v double", [[{"k": 1, "v": float("nan")}]]))
    rows.key_by("k").process(hg.Sum("v"), name="sums").to_memory("out")
    run(flow, checkpoint=tmp_path)

    assert told(str(tmp_path), "--operator", "sums")["rows"] == [{"k": 1, "sum": "NaN"}]


HOSTILE = ["[/foo]", "[link=https://evil.example]here[/link]", "\\[bold]x\\", ":warning:"]
CONTROLS = {"\x1b]0;owned\x07": r"\x1b]0;owned\x07", "a\nb\u202ec\x9b2J": r"a\nb\u202ec\x9b2J"}


@pytest.mark.parametrize(
    ("text", "shown"), [*zip(HOSTILE, HOSTILE, strict=True), *CONTROLS.items()]
)
def test_keys_and_values_are_plain_text_on_a_terminal(
    tmp_path: Path, text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    flow = hg.Flow("names")
    rows = flow.source(ListSource("k string, v string", [[{"k": text, "v": text}]]))
    rows.key_by("k").process(hg.Last("v"), name="last").to_memory("out")
    run(flow, checkpoint=tmp_path)

    for args in (["--operator", "last"], ["--key", text]):
        result = CliRunner().invoke(app, ["inspect", str(tmp_path), *args])

        assert result.exit_code == 0, result.output
        assert result.output.count(shown) >= 2
        styles = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
        assert styles.replace("\n", "").isprintable()


def test_an_unknown_key_has_no_rows(checkpoint: str) -> None:
    result = CliRunner().invoke(
        app, ["inspect", checkpoint, "--operator", "by_region", "--key", "atlantis"]
    )

    assert result.exit_code == 0
    assert "no state" in result.output


def test_an_operator_shows_its_slots_and_first_rows(checkpoint: str) -> None:
    seen = told(checkpoint, "--operator", "by_tag", "--rows", "2")

    assert [operator["name"] for operator in seen["operators"]] == ["by_tag"]
    assert len(seen["rows"]) == 2


def test_the_journal_tail_comes_last(checkpoint: str) -> None:
    seen = told(checkpoint, "--journal", "1")

    assert [(r["kind"], r["epoch"]) for r in seen["journal"]] == [("epoch", 1)]


@pytest.mark.parametrize("args", [[], ["--operator", "by_tag"], ["--journal", "5"]])
def test_people_get_tables(checkpoint: str, args: list[str]) -> None:
    result = CliRunner().invoke(app, ["inspect", checkpoint, *args])

    assert result.exit_code == 0, result.output
    assert "by_tag" in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--operator", "nobody"], "by_region, by_tag"),
        (["--key", "oslo"], "--key needs --operator"),
        (["--operator", "by_tag", "--key", "#a"], "give 2 values"),
        (["--operator", "by_tag", "--key", "#a", "--key", "many"], "is not a int64"),
    ],
)
def test_mistakes_are_told_in_one_panel(checkpoint: str, args: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["inspect", checkpoint, *args])

    assert result.exit_code == 1
    assert said in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_other_folders_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    missing = CliRunner().invoke(app, ["inspect", str(tmp_path / "none")])

    assert (result.exit_code, missing.exit_code) == (1, 1)
    assert "not a headgate checkpoint" in " ".join(result.output.replace("│", " ").split())
    assert "there is no folder" in missing.output


@pytest.mark.parametrize("content", [b"", b'{"digest": "0"', b"{}"])
def test_a_damaged_manifest_is_told_plainly(checkpoint: str, content: bytes) -> None:
    (Path(checkpoint) / "manifests" / "e000000001-g000000001.json").write_bytes(content)

    result = CliRunner().invoke(app, ["inspect", checkpoint])

    said = " ".join(result.output.replace("│", "").split())
    assert result.exit_code == 1
    assert "e000000001-g000000001.json" in said.replace(" ", "")
    assert "the last whole one is of epoch 0" in said
    assert "Traceback" not in said
