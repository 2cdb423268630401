"""Flows drawn at random, from a seed alone: what they do, under which keys, in which branches.

A recipe is a list of steps, so that it can be printed and declared again with other ways to group
the same keys. Only what is promised to be the same in any number of slots is drawn: what depends on
the order of rows is `ordered`, and stands behind rows that have an order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.scenario.random_joins import JOINS, LOOKUPS, as_rows, draw_keys, joined, looked_up

import headgate as hg
from headgate.testing import ListSource, ManualClock

Row = dict[str, Any]
WIDE = "i bigint, a bigint, b string, c date, v bigint, t timestamp, f double, y binary, w string"
KEYS = ("a", "b", "c", "f", "y")
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = hg.Tumbling("1 minute", time="t")
SEEN = pa.schema([("seen", pa.list_(pa.int64()))])


def total(_key: Any, rows: list[Row], held: Any) -> tuple[Any, None]:
    """A sum that is forgotten at times: any cut of the rows comes to the same."""
    value = ((held or 0) + sum(100 + (row["v"] or 0) for row in rows)) % 1000
    return value, None


def told(_key: Any, rows: list[Row], held: Any) -> tuple[Any, list[Row]]:
    """What came, in the order it came."""
    count = (held or 0) + len(rows)
    return (None if count % 5 == 0 else count), [{"seen": [row["i"] for row in rows]}]


def changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Other values in the same columns, so that what was known of the old ones is wrong."""
    a = pc.if_else(pc.greater(batch["a"], 5), pc.subtract(batch["a"], 3), batch["a"])
    b = pc.if_else(pc.equal(batch["b"], "x"), "yy", batch["b"])
    return batch.set_column(1, "a", a).set_column(2, "b", b)


def bad_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(batch["v"], 7)).as_py():
        raise ValueError("seven")
    return batch


def bad_row(row: Row) -> Row:
    if row["v"] == 8:
        raise ValueError("eight")
    return row


def count_as_row(row: Row) -> Row:
    """A count of `a` as a row like those of sources."""
    n, a = row["count"], row["a"]
    at = START + timedelta(seconds=20 * n)
    return {**dict.fromkeys("bcfyw"), "i": -n, "a": a, "v": n, "t": at}


STATELESS: dict[str, Callable[[Any, str], Any]] = {
    "filter(expression)": lambda s, n: s.filter(pc.field("v") != 3, name=n),
    "filter(batch)": lambda s, n: s.filter(lambda b: pc.not_equal(b["v"], 5), name=n),
    "filter_rows": lambda s, n: s.filter_rows(lambda r: r["v"] != 4, name=n),
    "map(as it is)": lambda s, n: s.map(lambda b: b, WIDE, name=n),
    "map(other a and b)": lambda s, n: s.map(changed, WIDE, name=n),
    "map(fails on 7)": lambda s, n: s.map(bad_batch, WIDE, name=n),
    "map_rows(fails on 8)": lambda s, n: s.map_rows(bad_row, WIDE, name=n),
    "flat_map_rows(2 twice)": lambda s, n: s.flat_map_rows(
        lambda r: [r, r] if r["v"] == 2 else [r], WIDE, name=n
    ),
}


def joint(**more: Any) -> Any:
    """Several aggregates in one state, with conditions."""
    where = pc.field("v") > 4
    return hg.Aggregate(
        n=hg.Count(), large=hg.Sum("v", where=where), last_b=hg.Max("b", where=where),
        low=hg.Min("f"), users=hg.CountDistinct("b", where=where), half=hg.Median("v"),
        first=hg.First("c", by="i"), some=hg.Collect("y", by="i", limit=3), **more,
    )  # fmt: skip


