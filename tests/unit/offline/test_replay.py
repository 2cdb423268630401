"""Replay: rows go where the rules say, figures are what a row-by-row count gives."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError, SchemaMismatch, UnknownColumn
from headgate.offline import replay_owners
from headgate.offline.replay import replay
from headgate.offline.replay_owners import Owners, Trace, read_trace
from headgate.offline.replay_planners import OWN, ReplayOptions
from headgate.planner.registry import registered

DATA = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[4] / "shared" / "data"))


def worlds(rows: int, *, seed: int = 0, drift: bool = False) -> Trace:
    """Six worlds whose keys only meet each other; with drift, b keys are new all the time."""
    rng = np.random.default_rng(seed)
    world = rng.integers(0, 6, rows)
    a = world * 100 + rng.integers(0, 10, rows)
    b = world * 100_000 + rng.integers(0, 30, rows)
    if drift:
        b = b + np.arange(rows) // 400 * 50
    return Trace.of({"a": pa.array(a), "b": pa.array(b)})


def options(planner: str, **more: object) -> ReplayOptions:
    return ReplayOptions(planner, **{"window": 2_000, "period": 1_000, "epoch": 250, **more})


def test_hash_meets_by_chance_and_plans_by_design():
    trace = worlds(8_000)
    found = {name: replay(trace, options(name)) for name in (*OWN, *registered("keys"))}

    assert 0.05 < found["hash"]["locality"] < 0.35
    assert found["worst-case"]["locality"] < 0.02
    for name in ("offline", "online", "online-kway", "headgate", "oracle"):
        assert found[name]["locality"] > 0.9, name
        assert max(found[name]["imbalance"]) < 1.25, name
    assert found["hash"]["moves_per_period"] == found["offline"]["moves_per_period"] == 0
    assert found["headgate"]["moves_per_period"] < 20


def test_under_drift_new_keys_are_born_where_their_rows_are():
    trace = worlds(10_000, drift=True)
    born = replay(trace, options("headgate"))
    strict = replay(trace, options("headgate", strict=True))
    online = replay(trace, options("online"))

    assert born["locality"] > 0.95
    assert online["locality"] < strict["locality"] < born["locality"]
    assert born["merge_rows_per_row"] > 0 and born["adoptions_per_period"] > 50
    assert strict["merge_rows_per_row"] == 0
    assert born["moves_per_period"] < online["moves_per_period"] / 5


def test_the_record_has_the_promised_fields():
    found = replay(worlds(5_500), options("headgate", seed=3))

    assert found["periods"] == 3 == len(found["per_period"])
    assert (found["rows_measured"], found["rows_unused"]) == (3_000, 500)
    for name in ("imbalance", "imbalance_epoch", "imbalance_floor"):
        assert len(found[name]) == 2
        assert min(found[name]) >= 1
    assert found["plan_seconds_max"] >= 0
    assert found["settings"]["seed"] == 3 and found["planner"] == "headgate"
    mean = np.mean([p["locality"] for p in found["per_period"]])
    assert found["locality"] == pytest.approx(mean)


def test_a_seed_gives_the_same_replay_twice():
    trace = worlds(6_000, drift=True)
    one, two = (replay(trace, options("headgate", seed=5)) for _ in range(2))
    for field in ("locality", "imbalance", "moves_per_period", "merge_rows_per_row"):
        assert one[field] == two[field]


def test_a_chain_of_three_keys_counts_both_hops():
    rng = np.random.default_rng(2)
    world = rng.integers(0, 6, 6_000)
    columns = {n: pa.array(world * 1_000 + rng.integers(0, 9, 6_000)) for n in "abc"}
    found = replay(Trace.of(columns), options("headgate"))

    assert found["locality"] > 0.95
    assert len(found["imbalance"]) == 3
    hashed = replay(Trace.of(columns), options("hash"))
    assert 0.05 < hashed["locality"] < 0.35


def test_the_floor_is_what_the_heaviest_key_forces():
    a = np.where(np.arange(4_000) % 2 == 0, 7, np.arange(4_000) % 90)
    trace = Trace.of({"a": pa.array(a), "b": pa.array(np.arange(4_000) % 60)})
    found = replay(trace, options("hash"))

    assert found["imbalance_floor"][0] == pytest.approx(6 * 0.5, rel=0.05)
    assert found["imbalance_floor"][1] == 1.0
    assert found["imbalance"][0] >= found["imbalance_floor"][0]


@pytest.mark.parametrize("epoch", [300, 1_000, 5_000])
def test_epochs_need_not_divide_the_period(epoch):
    found = replay(worlds(5_000), options("headgate", epoch=epoch))
    assert found["periods"] == 3
    assert found["locality"] > 0.9


def test_large_epochs_go_through_the_slots_sketches(monkeypatch):
    monkeypatch.setattr(replay_owners, "SKETCH_PAIRS", 200)
    trace = worlds(8_000)
    owners = Owners(trace, 6, born_local=True)
    epoch = owners.route(0, 4_000)
    (bounded,) = owners.seen_pairs(epoch)
    truth = Counter(
        zip(
            trace.keys[0].h[trace.keys[0].number[:4_000]].tolist(),
            trace.keys[1].h[trace.keys[1].number[:4_000]].tolist(),
            strict=True,
        )
    )

    assert len(bounded.rows) <= 6 * 200
    for a, b, rows in zip(bounded.a.tolist(), bounded.b.tolist(), bounded.rows, strict=True):
        assert rows <= truth[a, b]
    assert all(len(keys.h) <= 6 * 200 for keys in owners.seen_keys(epoch))
    assert replay(trace, options("headgate", epoch=1_000))["locality"] > 0.9


# --- the rules, against a row-by-row model ----------------------------------------------------
class Model:
    """Born local and strict routing, one row at a time."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners

    def slots(self, row: int) -> list[int]:
        o = self.owners
        numbers = [int(c.number[row]) for c in o.trace.keys]
        entry = [int(e[n]) for e, n in zip(o.entry, numbers, strict=True)]
        home = [int(h[n]) for h, n in zip(o.home, numbers, strict=True)]
        known = [e for e in (entry if o.born_local else entry[:1]) if e >= 0]
        found = [known[0] if known else home[0]]
        for k in range(1, len(entry)):
            found.append(entry[k] if entry[k] >= 0 else found[-1] if o.born_local else home[k])
        return found


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=40),
    entries=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 3))),
    born_local=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_rows_go_where_the_rules_say(rows, entries, born_local):
    columns = {f"k{i}": pa.array([row[i] for row in rows]) for i in range(3)}
    owners = Owners(Trace.of(columns), 4, born_local=born_local)
    for k, number, slot in entries:
        if number < len(owners.entry[k]):
            owners.entry[k][number] = slot
    model = Model(owners)
    epoch = owners.route(0, len(rows))

    expected = [model.slots(i) for i in range(len(rows))]
    assert [list(s) for s in zip(*epoch.slot, strict=True)] == expected
    assert epoch.local_pairs == sum((s[0] == s[1]) + (s[1] == s[2]) for s in expected)
    merges = {
        (k, int(c.number[i]), expected[i][k])
        for k, c in enumerate(owners.trace.keys)
        for i in range(len(rows))
        if owners.born_local
        and owners.entry[k][c.number[i]] < 0
        and owners.home[k][c.number[i]] != expected[i][k]
    }
    assert owners.merge_rows(epoch) == len(merges)
    for k, told in enumerate(owners.seen_keys(epoch)):
        number = owners.trace.keys[k].number
        assert told.rows.sum() == len(rows)
        for h, count, slot, newborn in zip(*told, strict=True):
            n = int(np.searchsorted(owners.trace.keys[k].h, h))
            mine = [expected[i][k] for i in range(len(rows)) if number[i] == n]
            assert count == len(mine)
            assert newborn == (owners.born_local and owners.entry[k][n] < 0)
            assert mine.count(int(slot)) == max(Counter(mine).values())


