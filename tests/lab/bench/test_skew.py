"""`headgate-lab bench skew`: the stream without an engine gives the loads that the engine gives."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headgate.routing.hashing import mix
from headgate.topology.graph import SEVERAL_SLOTS, KeyGrouping
from headgate_lab.bench.skew import (
    GROUPINGS,
    QUICK,
    GroupedStream,
    SkewOptions,
    check_engine,
    draw_keys,
    sweep,
)
from headgate_lab.cli.main import app
from strategies import run_quickly

TINY = replace(
    QUICK, slots=4, keys=300, rows_per_epoch=3_000, engine_rows=1_500, engine_epochs=3, epochs=3
)


@pytest.fixture(autouse=True)
def checkpoints_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_lab.bench.skew.run", run_quickly)


def test_engine_and_stream_load_the_slots_alike_and_results_are_those_of_hash() -> None:
    told = check_engine(TINY, lambda _: None)

    assert told["loads_equal"] == dict.fromkeys(GROUPINGS, True)
    assert told["results_equal"] == dict.fromkeys(GROUPINGS, True)


def test_hot_keys_are_evened_out_by_every_grouping_that_may_cut_them() -> None:
    options = SkewOptions(zipf=(2.0,), keys=5_000, rows_per_epoch=40_000, epochs=4)
    found = sweep(options, lambda _: None)

    uneven = {grouping: by_zipf["2"] for grouping, by_zipf in found["imbalance"].items()}
    heaviest = 16 / sum(1 / r**2 for r in range(1, 5_001))  # one key alone, in one of 16 slots
    assert uneven["hash"] > 0.95 * heaviest < 1.05 * uneven["dkg"]
    assert uneven["pkg"] == pytest.approx(heaviest / 2, rel=0.05)
    assert max(uneven[g] for g in ("d_choices", "w_choices", "cut")) <= 1.05
    surprised = {grouping: by["2"] for grouping, by in found["imbalance_of_new_keys"].items()}
    assert max(surprised[g] for g in ("d_choices", "w_choices", "cut")) <= 1.05
    copies = {grouping: by_zipf["2"] for grouping, by_zipf in found["state_replication"].items()}
    assert copies["hash"] == copies["dkg"] == 1 <= copies["cut"] < copies["w_choices"]
    assert found["merge_rows"]["dkg"]["2"] == 0 < found["merge_rows"]["cut"]["2"]


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_figures_are_what_a_count_by_hand_gives(grouping: KeyGrouping) -> None:
    rng = np.random.default_rng(3)
    tasks = [mix(np.minimum(rng.zipf(1.7, 700), 90).astype(np.uint64)) for _ in range(2)]
    stream = GroupedStream(grouping, 4)

    for _ in range(2):
        table = stream.table
        probe = GroupedStream(grouping, 4)
        probe.route = stream.route
        targets = [probe._route(number, h) for number, h in enumerate(tasks)]
        seen = Counter(
            (int(key), int(slot))
            for h, target in zip(tasks, targets, strict=True)
            for key, slot in zip(h, target, strict=True)
        )
        owner = {key: int(table.route(np.array([key], np.uint64))[0]) for key, _ in seen}

        figures = stream.run(tasks)

        loads = Counter[int]()
        merged = Counter[int]()
        for (key, slot), rows in seen.items():
            loads[slot] += rows
            merged[owner[key]] += slot != owner[key]
        assert figures.loads.tolist() == [loads[s] for s in range(4)]
        assert figures.merged.tolist() == [merged[s] for s in range(4)]
        assert (figures.keys, figures.pieces) == (len(owner), len(seen))
        if grouping not in SEVERAL_SLOTS:
            assert figures.merged.sum() == 0


def test_heavier_keys_come_more_often() -> None:
    drawn = np.bincount(draw_keys(TINY, 2.0, 0, 50_000), minlength=TINY.keys)

    expected = 1 / np.arange(1, 6) ** 2
    assert drawn[:5] / drawn[:5].sum() == pytest.approx(expected / expected.sum(), rel=0.1)
    assert len(drawn) == TINY.keys


def test_the_command_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_lab.bench.skew.QUICK", TINY)

    result = CliRunner().invoke(
        app, ["bench", "skew", "--quick", "--json", str(tmp_path / "s.json")]
    )

    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "s.json").read_text())
    for name in ("imbalance", "state_replication", "merge_rows"):
        assert set(found[name]) == set(GROUPINGS)
        assert set(found[name]["cut"]) == {"1", "2"}
