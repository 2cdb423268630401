"""Regular joins of what changes: pairs come and go with the rows of both sides."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import DeclarationError, SchemaMismatch
from headgate.testing import ListSource, ManualClock, run
from strategies import seeds
from unit.operator.join_oracle import HOWS

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "k bigint, g string, v bigint, t timestamp"


def draw(rng, epochs):
    def row():
        at = START + timedelta(seconds=rng.randrange(300))
        key = rng.choice([None, 0, 0, *range(5)])
        return {"k": key, "g": rng.choice("xyz"), "v": rng.randrange(6), "t": at}

    return [[row() for _ in range(rng.choice([0, 1, 4, 12]))] for _ in range(epochs)]


# What tells changes, and the columns by which its rows are known (none: whole rows).
TELLERS = {
    "max": (lambda s: s.key_by("k").process(hg.Max("v", name="m", emit="changes")), ["k"]),
    "several keys": (
        lambda s: s.key_by("k", "g").process(hg.Count(name="m", emit="changes")),
        ["k", "g"],
    ),
    "top": (
        lambda s: s.key_by("k").process(hg.TopRows(2, by=("v desc", "g"), emit="changes")),
        ["k", "rank"],
    ),
    "windows": (
        lambda s: s.key_by("k").process(
            hg.Sum("v", name="m", window=hg.Sliding("2 minutes", "1 minute", "t"), emit="changes")
        ),
        ["k", "window_start", "window_end"],
    ),
    "sessions": (
        lambda s: s.key_by("k").process(
            hg.Count(name="m", window=hg.Session("20 seconds", "t"), emit="changes")
        ),
        ["k", "window_start", "window_end"],
    ),
    "last": (lambda s: s.key_by("k").process(hg.Last("v", by="t", emit="changes")), ["k"]),
    "ranks of sessions": (
        lambda s: s.key_by("k").process(
            hg.TopRows(2, "v", ["v"], window=hg.Session("20 seconds", "t"), emit="changes")
        ),
        ["k", "window_start", "window_end", "rank"],
    ),
    "items of windows": (
        lambda s: s.key_by("k").process(
            hg.TopK("g", 2, hg.Tumbling("2 minutes", "t"), name="m", emit="changes")
        ),
        ["k", "window_start", "window_end", "rank"],
    ),
    "outer join": (
        lambda s: s.select("k", "g").key_by("k").join(
            s.filter("v > 2").select("k", "v").key_by("k"), how="full"
        ),
        [],
    ),
}  # fmt: skip


def declared(left, right, teller, how, *, twice=False):
    """Two sides, of which the left one tells changes, or both; what each told is kept, too."""
    flow = hg.Flow("changes")
    a = flow.source(ListSource(COLUMNS, left), name="a", event_time="t", watermark="1 hour")
    b = flow.source(ListSource(COLUMNS, right), name="b", event_time="t", watermark="1 hour")
    one = TELLERS[teller][0](a)
    other = TELLERS[teller][0](b) if twice else b.select("k", "g", "v")
    one.to_memory("one")
    other.to_memory("other")
    joined = one.key_by("k").join(other.key_by("k"), how=how, suffixes=("", "_r"), name="join")
    joined.to_memory("out")
    return flow


def held(rows, known):
    """What rows that tell changes come to: a bag of tuples, the key first."""
    if not rows:
        return Counter()
    names = [name for name in rows[0] if name not in ("k", "change")]
    if known == []:
        return whole(rows)
    if known is None:
        return Counter((row["k"], *(row[name] for name in names)) for row in rows)
    table = {}
    for row in rows:
        place = tuple(row[name] for name in known)
        if row["change"] == "delete":
            del table[place]
        else:
            assert (row["change"] == "insert") == (place not in table)
            table[place] = (row["k"], *(row[name] for name in names))
    return Counter(table.values())


def whole(rows):
    bag = Counter()
    for row in rows:
        place = tuple(value for name, value in row.items() if name != "change")
        bag[place] += -1 if row["change"] == "delete" else 1
        assert bag[place] >= 0, f"{place} was taken back, and is not there"
    return +bag


def joined(left, right, how, widths):
    bag, met = Counter(), [set(), set()]
    for a, m in left.items():
        for b, n in right.items():
            if a[0] is not None and a[0] == b[0]:
                bag[(*a, *b[1:])] += m * n
                met[0].add(a)
                met[1].add(b)
    for a, n in left.items():
        if how in ("left", "full") and a not in met[0]:
            bag[(*a, *[None] * widths[1])] += n
    for b, n in right.items():
        if how in ("right", "full") and b not in met[1]:
            bag[(b[0], *[None] * widths[0], *b[1:])] += n
    return bag


def check(done, teller, how, *, twice):
    known = TELLERS[teller][1]
    one = held(done.rows("one"), known)
    other = held(done.rows("other"), known if twice else None)
    widths = [len(flow_width(side)) for side in (done.rows("one"), done.rows("other"))]
    assert whole(done.rows("out")) == joined(one, other, how, widths)


def flow_width(rows):
    return [name for name in (rows[0] if rows else ()) if name not in ("k", "change")]


@pytest.mark.parametrize("seed", seeds(2, of=12))
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("teller", TELLERS)
def test_pairs_come_and_go_with_the_rows_that_change(teller, how, seed):
    rng = random.Random(f"{teller} {how} {seed}")
    twice = seed % 2 == 1
    left, right = draw(rng, 5), draw(rng, 5)
    left[0] += [{"k": 0, "g": "x", "v": 1, "t": START}]  # so that each side has a row
    right[0] += [{"k": 0, "g": "x", "v": 1, "t": START}]
    for end in (1, 3, 5):  # at the end of an epoch, not only of all
        flow = declared(left[:end], right[:end], teller, how, twice=twice)
        check(run(flow, slots=1 + seed % 3, check_purity=end == 5), teller, how, twice=twice)


@pytest.mark.parametrize("teller", ["max", "top", "outer join"])
def test_what_a_join_holds_of_changes_moves_with_its_key(teller, tmp_path):
    """Another number of slots at every start, as many starts as epochs."""
    rng = random.Random(teller)
    left, right = draw(rng, 6), draw(rng, 6)
    left[0] += [{"k": 0, "g": "x", "v": 1, "t": START}]
    right[0] += [{"k": 0, "g": "x", "v": 1, "t": START}]
    told = {"one": [], "other": [], "out": []}
    for end, slots in enumerate((1, 3, 2, 4, 2, 1), start=1):
        flow = declared(left[:end], right[:end], teller, "full", twice=True)
        done = run(flow, slots=slots, checkpoint=tmp_path, check_purity=False)
        for name, rows in told.items():
            rows += done.rows(name)

    class Told:
        def rows(self, name):
            return told[name]

    check(Told(), teller, "full", twice=True)


@pytest.mark.parametrize("how", HOWS)
def test_totals_joined_with_rows_are_what_sql_says(how):
    """Of all rows: a sum per key, joined with the other rows; DuckDB over the same ones."""
    rng = random.Random(how)
    left, right = draw(rng, 5), draw(rng, 5)
    flow = hg.Flow("totals")
    a = flow.source(ListSource(COLUMNS, left), name="a").key_by("k")
    b = flow.source(ListSource(COLUMNS, right), name="b").select("k", "g")
    totals = a.process(hg.Sum("v", name="total", emit="changes"), name="totals")
    shown = totals.with_columns(twice="total * 2").filter("k < 4 or k is null")
    shown.key_by("k").join(b.key_by("k"), how=how).to_memory("out")
    found = whole(run(flow, slots=2).rows("out"))
    with duckdb.connect() as sql:
        for name, epochs in (("a", left), ("b", right)):
            sql.execute(f"create table {name} (k bigint, g text, v bigint)")
            rows = [[row["k"], row["g"], row["v"]] for rows in epochs for row in rows]
            sql.executemany(f"insert into {name} values (?, ?, ?)", rows)
        wanted = sql.execute(
            "with totals as (select k, sum(v)::bigint total, (sum(v) * 2)::bigint twice from a "
            f"where k < 4 or k is null group by k) select k, total, twice, g from totals {how} "
            "join b using (k)"
        ).fetchall()
    assert found == Counter(wanted)


def test_changes_go_through_joins_and_lookups():
    """A join of changes tells changes, so it can be joined again; a side table adds columns.

    The table says another word each time: what is taken back is the row that was told.
    """
    asked = iter(range(100))

    def words():
        return pa.table({"k": [1, 2], "word": [f"{n}{next(asked)}" for n in ("one", "two")]})

    rows = [[{"k": 1, "v": 3}], [{"k": 1, "v": 5}, {"k": 2, "v": 4}], [{"k": 2, "v": 9}], []]
    names = [[], [{"id": 1, "n": "a"}], [{"id": 2, "n": "b"}], [{"id": 2, "n": "c"}]]
    flow = hg.Flow("chain")
    bids = flow.source(ListSource("k bigint, v bigint", rows)).key_by("k")
    named = flow.source(ListSource("id bigint, n string", names)).key_by("id")
    high = bids.process(hg.Max("v", emit="changes"), name="high")
    one = high.key_by("k").join(named, how="left", name="one").filter("max > 3")
    seen = one.lookup(words, on="k", refresh="1 millisecond", schema="k bigint, word string")
    mine = seen.select("k", "max", "word", "change", mine="concat(n, '!')").key_by("k")
    mine.join(named, name="two").to_memory("out")
    clock = ManualClock()

    done = run(flow, clock=clock, before_epoch=lambda epoch: clock.advance(1000), slots=2)

    found = Counter((k, high, m, n) for k, high, _, m, n in whole(done.rows("out")).elements())
    pairs = [(2, 9, mine, n) for mine in ("b!", "c!") for n in ("b", "c")]
    assert found == Counter([(1, 5, "a!", "a"), *pairs])
    assert len({row["word"] for row in done.rows("out")}) > 2


REFUSED = {
    "interval": (
        {"within": ("0 seconds", "1 second"), "times": ("t", "t")},
        lambda s: s,
        "within=",
    ),
    "ttl": ({"ttl": "1 hour"}, lambda s: s, "ttl="),
    "filter": ({}, lambda s: s.filter("m > 3"), "filters by 'm'"),
    "filter by change": ({}, lambda s: s.filter("change = 'insert'"), "filters by 'change'"),
    "function": ({}, lambda s: s.filter(lambda batch: [True] * batch.num_rows), "filters them"),
    "known by": ({}, lambda s: s.select("k", "m", "change"), "leaves out 'g'"),
    "first": ({}, lambda s: s.key_by("k").process(hg.Deduplicate(), name="once"), "'once' stands"),
    "union": ({}, lambda s: s.union(s.with_columns(k="k + 1")), "united"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_changes_that_cannot_be_followed_are_refused_with_a_way_out(case):
    join, between, says = REFUSED[case]
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a", event_time="t")
    b = flow.source(ListSource(COLUMNS, []), name="b", event_time="t")
    first = hg.Aggregate(m=hg.Count(), t=hg.Max("t"), emit="changes")
    told = between(a.key_by("k", "g").process(first, name="teller"))
    with pytest.raises(DeclarationError, match=rf"changes of 'teller'.*{says}.*what='change'"):
        told.key_by("k").join(b.select("k", "v", "t").key_by("k"), suffixes=("", "_r"), **join)


def test_a_lookup_that_leaves_rows_out_hides_no_changes():
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a").key_by("k")
    b = flow.source(ListSource("id bigint, w string", []), name="b").key_by("id")
    told = a.process(hg.Count(emit="changes"), name="teller")
    some = told.lookup(pa.table({"k": [1], "word": ["one"]}), on="k", how="inner", name="some")
    with pytest.raises(DeclarationError, match="'some' leaves rows out"):
        some.key_by("k").join(b)
    every = told.lookup(pa.table({"k": [1], "word": ["one"]}), on="k")
    with pytest.raises(DeclarationError, match="changes of 'teller'"):
        every.key_by("k").join(b, window=hg.Tumbling("1 minute", time="t"))
    assert every.key_by("k").join(b).schema.names == ["k", "count", "word", "w", "change"]


def test_a_key_that_changes_is_refused():
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a").key_by("k")
    b = flow.source(ListSource("id bigint, w string", []), name="b").key_by("id")
    told = a.process(hg.Count(emit="changes"), name="teller")
    with pytest.raises(DeclarationError, match=r"key 'count' is a value that changes.*\(k\)"):
        told.key_by("count").join(b)


def test_rows_taken_back_whole_need_values_that_can_be_compared():
    flow = hg.Flow("f")
    a = flow.source(ListSource("k bigint, l array<bigint>", []), name="a").key_by("k")
    b = flow.source(ListSource("id bigint, w string", []), name="b").key_by("id")
    with pytest.raises(SchemaMismatch, match=r"'l' is list.*leave it out with select"):
        a.join(b, how="left").key_by("k").join(b, suffixes=("", "_r"))


def test_an_aggregate_over_changes_has_to_say_which_count():
    flow = hg.Flow("f")
    rows = [[{"k": 1, "g": "x", "v": 3, "t": START}], [{"k": 1, "g": "y", "v": 1, "t": START}]]
    a = flow.source(ListSource(COLUMNS, rows), name="a").key_by("k")
    told = a.process(hg.Count(emit="changes"), name="teller").filter("k > 0")
    for operator in (hg.Sum("count"), hg.Aggregate(n=hg.Count()), hg.Count(emit="rows")):
        with pytest.raises(DeclarationError, match=r"change that 'teller' tells.*what='change'"):
            told.key_by("k").process(operator)
    once = hg.Count(where="change = 'insert'", name="keys")
    told.key_by("k").process(once, name="once").to_memory("once")
    each = told.select("k", what="change").key_by("k").process(hg.Count(name="n"), name="each")
    each.to_memory("each")
    done = run(flow)
    assert done.state("once") == [{"k": 1, "count": 1}]
    assert [row["n"] for row in done.rows("each")] == [1, 2]


# Results that change and do not say so: how, and what stands before the join.
UPDATES = {
    "Count": (hg.Count(), lambda s: s),
    "Last, selected": (hg.Last("v"), lambda s: s.select("k", n="v")),
    "TopRows, filtered": (hg.TopRows(1, "v"), lambda s: s.filter("v > 3").filter(lambda b: b)),
    "Global, united": (
        hg.Sum("v", window=hg.Global(3)),
        lambda s: s.union(s.select("k", sum="k")),
    ),
    "Aggregate, looked up": (
        hg.Aggregate(n=hg.Count()),
        lambda s: s.lookup(pa.table({"k": [1], "word": ["one"]}), on="k"),
    ),
}


@pytest.mark.parametrize("case", UPDATES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_results_that_change_unsaid_are_not_joined_row_by_row(case, side):
    operator, between = UPDATES[case]
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a", event_time="t")
    b = flow.source(ListSource("id bigint, t timestamp", []), name="b", event_time="t").key_by("id")
    told = between(a.key_by("k").process(operator, name="teller")).key_by("k")
    one, other = (told, b) if side == "left" else (b, told)
    says = rf"{side} side .*result of 'teller' so far.*emit='changes'.*what='change'"
    with pytest.raises(DeclarationError, match=says) as refused:
        one.join(other)
    assert refused.value.operator == "teller"


def test_results_that_change_unsaid_are_joined_by_their_times():
    """A key that is a time, as the end of a window, has its one result in one epoch."""
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a", event_time="t").key_by("k")
    b = flow.source(ListSource("id bigint, t timestamp", []), name="b", event_time="t").key_by("id")
    latest = a.process(hg.Last("t"), name="latest").key_by("k")
    for join in (
        {"within": ("0 seconds", "1 second")},
        {"window": hg.Tumbling("1 minute", time="t")},
        {"as_of": True},
    ):
        b.join(latest, times="t", suffixes=("", "_r"), **join)


@pytest.mark.parametrize(
    "between",
    [
        lambda s: s.process(hg.Count(emit="rows")),
        lambda s: s.process(hg.Count(emit="running")),
        lambda s: s.process(hg.Count(window=hg.Tumbling("1 minute", time="t"))),
        lambda s: s.process(hg.Count(window=hg.Global(3, then="reset"))),
        lambda s: s.process(hg.Count()).map(lambda b: b, "k bigint, count bigint"),
        lambda s: s.process(hg.Count()).key_by("k").process(hg.Deduplicate()),
        lambda s: s.process(hg.Count(emit="changes")).select("k", what="change"),
    ],
)
def test_results_that_nothing_replaces_are_joined(between):
    flow = hg.Flow("f")
    a = flow.source(ListSource(COLUMNS, []), name="a", event_time="t").key_by("k")
    b = flow.source(ListSource("id bigint, w string", []), name="b", event_time=None).key_by("id")
    assert "w" in between(a).key_by("k").join(b).schema.names
