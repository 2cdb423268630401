"""Columns that wait in files: what comes out is the same, and nothing of them stays."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Count, Flow, Sum
from headgate.commit.coordinator import ATTEMPTS_MAX
from headgate.errors import CustodyMismatch, EngineError
from headgate.slot import parking as module
from headgate.slot.parking import ROWS_MIN, SLOTS_MAX, Parking
from headgate.slot.program import Program
from headgate.slot.rows import PARKED, Rows, concat
from headgate.state import kernels
from headgate.testing import ListSource, LocalRun, run
from strategies import examples, quick_folder

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "b": pa.int64(),
        "w": pa.string(),
        "y": pa.binary(),
        "tags": pa.list_(pa.string()),
        "deep": pa.struct({"s": pa.string(), "n": pa.int64()}),
    }
)
WAITING = ("w", "y", "tags", "deep")
LONG = "a long text " * 40
Row = dict[str, Any]


def row(number: int) -> Row:
    return {
        "a": number % 5,
        "b": number % 3,
        "w": None if number % 4 == 0 else LONG + str(number),
        "y": b"" if number % 3 == 0 else bytes([number % 256]) * (number % 50),
        "tags": None if number % 7 == 0 else [str(number), None, LONG][: number % 4],
        "deep": {"s": str(number), "n": number} if number % 2 else None,
    }


def chain(rows: list[list[Row]], between: Callable[[Any], Any] = lambda s: s) -> Flow:
    """Two counts in a row; only the sink reads what is wide."""
    flow = Flow("wide")
    stream = flow.source(ListSource(SCHEMA, rows))
    counted = between(stream.key_by("a").process(Count(emit="rows"), name="first"))
    counted.key_by("b").process(Count(emit="rows"), name="second").to_memory("out")
    return flow


def told(done: LocalRun) -> list[str]:
    return sorted(map(repr, done.rows("out")))


def beside(work: Callable[[], None]) -> Callable[[Any], Any]:
    """A branch of the flow, whose task does something while columns wait."""

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        work()
        return batch

    def branch(stream: Any) -> Any:
        stream.select("a").shuffle().map(look, "a bigint", name="look").to_memory("looked")
        return stream

    return branch


def parked_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint/parked/*"))


@pytest.mark.parametrize("way", ["compiled", "numpy"])
@pytest.mark.parametrize("slots", [1, 3])
def test_rows_are_whole_again_whoever_they_met(
    slots: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of some rows, none, and one: parked and travelling come to the same."""
    if way == "numpy":
        monkeypatch.setattr(kernels, "compiled", None)
    epochs = [[row(n) for n in range(60)], [], [row(61)], [row(n) for n in range(62, 90)]]

    both = [run(chain(epochs), slots=slots, park_bytes=wide) for wide in (0, None)]

    assert told(both[0]) == told(both[1]) == sorted(repr(r) for rows in epochs for r in rows)
    sent = [done.records[0]["bytes_by_distance"] for done in both]
    assert sum(sent[0].values()) < sum(sent[1].values()) / 2


def test_a_union_takes_rows_whose_columns_wait_and_rows_that_have_them() -> None:
    flow = Flow("union")
    left = flow.source(ListSource(SCHEMA, [[row(n) for n in range(40)]]), name="left")
    right = flow.source(ListSource(SCHEMA, [[row(n) for n in range(40, 50)]]), name="right")
    counted = left.key_by("a").process(Count(emit="rows"), name="first")
    both = counted.union(right.map(lambda batch: batch, SCHEMA, name="same"))
    both.key_by("b").process(Count(emit="rows"), name="second").to_memory("out")

    done = run(flow, slots=3, park_bytes=0)

    assert set(WAITING) == {n for names in compiled(flow).parked.on.values() for n in names}
    assert told(done) == sorted(repr(row(n)) for n in range(50))


def test_files_are_private_and_gone_when_their_epoch_ends() -> None:
    with quick_folder() as folder:
        modes: set[int] = set()

        def look() -> None:
            paths = (folder / "checkpoint" / "parked", *parked_in(folder))
            modes.update(stat.S_IMODE(path.stat().st_mode) for path in paths)

        flow = chain([[row(n) for n in range(30)] for _ in range(2)], beside(look))
        done = run(flow, slots=2, park_bytes=0, checkpoint=folder / "checkpoint")

        assert modes == {0o700, 0o600}
        assert len(done.rows("out")) == 60
        assert parked_in(folder) == []


@examples(25)
@example(how="cut", which=0, at=0, bit=0)  # to nothing
@given(
    how=st.sampled_from(["lost", "cut", "changed"]),
    which=st.integers(0, 1),
    at=st.integers(0, 100_000),
    bit=st.integers(0, 7),
)
def test_whatever_becomes_of_a_file_the_epoch_is_run_again_and_right(
    how: str, which: int, at: int, bit: int
) -> None:
    with quick_folder() as folder:
        done: list[str] = []

        def damage() -> None:
            files = parked_in(folder)
            if files and not done:
                file = files[which]
                whole = bytearray(file.read_bytes())
                place = at % len(whole)
                whole[place] ^= 1 << bit
                file.unlink()
                if how != "lost":
                    file.write_bytes(whole if how == "changed" else whole[:place])
                done.append(file.name)

        flow = chain([[row(n) for n in range(30)]], beside(damage))
        out = run(flow, slots=1, park_bytes=0, checkpoint=folder / "checkpoint", check_purity=False)

        assert done
        assert told(out) == sorted(repr(row(n)) for n in range(30))
        retries = [r for r in out.journal if r["kind"] == "retry"]
        assert [r["attempt"] for r in retries] == [0]
        assert done[0] in retries[0]["reason"]


