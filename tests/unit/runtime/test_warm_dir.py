"""Where a worker keeps warm copies: apart from other flows and other users."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.slot.parts import compiled, plan_for, source

from headgate import Count, Flow
from headgate.runtime.worker import _warm_dir


def test_every_flow_and_user_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow("f")
    source(flow, "k bigint").key_by("k").process(Count()).to_memory("out")
    plan = replace(plan_for(compiled(flow), 1), warm_dir=str(tmp_path), storage_uri="file:/a")
    mine = _warm_dir(plan)
    other_flow = _warm_dir(replace(plan, storage_uri="file:/b"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    other_user = _warm_dir(plan)

    folders = {mine, other_flow, other_user}
    assert len(folders) == 3
    assert all(folder is not None and Path(folder).parent == tmp_path for folder in folders)
