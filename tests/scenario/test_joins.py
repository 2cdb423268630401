"""Joins, whatever is killed, retried, lost or moved; and their keys are placed as pairs tell."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.scenario.fault_engine import Faults, Killed
from tests.scenario.oracle import Case, Expected, bag
from tests.scenario.test_seeded_faults import Driver

import headgate as hg
from headgate.testing import ListSource, run
from strategies import seeds
from unit.operator.join_oracle import KINDS, draw, expected, flow_of, told


def joined(rng: random.Random, epochs: int = 4) -> Case:
    """A regular join, and a sum of what comes of it under another key."""
    left = [
        [{"k": rng.randrange(5), "v": rng.randrange(9)} for _ in range(rng.choice([0, 5, 15]))]
        for _ in range(epochs)
    ]
    right = [
        [{"id": rng.randrange(5), "w": rng.choice("pqr")} for _ in range(rng.choice([0, 3, 9]))]
        for _ in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        pairs = sources["left"].key_by("k").join(sources["right"].key_by("id"), name="join")
        return {"pairs": pairs, "sums": pairs.key_by("w").process(hg.Sum("v"), name="sums")}

    lefts: dict[int, list[int]] = defaultdict(list)
    rights: dict[int, list[str]] = defaultdict(list)
    known: Counter[Any] = Counter()
    sums: dict[str, int] = {}
    made = []
    for ours, theirs in zip(left, right, strict=True):
        for row in ours:
            lefts[row["k"]].append(row["v"])
        for row in theirs:
            rights[row["id"]].append(row["w"])
        now = Counter((k, v, w) for k in lefts for v in lefts[k] for w in rights.get(k, ()))
        new, known = now - known, now
        for _, v, w in new.elements():
            sums[w] = sums.get(w, 0) + v
        index = [
            {
                "k": k,
                "left_first": 0,
                "left_count": len(lefts.get(k, ())),
                "right_first": 0,
                "right_count": len(rights.get(k, ())),
            }
            for k in {*lefts, *rights}
            if lefts.get(k) or rights.get(k)
        ]
        touched = {w for _, _, w in new}
        made.append(
            Expected(
                {"join": bag(index), "sums": bag({"w": w, "sum": n} for w, n in sums.items())},
                {
                    "pairs": bag({"k": k, "v": v, "w": w} for k, v, w in new.elements()),
                    "sums": bag({"w": w, "sum": sums[w]} for w in touched),
                },
            )
        )
    keys = {
        "join": (pa.schema({"k": pa.int64()}), [(k,) for k in range(5)]),
        "sums": (pa.schema({"w": pa.string()}), [(w,) for w in "pqr"]),
    }
    schemas = {"left": "k bigint, v bigint", "right": "id bigint, w string"}
    return Case("joined", schemas, {"left": left, "right": right}, declare, made, keys)


def changed(rng: random.Random, epochs: int = 4) -> Case:
    """Sums that change, joined with rows: what an epoch takes back, and what it tells."""
    left = [
        [{"k": rng.randrange(5), "v": rng.randrange(1, 9)} for _ in range(rng.choice([0, 2, 5]))]
        for _ in range(epochs)
    ]
    right = [
        [{"id": rng.randrange(5), "w": rng.choice("pqr")} for _ in range(rng.choice([0, 3, 9]))]
        for _ in range(epochs)
    ]

    def declare(_flow: hg.Flow, sources: dict[str, Any]) -> dict[str, Any]:
        sums = sources["left"].key_by("k").process(hg.Sum("v", emit="changes"), name="sums")
        pairs = sums.key_by("k").join(sources["right"].key_by("id"), how="left", name="join")
        return {"pairs": pairs}

    sums: dict[int, int] = {}
    touched: dict[int, int] = {}  # as the state says it: in which epoch, negative if new there
    rights: dict[int, list[str]] = defaultdict(list)
    told: Counter[Any] = Counter()
    made = []
    for epoch, (ours, theirs) in enumerate(zip(left, right, strict=True), start=1):
        touched |= {row["k"]: epoch if row["k"] in sums else -epoch for row in ours}
        for row in ours:
            sums[row["k"]] = sums.get(row["k"], 0) + row["v"]
        for row in theirs:
            rights[row["id"]].append(row["w"])
        now = Counter((k, n, w) for k, n in sums.items() for w in rights.get(k) or [None])
        out = [(row, "delete") for row in (told - now).elements()]
        out += [(row, "insert") for row in (now - told).elements()]
        index = [
            {
                "k": k,
                "left_first": 0,
                "left_count": int(k in sums),
                "right_first": 0,
                "right_count": len(rights.get(k, ())),
            }
            for k in {*sums, *(k for k in rights if rights[k])}
        ]
        told = now
        rows = ({"k": k, "sum": n, "w": w, "change": how} for (k, n, w), how in out)
        totals = bag({"k": k, "sum": n, "@epoch": touched[k]} for k, n in sums.items())
        made.append(Expected({"sums": totals, "join": bag(index)}, {"pairs": bag(rows)}))
    key = (pa.schema({"k": pa.int64()}), [(k,) for k in range(5)])
    keys = {"sums": key, "join": key}
    schemas = {"left": "k bigint, v bigint", "right": "id bigint, w string"}
    return Case("changed", schemas, {"left": left, "right": right}, declare, made, keys)


@pytest.mark.parametrize("kind", [joined, changed])
@pytest.mark.parametrize("seed", seeds(4, of=30))
def test_a_join_is_right_whatever_dies(
    seed: int, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"join {seed}")
    case, faults = kind(rng), Faults(rng, kill_write=rng.choice([0.0, 0.02]))
    faults.wrap_storage(monkeypatch)
    crash = rng.choice([0.0, 0.03])

    def reach(point: str, epoch: int) -> None:
        if faults.happens(crash, f"driver dies: {point}@{epoch}"):
            raise Killed(f"{point}@{epoch}")

    monkeypatch.setattr("headgate.commit.faults.reach", reach)
    driver = Driver(case, faults, tmp_path, warm=rng.random() < 0.6)

    done = driver.run()

    faults.kill_write = 0.0
    driver.check_all(done)


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_of_a_key_move_together(kind: str, tmp_path: Path) -> None:
    """Another number of slots at every start, as many starts as epochs."""
    left, right = draw(7)
    got: Counter[Any] = Counter()
    rows: list[dict[str, Any]] = []
    for end, slots in enumerate((1, 3, 2, 4), start=1):
        flow = flow_of(left[:end], right[:end], how="full", **KINDS[kind])
        done = run(flow, slots=slots, checkpoint=tmp_path, input_ends=end == 4, check_purity=False)
        rows += done.rows("out")
    got = told(rows)
    assert got == expected(left, right, kind, "full")


@pytest.mark.parametrize("changes", [False, True], ids=["rows", "changes"])
def test_pairs_of_joined_rows_bring_the_next_key_to_them(changes: bool) -> None:
    """Auctions have one seller each: tables bring bids of a seller's auctions into its slot."""
    rng = random.Random(3)
    auctions = [{"id": n, "seller": n % 40} for n in range(200)]
    bids = [[{"auction": rng.randrange(200), "price": 1} for _ in range(1500)] for _ in range(6)]

    def locality(manager: Any) -> float:
        flow = hg.Flow("auctions")
        a = flow.source(ListSource("id bigint, seller bigint", [auctions, *[[]] * 5]))
        b = flow.source(ListSource("auction bigint, price bigint", bids))
        if changes:
            b = b.key_by("auction").process(hg.Sum("price", name="price", emit="changes"))
        pairs = b.key_by("auction").join(a.key_by("id"), name="join")
        pairs.key_by("seller").process(hg.Last("price"), name="last").discard()
        done = run(flow, slots=4, manager=manager, check_purity=False)
        last = [record for record in done.journal if record["kind"] == "epoch"][-1]
        edges = [facts for name, facts in last["edges"].items() if name.startswith("join")]
        local = sum(facts["local_rows"] for facts in edges)
        return float(local / (local + sum(facts["remote_rows"] for facts in edges)))

    hashed = locality(hg.Manager("hash"))
    assert hashed < 0.5
    assert locality(hg.Manager("online", every=1)) > 0.9
