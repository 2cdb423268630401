"""A source, an operator and a sink of one name in one flow are three things, whatever happens.

The driver dies, slots come and go, each gets another name or goes: what is held and put out stays
that of a plain fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import app
from headgate.commit import faults
from headgate.commit.inspection import Inspection
from headgate.errors import DeclarationError, IncompatibleFlow, UnknownName
from headgate.offline.report import render
from headgate.testing import ListSource, LocalRun, run

Rows = list[dict[str, Any]]
START = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The driver is dead."""


def rows_of(epoch: int) -> Rows:
    return [
        {"k": i % 5, "v": i + 10 * epoch, "t": START + timedelta(minutes=epoch, seconds=i % 50)}
        for i in range(40)
    ]


def declared(
    epochs: int, source: str = "orders", operator: str = "orders", sink: str = "orders"
) -> hg.Flow:
    flow = hg.Flow("shop")
    given = ListSource("k bigint, v bigint, t timestamp", [rows_of(n) for n in range(epochs)])
    rows = flow.source(given, name=source, event_time="t", watermark="10 seconds")
    summed = rows.key_by("k").process(hg.Sum("v"), name=operator)
    summed.to_memory(sink)
    rows.select("k").to_table("rows")
    return flow


def sums(epochs: int, first: int = 0) -> dict[int, int]:
    total = dict.fromkeys(range(5), 0)
    for epoch in range(first, epochs):
        for row in rows_of(epoch):
            total[row["k"]] += row["v"]
    return total


def held(done: LocalRun, operator: str = "orders") -> dict[int, int]:
    return {row["k"]: row["sum"] for row in done.state(operator)}


def latest_us(epochs: int) -> int:
    return int((START + timedelta(minutes=epochs - 1, seconds=39)).timestamp() * 1e6)


def last_time(place: Path, source: str) -> Any:
    manifest = Inspection(str(place)).manifest
    assert manifest is not None
    return manifest.sources[source].latest_us