def test_an_epoch_that_fails_leaves_nothing() -> None:
    with quick_folder() as folder:
        seen: list[int] = []

        def lose() -> None:
            files = parked_in(folder)
            seen.append(len(files))
            files[0].unlink()

        flow = chain([[row(n) for n in range(30)]], beside(lose))
        with pytest.raises((CustodyMismatch, EngineError), match="is gone"):
            run(flow, slots=1, park_bytes=0, checkpoint=folder / "checkpoint", check_purity=False)

        assert seen == [2] * ATTEMPTS_MAX
        assert parked_in(folder) == []


@pytest.mark.parametrize("why", ["off", "signed", "many slots", "narrow", "few rows"])
def test_columns_travel_where_waiting_is_not_allowed_or_does_not_pay(why: str) -> None:
    few = why == "few rows"
    settings: dict[str, Any] = {
        "off": {"park_bytes": None},
        "signed": {"park_bytes": 0, "key": "k" * 40},
        "many slots": {"park_bytes": 0, "slots": SLOTS_MAX + 1, "check_purity": False},
        "narrow": {"park_bytes": 100_000},
        "few rows": {"park_bytes": 300},
    }[why]
    with quick_folder() as folder:
        seen: list[int] = []
        rows = [row(n) for n in range(ROWS_MIN // 2 if few else ROWS_MIN)]
        flow = chain([rows], beside(lambda: seen.append(len(parked_in(folder)))))

        done = run(flow, partitions=1, checkpoint=folder / "checkpoint", **settings)

        assert set(seen) == {0}
        assert told(done) == sorted(map(repr, rows))


@pytest.mark.parametrize("wrong", [-1, "x", 1.5])
def test_what_is_no_number_of_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(EngineError, match=f"park_bytes= is {wrong!r}"):
        run(chain([[row(1)]]), park_bytes=wrong)


def test_from_some_bytes_a_row_on_they_wait() -> None:
    with quick_folder() as folder:
        seen: list[int] = []
        rows = [row(n) for n in range(ROWS_MIN)]
        flow = chain([rows], beside(lambda: seen.append(len(parked_in(folder)))))

        run(flow, partitions=1, park_bytes=300, checkpoint=folder / "checkpoint")

        assert set(seen) == {1}


# --- one task -----------------------------------------------------------------------------------


def program() -> Program:
    flow = Flow("f")
    counted = source(flow, SCHEMA).key_by("a").process(Count(emit="rows"), name="first")
    counted.key_by("b").process(Sum("a", emit="rows"), name="second").to_memory("out")
    return compiled(flow)


def test_a_task_run_twice_writes_the_same_file_and_says_the_same(tmp_path: Path) -> None:
    made = program()
    plan = plan_for(made, parking_uri=str(tmp_path / "parked"))
    edge, rows = made.graph.edges[0], Rows(batch_of(range(20)))

    first, again = (Parking(made, plan, None).leaving(edge, rows) for _ in range(2))

    assert first.batch == again.batch
    assert {n: v.tolist() for n, v in first.lineage.items()} == {
        n: v.tolist() for n, v in again.lineage.items()
    }
    assert len(list((tmp_path / "parked").iterdir())) == 1
    assert all(first.batch.column(name).null_count == 20 for name in WAITING)


def test_an_attempt_with_another_plan_does_not_read_what_it_may_not(tmp_path: Path) -> None:
    """Rows of an attempt that parked reach a task whose plan knows no place for files."""
    made = program()
    plan = plan_for(made, parking_uri=str(tmp_path / "parked"))
    rows = Parking(made, plan, None).leaving(made.graph.edges[0], Rows(batch_of(range(20))))
    sink = made.graph.nodes[made.graph.edges[-1].consumer]

    with pytest.raises(CustodyMismatch, match="another plan"):
        Parking(made, plan_for(made), 1).whole(sink, rows)


@examples(60)
@given(st.data())
def test_rows_from_files_and_rows_that_travelled_mix_in_any_order(data: st.DataObject) -> None:
    made = program()
    with quick_folder() as folder:
        plan = plan_for(made, parking_uri=str(folder / "parked"))
        edge = made.graph.edges[0]
        sink = made.graph.nodes[made.graph.edges[-1].consumer]
        numbers = data.draw(st.lists(st.lists(st.integers(0, 99), min_size=1), min_size=1))
        parts = [
            Parking(made, plan, None).leaving(edge, part) if data.draw(st.booleans()) else part
            for part in (Rows(batch_of(some)) for some in numbers)
        ]
        every = [number for some in numbers for number in some]
        chosen = data.draw(st.lists(st.integers(0, len(every) - 1), min_size=1))
        rows = concat(parts).take(pa.array(chosen, pa.int64()).to_numpy())
        reader = Parking(made, plan, 0)
        with pytest.MonkeyPatch.context() as patch:
            if data.draw(st.booleans()):
                patch.setattr(kernels, "compiled", None)
            elif data.draw(st.booleans()):
                patch.setattr(module, "_OFFSET_MAX", 10)  # as if offsets were too small
            whole = reader.whole(sink, rows)

        whole.batch.validate(full=True)
        assert whole.batch.to_pylist() == [row(every[place]) for place in chosen]
        assert not {*whole.lineage} & {*PARKED}


def batch_of(numbers: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(number) for number in numbers], schema=SCHEMA)
