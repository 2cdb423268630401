"""A bit flips, a byte turns to garbage, a file is cut: in any file that a flow keeps.

After every damage state and sinks are those of a plain fold, or an error of ours refuses, and then,
when the file is back, all goes on as if nothing had been. Never a wrong row, never a raw exception.
A failing seed is replayed with `pytest -k "flips[17]"`.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.scenario.damaged_place import Place
from tests.scenario.flips import ANY, KINDS, ON, STOP, damaged, kind_of

from headgate.errors import HeadgateError
from strategies import seeds

FLIPS = 51


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    made = Place(Path(folder))
    made.prepare()
    yield made
    shutil.rmtree(folder)


def test_undamaged_it_goes_on_and_has_every_kind_of_file(place: Place) -> None:
    place.reset()
    place.go_on(slots=3)

    assert {kind_of(name) for name in place.files} == set(KINDS), "others are not tested"
    assert {kind_of(name) for name in place.files_now()} <= set(KINDS)
    manifest = json.loads(max((place.kept / "checkpoint" / "manifests").iterdir()).read_bytes())
    chains = [files for by_slot in manifest["chains"].values() for files in by_slot.values()]
    assert {file["kind"] for files in chains for file in files} == {"snapshot", "run", "delta"}
    assert any("piece" in file for files in chains for file in files)
    assert any("folding" in file for files in chains for file in files)
    assert manifest["costs"] and max(map(len, manifest["tables"].values())) > 2


def test_undamaged_warm_copies_are_used_and_not_built_again(place: Place) -> None:
    place.reset()
    place.go_on(slots=2)

    assert {name for name in place.files if name.startswith("warm/")} <= place.files_now()


@pytest.mark.parametrize("seed", seeds(4, of=40))
def test_flips(seed: int, place: Place) -> None:
    rng = random.Random(f"flips {seed}")
    by_kind: dict[str, list[str]] = {}
    for name in place.files:
        by_kind.setdefault(kind_of(name) or "unknown", []).append(name)
    refusals: Counter[str] = Counter()
    for number in range(FLIPS):
        kind = sorted(by_kind)[(seed * FLIPS + number) % len(by_kind)]
        name = rng.choice(by_kind[kind])
        whole, slots = place.files[name], rng.choice((1, 1, 1, 2, 2, 2, 2, 3))  # there were 2
        how, data = damaged(whole, rng)
        place.reset()
        place.put(name, data)
        what = f"{name}: {how}, then {slots} slots"
        outcome = ON
        try:
            place.go_on(slots)
        except HeadgateError as problem:
            outcome = STOP
            refusals[type(problem).__name__] += 1
            place.check_delivered()
        except BaseException as problem:
            raise AssertionError(what) from problem
        assert KINDS[kind][1] in (ANY, outcome), what
        if outcome == STOP and (rng.random() < 0.1 or not place.is_untouched(but=name)):
            place.put(name, whole)
            place.go_on(slots)
    assert len(refusals) >= 2, refusals