PASSING: dict[str, Callable[[], Any]] = {
    "Count(rows)": lambda: hg.Count(emit="rows"),
    "Count(rows, ttl)": lambda: hg.Count(emit="rows", ttl="5 seconds"),
    "Sum(v, rows)": lambda: hg.Sum("v", emit="rows"),
    "Max(b, rows)": lambda: hg.Max("b", emit="rows"),
    "Mean(f, rows)": lambda: hg.Mean("f", emit="rows"),
    "Aggregate(rows, ttl)": lambda: joint(emit="rows", ttl="5 seconds"),
    "Last(v, by i, rows)": lambda: hg.Last("v", by="i", emit="rows"),
    "Deduplicate(ordered)": lambda: hg.Deduplicate(ordered=True),
    "Deduplicate(ordered, time)": lambda: hg.Deduplicate("20 seconds", time="t", ordered=True),
    "Deduplicate(ordered, ttl)": lambda: hg.Deduplicate(within="3 seconds", ordered=True),
}
ENDING: dict[str, Callable[[], Any]] = {
    "Count": hg.Count,
    "Count(ttl)": lambda: hg.Count(ttl="3 seconds"),
    "Sum(v)": lambda: hg.Sum("v"),
    "Sum(v, ttl)": lambda: hg.Sum("v", ttl="10 seconds"),
    "Min(y, ttl)": lambda: hg.Min("y", ttl="3 seconds"),
    "Min(b)": lambda: hg.Min("b"),
    "Max(f)": lambda: hg.Max("f"),
    "Max(w)": lambda: hg.Max("w"),
    "Collect(w, by i)": lambda: hg.Collect("w", by="i", limit=4),
    "Mean(v)": lambda: hg.Mean("v"),
    "Count(where)": lambda: hg.Count(where=pc.field("v") > 4),
    "CountDistinct(y, ttl)": lambda: hg.CountDistinct("y", ttl="3 seconds"),
    "ApproxCountDistinct(a)": lambda: hg.ApproxCountDistinct("a", size=4),
    "Quantile(f, window)": lambda: hg.Quantile("f", 0.7, window=MINUTE),
    "Aggregate": joint,
    "Aggregate(window)": lambda: joint(window=MINUTE),
    "Aggregate(sliding)": lambda: joint(window=hg.Sliding("1 minute", "20 seconds", time="t")),
    "Aggregate(sliding, sums)": lambda: hg.Aggregate(
        n=hg.Count(),
        large=hg.Sum("v", where=pc.field("v") > 4),
        some=hg.Count("v"),
        window=hg.Sliding("50 seconds", "5 seconds", time="t"),
    ),
    "Last(v, by i)": lambda: hg.Last("v", by="i"),
    "Update(total)": lambda: hg.Update(total, output="k bigint", rows_as="dicts"),
    "Count(window)": lambda: hg.Count(window=MINUTE),
    "Count(window) in 3 minutes": lambda: hg.Count(window=MINUTE),
    "Sum(v, window)": lambda: hg.Sum("v", window=hg.Tumbling("40 seconds", time="t")),
    "Sum(v, session)": lambda: hg.Sum("v", window=hg.Session("9 seconds", time="t")),
    "Max(b, session, changes)": lambda: hg.Max(
        "b", window=hg.Session("20 seconds", time="t"), emit="changes"
    ),
    "Count(session, late)": lambda: hg.Count(
        window=hg.Session("9 seconds", time="t", allowed_lateness="1 minute")
    ),
    "TopRows(v, b, window)": lambda: hg.TopRows(2, ("v desc", "b"), ["i"], window=MINUTE),
    "TopRows(v, i, sliding)": lambda: hg.TopRows(
        2, ("v desc", "i"), ["b", "y"], window=hg.Sliding("1 minute", "20 seconds", time="t")
    ),
    "TopRows(i, session)": lambda: hg.TopRows(
        3, "i desc", ["f", "c"], window=hg.Session("9 seconds", time="t")
    ),
    "TopRows(v, i, sliding, late)": lambda: hg.TopRows(
        2,
        ("v desc", "i"),
        ["b", "y"],
        window=hg.Sliding("1 minute", "20 seconds", time="t", allowed_lateness="1 minute"),
    ),
    "TopRows(i, session, changes)": lambda: hg.TopRows(
        3, "i desc", ["f", "c"], emit="changes", window=hg.Session("9 seconds", time="t")
    ),
    "TopRows(v, global)": lambda: hg.TopRows(2, ("v desc", "i"), window=hg.Global(5)),
    "TopRows(i, changes)": lambda: hg.TopRows(3, "i desc", ["v"], emit="changes"),
    "TopRows(v, i)": lambda: hg.TopRows(2, ("v", "i")),
    "TopRows(i, changes) joined": lambda: hg.TopRows(2, "i", ["v"], emit="changes"),
    "Sum(v, changes) joined": lambda: hg.Sum("v", emit="changes"),
    "Sum(v, global, 9 rows)": lambda: hg.Sum("v", window=hg.Global(9, then="reset")),
    "Max(b, global, time)": lambda: hg.Max("b", window=hg.Global("1 minute", clock="event")),
    "TopK(b)": lambda: hg.TopK("b", 2, MINUTE),
    "TopK(f, weight v)": lambda: hg.TopK("f", 2, MINUTE, weight="v"),
    "TopK(b, session)": lambda: hg.TopK("b", 2, hg.Session("9 seconds", time="t")),
    "TopK(b, changes)": lambda: hg.TopK("b", 2, MINUTE, emit="changes"),
    "TopK(b, session, late)": lambda: hg.TopK(
        "b", 2, hg.Session("9 seconds", time="t", allowed_lateness="1 minute")
    ),
    "Count(running, ordered)": lambda: hg.Count(emit="running", ordered=True),
    "Last(v, b, ordered)": lambda: hg.Last("v", "b", ordered=True),
    "MeanOfLast(v, ordered)": lambda: hg.MeanOfLast("v", 3, emit="running", ordered=True),
    "Update(told, ordered, ttl)": lambda: hg.Update(
        told, output=SEEN, rows_as="dicts", ordered=True, ttl="10 seconds"
    ),
}
PUT_OUT = {
    "TopK(b)": "b",
    "TopK(b, session)": "b",
    "TopK(b, changes)": "b",
    "TopK(b, session, late)": "b",
    "TopK(f, weight v)": "f",
    "Last(v, b, ordered)": "b",
}  # and so no key
IN_ORDER = ("ordered", "Last(")  # what of it needs rows that have one order


