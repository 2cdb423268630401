"""The vocabulary bench: what is timed does its work, and the figures that docs show are there."""

from __future__ import annotations

from headgate_lab.bench.vocabulary import QUICK, run_vocabulary


def test_every_operator_puts_out_what_its_rows_hold() -> None:
    found = run_vocabulary(QUICK, lambda line: None)

    emitted = found["rows_emitted"]
    for keys in QUICK.window_keys:  # a result for every key when its minute closes
        assert emitted[f"tumbling_{keys}"] == emitted[f"sliding_{keys}"] == keys * QUICK.epochs
    assert emitted["sessions"] > 0 and emitted["join"] > 0
    assert found["rows_per_s_per_core"].keys() == emitted.keys()
    assert found["sliding_over_tumbling"].keys() == {str(keys) for keys in QUICK.window_keys}
