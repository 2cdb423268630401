"""Where commands keep what was tuned, and how a start finds it.

`headgate tune` keeps its result per flow; `flow.start` looks into its checkpoint only. So
`headgate run` hands the one to the other, unless the checkpoint knows better.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from headgate.cli.console import counted
from headgate.commit.facts import Json, TuningFacts, facts_of
from headgate.control.tuning_file import FILE, SavedTuning, load_tuning, save_tuning
from headgate.errors import HeadgateError
from headgate.planner.tuning.calibration import Calibration
from headgate.state.storage import Storage


def kept_in(flow: str) -> Path:
    """Where the result of `headgate tune` is kept."""
    return Path("artifacts") / flow / FILE


def load_costs(path: Path) -> Calibration:
    """The file of `headgate calibrate`."""
    try:
        return Calibration.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise HeadgateError(
            f"{path} holds no costs ({problem}); make it with: headgate calibrate --out {path}"
        ) from problem


def keep_costs(checkpoint: Storage, found: Calibration) -> None:
    """New costs for a checkpoint; settings that it has stay."""
    known = load_tuning(checkpoint)
    save_tuning(checkpoint, SavedTuning(found, None if known is None else known.tuned))


def begin_with(checkpoint: Storage, flow: str) -> str:
    """Give a checkpoint without settings those of `headgate tune`; says what it begins with."""
    known = load_tuning(checkpoint)
    if known is not None and known.tuned is not None:
        return f"begins with the settings in its checkpoint: {_settings(known)}"
    place = kept_in(flow)
    kept = load_tuning(Storage.at(str(place.parent.resolve())), plain=True)
    if kept is not None and kept.tuned is not None:
        costs = kept.calibration if known is None else known.calibration
        save_tuning(checkpoint, SavedTuning(costs, kept.tuned))
        return f"begins with {place}: {_settings(kept)}"
    if known is not None:
        return "begins with a slot per core; what the engine costs is in its checkpoint"
    return "begins with a slot per core; what the engine costs is measured as it runs"


def _settings(saved: SavedTuning) -> str:
    assert saved.tuned is not None
    settings = saved.tuned.settings
    return f"{counted(settings.slots, 'slot')}, {settings.rows_per_epoch:,} rows per epoch"


def tuning_lines(journal: Iterable[Json], epochs: Collection[int]) -> Iterator[str]:
    """What the tuner has changed after these epochs, and why."""
    for facts in facts_of(journal):
        if not isinstance(facts, TuningFacts) or facts.epoch not in epochs:
            continue
        begin = f"tuned after epoch {facts.epoch}: "
        if facts.note:
            yield begin + facts.note
        if facts.slots is not None:
            yield f"{begin}{facts.slots} slots, {facts.why}"
        if facts.rows_per_epoch is not None:
            yield f"{begin}{facts.rows_per_epoch:,} rows per epoch, {facts.why_rows}"