@dataclass(frozen=True)
class Step:
    """One declaration: what is done to which streams, and how they are grouped before."""

    name: str
    what: str
    of: tuple[int, ...]
    grouping: str = "local"
    key: tuple[str, ...] = ()
    nulls: Any = "key"
    right_key: tuple[str, ...] = ()

    @property
    def near(self) -> tuple[int, ...]:
        """The places of near columns: the second of two, in half of the keys of two columns."""
        return (1,) if len(self.key) > 1 and self.key[0] < self.key[1] else ()

    @property
    def has_state(self) -> bool:
        return not {self.what} & {*STATELESS, *LOOKUPS, "union"}

    @property
    def spreads(self) -> bool:
        """Is it an operator whose rows are sent? A lookup leaves a key to what follows it."""
        if self.what in LOOKUPS:
            return self.grouping == "shuffle"
        return self.grouping != "local" and self.what != "union"

    def __str__(self) -> str:
        streams = " + ".join(f"s{number}" for number in self.of)
        by = f"key_by{self.key}{self.right_key or ''} nulls={self.nulls}"
        by = by + " near" * len(self.near) if self.key else self.grouping
        return f"{self.name}: {streams} {by} -> {self.what}"


@dataclass(frozen=True)
class Branch:
    """What is known of a stream: who makes it, of which sources, and whether it has an order."""

    makers: frozenset[int]
    sources: frozenset[int]
    in_order: bool = True


