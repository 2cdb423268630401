"""Joins against every pair of rows, in plain Python: kinds, outer sides, epochs, slots."""

from __future__ import annotations

import pytest

from headgate.testing import run
from unit.operator.join_oracle import HOWS, KINDS, draw, expected, flow_of, told


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_join_finds_each_pair_once(kind, how):
    for seed in range(2):
        left, right = draw(seed)
        flow = flow_of(left, right, how=how, **KINDS[kind])
        got = told(run(flow, slots=1 + seed, input_ends=True, check_purity=seed > 0).rows("out"))
        assert got == expected(left, right, kind, how)
