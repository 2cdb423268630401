"""What was measured and chosen for a flow, kept in its checkpoint: `tuning.json`.

Advice, not truth: a checkpoint without it, or with one that cannot be read, works as well, and it
is measured again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headgate.planner.tuning.calibration import Calibration
from headgate.planner.tuning.epochs import TunedEpochs
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


def load_tuning(storage: Storage) -> SavedTuning | None:
    """What is saved there, if it can be read."""
    try:
        return SavedTuning.from_json(json.loads(storage.read(FILE)))
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None


def save_tuning(storage: Storage, saved: SavedTuning) -> None:
    storage.write(FILE, (json.dumps(saved.to_json(), indent=2) + "\n").encode())
