"""Windows behind windows: nothing is late for the next one, and each closes as early as it can."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.scenario.oracle import Case, bag, chained_windows

from headgate.testing import run


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_windows_are_those_of_a_plain_fold(seed: int, tmp_path: Path) -> None:
    """Lengths of any ratio, rows that bypass, a merge with the source; restarted after each epoch.

    Only the operators that take rows of the source, which may be late, ever drop any.
    """
    case = chained_windows(random.Random(seed))
    slots = 1 + seed % 3

    for epoch, expected in enumerate(case.expected):
        flow, streams = first_epochs(case, epoch + 1).flow()
        for name, stream in streams.items():
            stream.to_memory(f"to_{name}")
        result = run(flow, slots=slots, checkpoint=tmp_path, seed=seed, check_purity=False)

        for name, output in expected.output.items():
            got = [row for at, row in result.outputs.get(f"to_{name}", []) if at == epoch]
            assert bag(got) == output, (epoch, name)
        for name, state in expected.state.items():
            assert bag(result.state(name)) == state, (epoch, name)
        assert not {"cities", "all"} & set(result.records[-1]["late_rows"])


def first_epochs(case: Case, count: int) -> Case:
    epochs = {name: given[:count] for name, given in case.epochs.items()}
    return Case(
        case.name, case.schemas, epochs, case.declare, case.expected, case.keys, case.event_time
    )