@dataclass
class Recipe:
    """Steps in the order they are declared; streams are numbered, sources first."""

    seed: int
    sources: int = 1
    idle_after: int = 2
    steps: list[Step] = field(default_factory=list)
    dead_letters: bool = True

    def __str__(self) -> str:
        head = f"{self.sources} sources, idle after {self.idle_after}"
        return "\n".join([head, *(f"  s{self.sources + n} = {s}" for n, s in self.numbered)])

    @property
    def numbered(self) -> list[tuple[int, Step]]:
        return list(enumerate(self.steps))

    @property
    def sinks(self) -> list[str]:
        ends = [f"out-{s.name}" for s in self.steps if s.what in ENDING or s.what in JOINS]
        return [*ends, "dead"] if self.dead_letters else ends

    def declare(
        self,
        epochs: list[list[list[Row]]],
        ways: Mapping[str, str],
        clock: Callable[[], int] = ManualClock(),  # noqa: B008
    ) -> hg.Flow:
        """The flow on these rows (by epoch and source); `ways` says how operators get theirs.

        Side tables are as of the clock.
        """
        flow = hg.Flow("random")
        streams = [
            flow.source(
                ListSource(WIDE, [rows[number] for rows in epochs]),
                name=f"source{number}", event_time="t", watermark="30 seconds",
                idle_after=self.idle_after,
            )
            for number in range(self.sources)
        ]  # fmt: skip
        for step in self.steps:
            streams.append(self._declared(step, streams, ways.get(step.name, "hash"), clock))
        if self.dead_letters:
            flow.dead_letters().to_memory("dead")
        return flow

    def _declared(self, step: Step, streams: list[Any], way: str, clock: Callable[[], int]) -> Any:
        stream = streams[step.of[0]]
        if step.what == "union":
            return stream.union(streams[step.of[1]])
        if step.what in JOINS:
            pairs = joined(stream, streams[step.of[1]], step, way)
            pairs.to_memory(f"out-{step.name}")
            return as_rows(pairs)
        stream = _grouped(stream, step)
        if step.what in LOOKUPS:
            return looked_up(stream, step.what, step.name, clock)
        if step.what in STATELESS:
            return STATELESS[step.what](stream, step.name)
        if step.what == "counts as rows":
            counts = _processed(stream, step, hg.Count(), way)
            return counts.map_rows(count_as_row, WIDE, name=f"{step.name}-rows")
        made = _processed(stream, step, {**PASSING, **ENDING}[step.what](), way)
        if step.what in ENDING:
            if step.what.endswith("in 3 minutes"):
                window = hg.Tumbling("3 minutes", time="window_start")
                longer = made.globally().process(
                    hg.Sum("count", window=window), name=f"{step.name}-sum"
                )
                longer.to_memory(f"out-{step.name}")
            elif step.what.endswith("joined") and step.key:
                _joined_changes(made, streams[step.of[0]], step).to_memory(f"out-{step.name}")
            else:
                made.to_memory(f"out-{step.name}")
        return made


def _joined_changes(told: Any, rows: Any, step: Step) -> Any:
    """What an operator tells of its keys, with the rows that it tells it of."""
    sides = [
        side.key_by(*step.key, nulls=step.nulls) for side in (told, rows.select(*step.key, n="i"))
    ]
    return sides[0].join(sides[1], how="full", name=f"{step.name}-pairs")


def draw_recipe(seed: int, *, passes: int = 0) -> Recipe:
    """Any flow; with `passes` so many operators come first that pass rows on, and `w` is read."""
    rng = random.Random(f"recipe {seed}")
    recipe = Recipe(seed, rng.choice([1, 1, 2]), rng.choice([1, 2, 3]))
    recipe.dead_letters = rng.random() < 0.5 and not passes
    known = [Branch(frozenset({n}), frozenset({n})) for n in range(recipe.sources)]
    for number in range(rng.randrange(2, 7)):
        kind = "passing" if number < passes else ""
        step, branch = _draw_step(rng, recipe, known, f"op{number}", kind)
        if step is not None:
            recipe.steps.append(step)
            known.append(branch)
    for number in range(rng.randrange(1, 4)):
        of = _some(rng, known)
        what = _choice(rng, ENDING, known[of])
        grouping = "global" if rng.random() < 0.2 else "key"
        recipe.steps.append(_keyed(rng, Step(f"end{number}", what, (of,), grouping)))
    if passes:
        recipe.steps.append(Step("wide", "Max(w)", (_some(rng, known),), "key", ("a",)))
    return recipe


def _draw_step(
    rng: random.Random, recipe: Recipe, known: list[Branch], name: str, kind: str = ""
) -> tuple[Step | None, Branch]:
    of = _some(rng, known)
    branch, mine = known[of], frozenset({len(known)})
    kind = kind or rng.choice(
        [
            "passing",
            "passing",
            "stateless",
            "stateless",
            "counts",
            "union",
            "join",
            "join",
            "lookup",
        ]
    )
    other = rng.randrange(len(known))
    if kind == "join":
        return _draw_join(rng, recipe, name, (of, other), known)
    if kind == "union":
        if branch.makers & known[other].makers:
            return None, branch
        apart = not branch.sources & known[other].sources
        return Step(name, "union", (of, other)), Branch(
            branch.makers | known[other].makers,
            branch.sources | known[other].sources,
            apart and branch.in_order and known[other].in_order,
        )
    if kind == "counts":
        step = Step(name, "counts as rows", (of,), "key", ("a",), rng.choice(["key", "drop"]))
        return step, Branch(mine, branch.sources, in_order=False)
    made = Branch(mine, branch.sources, branch.in_order)
    if kind == "passing":
        what = _choice(rng, PASSING, branch)
        return _keyed(rng, Step(name, what, (of,), "key")), made
    grouping = rng.choice(["local", "shuffle", "global", "key", "key", "key"])
    if kind == "lookup":
        return _keyed(rng, Step(name, rng.choice([*LOOKUPS]), (of,), grouping)), made
    allowed = [what for what in STATELESS if "fails" not in what or recipe.dead_letters]
    return _keyed(rng, Step(name, rng.choice(allowed), (of,), grouping)), made