@contextmanager
def dying_at(point: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What runs here is killed at that point of epoch 2."""

    def die(at: str, epoch: int) -> None:
        if (at, epoch) == (point, 2):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", die)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("point", ["tasks-done", "manifest-written", "sink-called"])
def test_three_of_one_name_go_on_where_they_were_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with dying_at(point, monkeypatch):
        run(declared(4), checkpoint=tmp_path, slots=2)
    done = run(declared(5), checkpoint=tmp_path, slots=3)

    assert held(done) == sums(5)
    plain = run(declared(5, "a", "b", "c"))
    by_value = sorted(row["sum"] for epoch, row in plain.outputs["c"] if epoch >= 3)
    assert sorted(r["sum"] for epoch, r in done.outputs["orders"] if epoch >= 3) == by_value
    assert last_time(tmp_path, "orders") == latest_us(5)


def test_the_journal_and_the_views_tell_them_apart(tmp_path: Path) -> None:
    done = run(declared(3), checkpoint=tmp_path)

    facts = done.records[-1]
    assert facts["source_rows"] == {"orders": 40}
    assert facts["operator_rows"]["orders"] == facts["operator_rows"]["orders (source)"] > 0
    assert facts["sink_rows"] == {"orders": 5, "rows": 40}
    shown = repr(declared(1).explain())
    assert "orders (source)" in shown and "by k" in shown
    seen = Inspection(str(tmp_path))
    page = render(seen.describe, seen.journal, title="t")
    assert page.count(">orders<") >= 3
    told = CliRunner().invoke(app, ["inspect", str(tmp_path), "--operator", "orders", "--key", "3"])
    assert told.exit_code == 0 and str(sums(3)[3]) in told.output.replace(",", "")


def test_an_operator_that_comes_or_goes_leaves_the_source_of_its_name_alone(tmp_path: Path) -> None:
    """As every checkpoint of before: no operator had a source's name then."""
    run(declared(2, operator="totals"), checkpoint=tmp_path)

    says = {"renamed": {"operator:totals": "orders"}}
    done = run(declared(3), checkpoint=tmp_path, **says)
    assert held(done) == sums(3) and last_time(tmp_path, "orders") == latest_us(3)
    gone = ["operator:orders"]
    done = run(declared(4, operator="other"), checkpoint=tmp_path, drop_state=gone)

    assert held(done, "other") == sums(4, first=3)
    assert last_time(tmp_path, "orders") == latest_us(4)


@pytest.mark.parametrize(
    ("renamed", "source", "operator"),
    [
        ({"operator:orders": "totals"}, "orders", "totals"),
        ({"source:orders": "in"}, "in", "orders"),
        ({"operator:orders": "totals", "source:orders": "in"}, "in", "totals"),
        ({"operator:orders": "new", "source:orders": "new"}, "new", "new"),
        ({"orders": "totals"}, "orders", "totals"),
        ({"orders": "in"}, "in", "orders"),
    ],
)
def test_each_may_get_another_name(
    tmp_path: Path, renamed: dict[str, str], source: str, operator: str
) -> None:
    run(declared(2), checkpoint=tmp_path)

    for epochs in (3, 4):  # what has been done is not done again
        done = run(
            declared(epochs, source, operator), checkpoint=tmp_path, slots=epochs, renamed=renamed
        )
        assert held(done, operator) == sums(epochs)
    assert done.coordinator.last is not None and {*done.coordinator.last.sources} == {source}
    assert last_time(tmp_path, source) == latest_us(4)


@pytest.mark.parametrize("point", [p for p in faults.CRASH_POINTS if p != "file-published"])
def test_new_names_hold_wherever_the_start_that_gave_them_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """A source and an operator of a checkpoint that is there; old names go on if none committed."""
    run(declared(2, "orders", "totals"), checkpoint=tmp_path, slots=2)
    names = {"source:orders": "in", "operator:totals": "in"}

    with dying_at(point, monkeypatch):
        run(declared(3, "in", "in"), checkpoint=tmp_path, slots=3, renamed=names)
    committed = last_time(tmp_path, "in" if _is_after(point) else "orders") == latest_us(3)
    assert committed == _is_after(point)
    if not committed:
        done = run(declared(3, "orders", "totals"), checkpoint=tmp_path, slots=1)
        assert held(done, "totals") == sums(3)
    done = run(declared(4, "in", "in"), checkpoint=tmp_path, slots=3, renamed=names)

    assert held(done, "in") == sums(4)
    assert done.coordinator.last is not None and {*done.coordinator.last.sources} == {"in"}


def _is_after(point: str) -> bool:
    return faults.CRASH_POINTS.index(point) >= faults.CRASH_POINTS.index("manifest-written")


@pytest.mark.parametrize(
    ("says", "error", "told"),
    [
        ({"renamed": {"orders": "new"}}, DeclarationError, r"\{'operator:orders': 'new'\}"),
        ({"renamed": {"orders": "source:new"}}, DeclarationError, "give 'new' as the new one"),
        ({"drop_state": ["orders"]}, DeclarationError, "'operator:orders' or 'sink:orders'"),
        ({}, IncompatibleFlow, r"renamed=\{'operator:orders': 'its name'\}"),
        ({}, IncompatibleFlow, r"drop_state=\['operator:orders'\]"),
    ],
)
def test_what_could_mean_two_things_is_refused_with_the_way_out(
    tmp_path: Path, says: dict[str, Any], error: type[Exception], told: str
) -> None:
    run(declared(2), checkpoint=tmp_path)

    with pytest.raises(error, match=told):
        run(declared(3, "new", "new"), checkpoint=tmp_path, **says)
    assert held(run(declared(3), checkpoint=tmp_path)) == sums(3)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ({"renamed": {"sink:orders": "new"}}, "is another sink"),
        ({"renamed": {"source:typo": "other"}}, "neither among its sources"),
        ({"renamed": {"operator:rows": "other"}}, "neither among its operators"),
        ({"drop_state": ["source:orders"]}, "no such operator or sink"),
        ({"drop_state": ["sink:typo"]}, "names 'sink:typo'"),
    ],
)
def test_a_kind_that_has_nothing_of_that_name_is_refused(
    tmp_path: Path, says: dict[str, Any], told: str
) -> None:
    run(declared(2), checkpoint=tmp_path)

    with pytest.raises(UnknownName, match=told):
        run(declared(3), checkpoint=tmp_path, **says)


def test_what_the_flow_still_has_is_not_dropped(tmp_path: Path) -> None:
    run(declared(2), checkpoint=tmp_path)

    with pytest.raises(DeclarationError, match="'operator:orders', which the flow still has"):
        run(declared(3), checkpoint=tmp_path, drop_state=["orders", "operator:orders"])
    done = run(declared(3), checkpoint=tmp_path, drop_state=["orders"])  # the sink's rows
    assert held(done) == sums(3)


def test_two_operators_cannot_become_one(tmp_path: Path) -> None:
    def two(epochs: int, *names: str) -> hg.Flow:
        flow = declared(epochs)
        other = flow.source(ListSource("k bigint", [[{"k": 1}]] * epochs), name="other")
        for name in names:
            other.key_by("k").process(hg.Count(), name=name).to_memory(f"of_{name}")
        return flow

    run(two(1, "a", "b"), checkpoint=tmp_path)
    with pytest.raises(DeclarationError, match="only one of these operators can be called so"):
        run(two(2, "c"), checkpoint=tmp_path, renamed={"operator:a": "c", "b": "c"})