def test_moves_are_changes_of_owner_of_keys_seen_before():
    owners = Owners(worlds(100), 6, born_local=True)
    home = owners.home[0]
    numbers = np.array([0, 1, 2])
    owners.seen[0][[0, 1]] = True
    target = home[numbers].copy()
    target[0] = (target[0] + 1) % 6

    assert owners.install(0, numbers, target) == (1, 1)  # 0 left its hash slot; 2 is new
    assert owners.install(0, numbers[:1], np.array([-1], np.int32)) == (1, 0)  # and back home
    assert owners.install(0, numbers[:1], home[:1]) == (0, 0)


# --- reading ----------------------------------------------------------------------------------
def test_any_key_type_null_included_and_time_order(tmp_path):
    day = datetime.date(2024, 1, 1)
    table = pa.table(
        {
            "t": [3, 1, 2, 1],
            "name": ["x", None, "y", "z"],
            "day": [day, day, None, datetime.date(2024, 1, 2)],
            "code": pa.array(["p", "q", "p", None]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    plain = read_trace(tmp_path / "t.parquet", ["name", "day", "code"])
    by_time = read_trace(tmp_path / "t.parquet", ["name", "day", "code"], "t")

    assert [len(c.h) for c in plain.keys] == [4, 3, 3]
    assert by_time.keys[0].number.tolist() == plain.keys[0].number[[1, 3, 2, 0]].tolist()


@pytest.mark.parametrize(
    ("keys", "time", "kind", "said"),
    [
        (["a", "c"], None, UnknownColumn, "it has a, b"),
        (["a", "b"], "when", UnknownColumn, "no column 'when'"),
        (["a"], None, HeadgateError, "at least two keys"),
        (["a", "a"], None, HeadgateError, "named twice"),
    ],
)
def test_wrong_columns_are_told(tmp_path, keys, time, kind, said):
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), tmp_path / "t.parquet")
    with pytest.raises(kind, match=said):
        read_trace(tmp_path / "t.parquet", keys, time)


def test_a_column_that_cannot_be_a_key_is_named(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": [[3], [4, 5]]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaMismatch, match="'b' of type list"):
        read_trace(tmp_path / "t.parquet", ["a", "b"])


def test_files_that_are_not_there_or_not_parquet(tmp_path):
    with pytest.raises(HeadgateError, match="there is no file"):
        read_trace(tmp_path / "none.parquet", ["a", "b"])
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(HeadgateError, match="cannot be read as Parquet"):
        read_trace(tmp_path / "text.parquet", ["a", "b"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"window": 4_500}, "too few for a window"),
        ({"planner": "magic"}, "there are hash, headgate, oracle"),
        ({"epoch": 0}, "epoch is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"alpha": 0.5}, "alpha is 0.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(HeadgateError, match=said):
        replay(worlds(5_000), options(**{"planner": "headgate", **wrong}))


def test_the_tate_pairs_reach_their_figures():
    """The smallest of the real traces; all of them: docs/decisions/0011."""
    path = DATA / "tate_region_tag_pairs.parquet"
    if not path.exists():
        pytest.skip(f"no data: {path} is absent (set HEADGATE_DATA)")
    trace = read_trace(path, ["region", "tag"])
    ours, online = (
        replay(trace, ReplayOptions(name, 20_000, 5_000, seed=1)) for name in ("headgate", "online")
    )

    assert ours["locality"] > online["locality"] + 0.03
    assert ours["locality"] > 0.37
    assert max(ours["imbalance"]) < 1.12
    assert ours["moves_per_period"] < online["moves_per_period"] / 5
