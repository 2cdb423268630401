"""An instance's measurements outlive its tasks, count once, and leave it only when they are due."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Flow
from headgate.routing.costs import CostModel, CostSketch, SketchShape
from headgate.routing.hashing import mix
from headgate.routing.identity import Identity
from headgate.slot.cost_memory import Place, tell
from headgate.state.storage import Storage
from headgate.state.store import StateStore

SHAPE = SketchShape.within(0.01, 0.05)


@pytest.fixture(params=["on its host", "in the process"])
def store(request, tmp_path):
    warm = str(tmp_path / "warm") if request.param == "on its host" else None
    storage = Storage.at(str(tmp_path / "state"))
    return StateStore(storage, warm_dir=warm, buckets=16, identity=Identity(bytes(16)))


@pytest.fixture
def place(tmp_path):
    flow = Flow("f")
    rows = source(flow, "k bigint").shuffle(grouping="cost", attribute="k")
    rows.map(lambda b: b, "k bigint", name="work").to_memory("out")
    return Place(plan_for(compiled(flow), storage_uri=str(tmp_path)), "work", 1, 1)


def at(place, epoch):
    return place._replace(plan=replace(place.plan, epoch=epoch))


def measured(seed, factor=1.0):
    values = np.random.default_rng(seed).integers(0, 25, 64)
    sketch = CostSketch(SHAPE)
    sketch.update(mix(values.astype(np.uint64)), (values + 1.0) * factor)
    return sketch


def told(store, place, epochs, factor=1.0):
    """The epochs in which the instance sends, and its last sketches."""
    sent = {e: tell(store, at(place, e), measured(e, factor)).sent for e in epochs}
    return {e: sketch for e, sketch in sent.items() if sketch is not None}


def test_it_sends_when_stable_seldom_after_that_and_again_on_change(store, place):
    steady = told(store, place, range(60))
    assert 0 not in steady, "one epoch says nothing about change"
    assert 2 <= len(steady) <= 8, "about log2 of 60 epochs"
    assert told(store, place, range(60, 66), factor=3.0)


def test_an_epoch_that_runs_again_counts_once_and_tells_the_same(store, place):
    for epoch in range(6):
        first = tell(store, at(place, epoch), measured(epoch)).sent
        again = tell(store, at(place, epoch), measured(epoch + 100)).sent
        assert (first is None) == (again is None)
        if first is not None and again is not None:
            assert (first.frequency == again.frequency).all()
            assert first.rows == 64 * (epoch + 1)


def test_levels_and_slots_are_kept_apart(store, place):
    told(store, place, range(4))
    assert tell(store, at(place, 3)._replace(level=2), measured(9)).sent is None, "it was told of 2"
    assert not told(store, place._replace(slot=0), range(1)), "another instance knows nothing"


def test_without_notes_it_goes_on_from_what_the_plan_says_it_told(store, place, tmp_path):
    sent = told(store, place, range(4))
    last = sent[max(sent)]
    model = CostModel.of([CostSketch(SHAPE), last])
    elsewhere = replace(place.plan, costs={"work": model}, storage_uri=str(tmp_path / "other"))
    there = StateStore(store.storage, warm_dir=None, buckets=16, identity=store.identity)
    new = place._replace(plan=elsewhere)
    assert not told(there, new, range(4, 6)), "all as told"
    (again,) = told(there, new, range(6, 14)).values()
    assert again.rows >= 2 * last.rows


def test_damaged_notes_and_those_of_a_deleted_checkpoint_are_forgotten(place, tmp_path):
    storage = Storage.at(str(tmp_path / "state"))
    store = StateStore(storage, warm_dir=str(tmp_path / "warm"), buckets=16)
    told(store, place, range(20, 24))
    assert 0 not in told(store, place, range(1)), "notes of epoch 23 do not precede epoch 0"
    (note,) = (tmp_path / "warm").rglob("note")
    whole = note.read_bytes()
    for content in (b"", whole[:40], whole[:-1] + bytes([whole[-1] ^ 1])):
        note.write_bytes(content)
        os.chmod(note, 0o600)
        assert not told(store, place, range(30, 31)), "it knows nothing again"
