"""What was measured and chosen for a flow, kept in its checkpoint: `tuning.json`.

Advice, not truth: a checkpoint without it works as well, and it is measured again. So is one that
is damaged, or that an earlier version wrote without a digest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.errors import DeclarationError
from headgate.planner.tuning.cost_model import Calibration
from headgate.planner.tuning.epochs import TunedEpochs
from headgate.state.digest import DamagedFile, seal, unseal
from headgate.state.storage import Storage

FILE = "tuning.json"


@dataclass(frozen=True)
class SavedTuning:
    """The engine's costs, and the settings if the flow has been measured."""

    calibration: Calibration
    tuned: TunedEpochs | None = None

    def to_json(self) -> dict[str, Any]:
        tuned = None if self.tuned is None else self.tuned.to_json()
        return {"calibration": self.calibration.to_json(), "tuned": tuned}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> SavedTuning:
        tuned = told.get("tuned")
        return cls(
            Calibration.from_json(told["calibration"]),
            None if tuned is None else TunedEpochs.from_json(tuned),
        )


def load_tuning(storage: Storage, *, plain: bool = False) -> SavedTuning | None:
    """What is saved there, if it is whole; a `plain` file is the user's own and has no digest."""
    try:
        data = storage.read(FILE)
        return SavedTuning.from_json(json.loads(data) if plain else unseal(data))
    except (OSError, DamagedFile, KeyError, TypeError, ValueError, AttributeError):
        return None


def read_calibration(path: Path) -> Calibration:
    """The file of `headgate calibrate`, or that of `headgate tune`."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Calibration.from_json(told.get("calibration", told))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DeclarationError(
            f"calibration={str(path)!r} holds no costs ({problem}); make it with: "
            f"headgate calibrate --out {path}"
        ) from problem


def save_tuning(storage: Storage, saved: SavedTuning) -> None:
    storage.write(FILE, seal(saved.to_json(), indent=2))
