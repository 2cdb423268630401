"""Joins against every pair of rows, in plain Python: kinds, outer sides, epochs, slots."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

import headgate as hg
from headgate.errors import DeclarationError
from headgate.testing import ListSource, ManualClock, run
from unit.operator.join_oracle import HOWS, KINDS, LEFT, RIGHT, START, draw, expected, flow_of, told


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_join_finds_each_pair_once(kind, how):
    for seed in range(2):
        left, right = draw(seed)
        flow = flow_of(left, right, how=how, **KINDS[kind])
        got = told(run(flow, slots=1 + seed, input_ends=True, check_purity=seed > 0).rows("out"))
        assert got == expected(left, right, kind, how)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_as_of_finds_what_held_at_the_time_of_a_row(how):
    for seed in range(2):
        left, right = draw(seed)
        flow = flow_of(left, right, how=how, as_of=True)
        rows = run(flow, slots=1 + seed, input_ends=True, check_purity=seed > 0).rows("out")
        assert Counter((r["k"], r["v"], r["w"]) for r in rows) == as_of_expected(left, right, how)


def as_of_expected(left, right, how):
    known = [row for rows in right for row in rows if row["id"] is not None]
    found = Counter()
    for row in [row for rows in left for row in rows]:
        held = [b for b in known if b["id"] == row["k"] and b["at"] <= row["t"]]
        latest = max(held, key=lambda b: b["at"], default=None)
        ties = [b for b in held if b["at"] == latest["at"]]
        if held or how == "left":
            found[row["k"], row["v"], ties[-1]["w"] if held else None] += 1
    return found


def test_a_deleted_value_holds_no_longer():
    flow = hg.Flow("rates")
    at = [START + timedelta(seconds=n) for n in range(10)]
    orders = [[{"k": 1, "t": at[2]}, {"k": 1, "t": at[5]}, {"k": 1, "t": at[8]}]]
    rates = [
        [{"k": 1, "at": at[4], "change": "delete", "rate": None}],
        [
            {"k": 1, "at": at[7], "change": "insert", "rate": 3},
            {"k": 1, "at": at[1], "change": "insert", "rate": 2},
        ],
    ]
    a = flow.source(ListSource("k bigint, t timestamp", orders), event_time="t", watermark="1 hour")
    b = flow.source(
        ListSource("k bigint, at timestamp, change string, rate bigint", rates),
        event_time="at",
        watermark="1 hour",
    )
    a.key_by("k").join(b.key_by("k"), as_of=True, how="left").to_memory("out")
    rows = sorted(run(flow, input_ends=True).rows("out"), key=lambda row: row["t"])
    assert [row["rate"] for row in rows] == [2, None, 3]


def test_state_goes_when_the_watermark_has_passed_it():
    rows = [[{"k": n % 3, "v": str(n), "t": START + timedelta(seconds=30 * n)}] for n in range(40)]
    other = [
        [{"id": n % 2, "w": str(n), "at": START + timedelta(seconds=30 * n)}] for n in range(40)
    ]
    for join in (KINDS["interval"], KINDS["tumbling"], {"as_of": True}):
        done = run(flow_of(rows, other, delay="1 minute", **join), check_purity=False)
        held = sum(row["left_count"] + row["right_count"] for row in done.state("join"))
        assert 0 < held < 16, (join, held)


def test_rows_of_a_regular_join_are_forgotten_after_their_ttl():
    left = [[{"k": 1, "v": "a", "t": START}], [], [{"k": 1, "v": "b", "t": START}]]
    right = [[], [], [{"id": 1, "w": "x", "at": START}]]
    clock = ManualClock()
    flow = flow_of(left, right, ttl="10 seconds")
    done = run(flow, clock=clock, before_epoch=lambda epoch: clock.advance(8_000))
    assert [row["v"] for row in done.rows("out")] == ["b"]


def test_a_late_row_is_counted_and_meets_nobody():
    left = [[], [], [], [{"k": 1, "v": "late", "t": START}]]
    right = [
        [{"id": 1, "w": "x", "at": START}],
        [{"id": 1, "w": "y", "at": START + timedelta(hours=1)}],
        [{"id": 1, "w": "z", "at": START + timedelta(hours=1)}],
        [],
    ]
    left[0].append({"k": 2, "v": "early", "t": START + timedelta(hours=1)})
    flow = flow_of(left, right, delay="1 minute", within=("-1 minute", "1 minute"), how="left")
    done = run(flow, input_ends=True)
    assert [row["v"] for row in done.rows("out")] == ["early"]
    assert done.journal[3]["late_rows"] == {"join": 1}


def near_on_one_side(stream, name):
    columns = {"k": ("k", "v"), "id": ("id", "w")}[name]
    return stream.key_by(*columns, near=columns[1:] if name == "k" else ())


MINUTE = hg.Tumbling("1 minute", time="t")
SECOND = ("0 seconds", "1 second")


@pytest.mark.parametrize(
    ("join", "says"),
    [
        ({"within": ("0 seconds", "-1 seconds")}, "ends before it begins"),
        (
            {"within": SECOND, "window": MINUTE},
            "two things",
        ),
        ({"within": SECOND, "ttl": "1 second"}, "leave it out"),
        ({"as_of": True, "how": "full"}, "'inner' or 'left'"),
        ({"how": "outer"}, "inner"),
        ({"window": hg.Tumbling("1 second", time=None)}, "event time"),
        ({"key_by": lambda s, n: s.key_by(n, grouping="cut")}, "have to meet in one"),
        ({"key_by": lambda s, n: s}, "has no key"),
        ({"key_by": near_on_one_side}, "near=v and the right one no near="),
        ({"key_by": lambda s, n: s.key_by({"k": "k", "id": "w"}[n])}, "cast one of them"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_a_way_out(join, says):
    with pytest.raises(hg.HeadgateError, match=says):
        flow_of([[]], [[]], **join)


def test_names_that_both_sides_have_need_suffixes():
    flow = hg.Flow("f")
    stream = flow.source(ListSource("k bigint, v bigint", []))
    other = flow.source(ListSource("k bigint, v bigint", []))
    with pytest.raises(hg.HeadgateError, match="suffixes="):
        stream.key_by("k").join(other.key_by("k"))
    joined = stream.key_by("k").join(other.key_by("k"), suffixes=("", "_right"))
    assert joined.schema.names == ["k", "v", "v_right"]


@pytest.mark.parametrize("kind", ["regular", "interval", "as_of"])
@pytest.mark.parametrize("changed", [0, 1], ids=["left", "right"])
def test_rows_that_replace_others_are_joined_only_as_of_a_time(kind, changed):
    flow = hg.Flow("f")
    at = {"event_time": "t"}
    bids = flow.source(ListSource("k bigint, p bigint, t timestamp", []), name="bids", **at)
    other = flow.source(ListSource("k bigint, v bigint, t timestamp", []), name="other", **at)
    high = bids.key_by("k").process(hg.TopRows(1, "p", emit="changes"), name="high")
    told = high.filter("p > 0").with_columns(p="p * 2").select("k", "p", "t", "change")
    how = {"regular": {}, "interval": {"within": SECOND}, "as_of": {"as_of": True}}[kind]

    def joined(changes):
        sides = [other.select("k", "v", "t").key_by("k")]
        sides.insert(changed, changes.key_by("k"))
        return sides[0].join(sides[1], times=None if kind == "regular" else ("t", "t"),
                             suffixes=("", "_r"), **how)  # fmt: skip

    if kind == "as_of":
        assert "p" in joined(told).schema.names
    else:
        with pytest.raises(DeclarationError, match=r"changes of 'high'.*as_of.*what='change'"):
            joined(told)
    assert "what" in joined(told.select("k", "p", "t", what="change")).schema.names
    assert "p" in joined(told.select("k", "p", "t")).schema.names


def test_a_column_that_is_only_called_change_is_a_column():
    flow = hg.Flow("f")
    left = flow.source(ListSource("k bigint, change string", [[{"k": 1, "change": "coins"}]]))
    right = flow.source(ListSource("k bigint, v bigint", [[{"k": 1, "v": 2}]]))
    left.key_by("k").join(right.key_by("k")).to_memory("out")

    assert run(flow).rows("out") == [{"k": 1, "change": "coins", "v": 2}]


def test_joins_stand_behind_operators_and_joins_and_join_a_stream_with_itself():
    left, right = draw(5)
    flow = hg.Flow("chain")
    a = flow.source(ListSource(LEFT, left), name="a", event_time="t")
    b = flow.source(ListSource(RIGHT, right), name="b", event_time="at")
    passed = a.key_by("v").process(hg.Count(emit="rows"), name="count")
    one = passed.key_by("k").join(b.key_by("id"), name="one").select("k", "v", "w")
    both = one.key_by("v").join(one.key_by("v"), name="two", suffixes=("", "_2"))
    both.key_by("w").process(hg.Count(), name="pairs").to_memory("out")
    counted = {row["w"]: row["count"] for row in run(flow, slots=3).rows("out")}
    wanted = Counter()
    pairs = list(expected(left, right, "regular", "inner").elements())
    for _, _, v, w in pairs:
        wanted[w] += sum(other == v for _, _, other, _ in pairs)
    assert counted == wanted


def test_sessions_are_no_join_windows_and_the_error_says_what_to_write():
    flow = hg.Flow("f")
    a, b = (
        flow.source(ListSource("k bigint, t timestamp", []), name=name, event_time="t")
        for name in "ab"
    )
    session = hg.Session("5 minutes", time="t")
    says = r"left\.union\(right\).*Session\(gap='5 minutes', time='t'\).*within=.*window_start"
    with pytest.raises(DeclarationError, match=says):
        a.key_by("k").join(b.key_by("k"), window=session, suffixes=("", "_b"))
    both = a.union(b).key_by("k").process(hg.Count(window=session))
    ends = [
        s.key_by("k").process(hg.Count(name=n, window=session)) for s, n in ((a, "n"), (b, "m"))
    ]
    keys = ("k", "window_start", "window_end")
    joined = ends[0].key_by(*keys).join(ends[1].key_by(*keys))
    assert joined.schema.names == [*keys, "n", "m"] and both.schema.names == [*keys, "count"]


def late_right(stream, name):
    """The right side arrives a level after the left one."""
    if name == "id":
        stream = stream.key_by("w").process(hg.Deduplicate(), name="once")
    return stream.key_by(name)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "regular"])
def test_rows_that_leave_in_their_epoch_wait_for_the_other_side(kind, how):
    for seed in range(3):
        left, right = draw(seed)
        flow = flow_of(left, right, how=how, key_by=late_right, **KINDS[kind])
        got = told(run(flow, slots=1 + seed, input_ends=True, check_purity=seed > 1).rows("out"))
        assert got == expected(left, right, kind, how)


@pytest.mark.parametrize("key_by", [lambda stream, name: stream.key_by(name), late_right])
def test_rows_that_leave_in_the_epoch_in_which_they_came_are_never_written(key_by):
    drawn = (draw(seed, epochs=1) for seed in range(100))
    left, right = next((a, b) for a, b in drawn if a[0] and b[0])
    for kind in ("interval", "tumbling", "sliding"):
        done = run(flow_of(left, right, key_by=key_by, **KINDS[kind]), input_ends=True)
        assert told(done.rows("out")) == expected(left, right, kind, "inner")
        chains = done.coordinator.last.chains
        assert not any(chains[table] for table in ("join", "join@left", "join@right"))