def _draw_join(
    rng: random.Random, recipe: Recipe, name: str, of: tuple[int, int], known: list[Branch]
) -> tuple[Step | None, Branch]:
    branches = [known[number] for number in of]
    what = rng.choice([*JOINS])
    if "as of" in what and not branches[1].in_order:
        what = "join(within)"
    key, right_key = draw_keys(rng)
    nulls = rng.choice(["key", "key", "drop"])
    step = Step(name, what, of, "key", key, nulls, right_key)
    sources = branches[0].sources | branches[1].sources
    return step, Branch(frozenset({len(known)}), sources, in_order=False)


def _some(rng: random.Random, known: list[Branch]) -> int:
    """Any stream, mostly the newest: chains are where rows, hashes and keys meet."""
    return len(known) - 1 if rng.random() < 0.6 else rng.randrange(len(known))


def _choice(rng: random.Random, among: Mapping[str, Any], branch: Branch) -> str:
    return rng.choice(
        [what for what in among if branch.in_order or not any(need in what for need in IN_ORDER)]
    )


def _keyed(rng: random.Random, step: Step) -> Step:
    if step.grouping != "key":
        return step
    among = [name for name in KEYS if name != PUT_OUT.get(step.what)]
    key = tuple(rng.sample(among, rng.choice([1, 1, 2])))
    return Step(step.name, step.what, step.of, "key", key, rng.choice(["key", "key", "drop"]))


def _grouped(stream: Any, step: Step) -> Any:
    if step.grouping == "key":
        near = [step.key[place] for place in step.near]
        return stream.key_by(*step.key, nulls=step.nulls, near=near)
    return {
        "local": lambda: stream, "shuffle": stream.shuffle, "global": stream.globally,
    }[step.grouping]()  # fmt: skip


def _processed(stream: Any, step: Step, operator: Any, way: str) -> Any:
    key = stream.grouping.key
    if not operator.mergeable(stream.schema, key) or operator.ordered:
        way = "hash"
    if key:
        stream = stream.key_by(*key, nulls=step.nulls, grouping=way, near=key.near_names)
    elif way in ("auto", "hash", "partial"):
        stream = stream.globally(grouping=way)
    return stream.process(operator, name=step.name)


def draw_rows(seed: int) -> list[list[list[Row]]]:
    """Rows by epoch and source; values that are easy to confuse, and many nulls."""
    rng = random.Random(f"rows {seed}")
    step = rng.choice([1, 2])
    numbers = iter(range(1_000_000))

    def row(epoch: int) -> Row:
        at = START + timedelta(seconds=60 * step * epoch + rng.randrange(-90, 120))
        number = next(numbers)
        return {
            "i": number,
            "a": rng.choice([None, *range(12)]),
            "b": rng.choice([None, "", "x", "yy", "zzz" * 100, "é"]),
            "c": rng.choice([None, *(date(2026, 1, day) for day in range(1, 5))]),
            "v": rng.choice([None, *range(-5, 20)]),
            "t": at,
            "f": rng.choice([None, 0.0, -0.0, float("nan"), 1.5]),
            "y": rng.choice([None, b"", b"\0", b"\0\0", b"ab"]),
            "w": None if number % 5 == 0 else f"{number} is wide" * (number % 4),
        }

    return [
        [[row(epoch) for _ in range(rng.choice([0, 1, 20, 40]))] for _ in range(2)]
        for epoch in range(rng.randrange(2, 5))
    ]
