"""Rivals that bring their own world live in their own virtual environment.

Their packages never meet ours. A driver script of ours runs under the rival's Python, reads the
epochs' Parquet, writes the final counts as Parquet and prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headgate.demo import EpochFiles
from headgate_lab.baselines.result import BaselineResult, RivalUnavailable, counts_table

_CACHE = Path.home() / ".cache" / "headgate" / "rivals"
INSTALL_S = 1_800
_DRIVERS = Path(__file__).parent / "driver"


@dataclass(frozen=True)
class Rival:
    """A rival by name, what pip installs for it, and the driver that speaks its API."""

    name: str
    requirements: tuple[str, ...]
    driver: str

    @property
    def default_venv(self) -> Path:
        return _CACHE / self.requirements[0].replace("==", "-")

    def setup(self, venv_dir: Path | None = None) -> Path:
        """Create the environment, unless it is there and complete; return its directory.

        Raises:
            RivalUnavailable: when pip cannot install it here; the message ends with pip's words.
        """
        venv = venv_dir or self.default_venv
        stamp = venv / "installed.json"
        if stamp.exists() and json.loads(stamp.read_text()) == list(self.requirements):
            return venv
        python = venv / "bin" / "python"
        pip_install = [str(python), "-m", "pip", "install", "--quiet", *self.requirements]
        for command in ([sys.executable, "-m", "venv", str(venv)], pip_install):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=INSTALL_S
                )
            except subprocess.TimeoutExpired as late:
                raise RivalUnavailable(f"{self.name}: not installed in {INSTALL_S} s") from late
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise RivalUnavailable(f"{self.name} does not install here: {last}")
        stamp.write_text(json.dumps(list(self.requirements)))
        return venv

    def run(
        self, epochs: EpochFiles, *, work_dir: Path, venv_dir: Path | None, options: Sequence[str]
    ) -> BaselineResult:
        """Run the driver over all epochs. The time is its own, without start-up."""
        venv = venv_dir or self.default_venv
        if not (venv / "installed.json").exists():
            raise RivalUnavailable(f"{self.name} is not installed in {venv}; call setup() first")
        work_dir.mkdir(parents=True, exist_ok=True)
        said = self._call(venv, epochs, work_dir, options)
        k1, k2 = (pq.read_table(work_dir / f"{self.name}-{key}.parquet") for key in ("k1", "k2"))
        return BaselineResult(
            self.name,
            said["rows"],
            (said["seconds"],),
            counts_table(k1["key"].to_numpy(), k1["count"].to_numpy()),
            counts_table(k2["key"].to_numpy(), k2["count"].to_numpy()),
        )

    def _call(
        self, venv: Path, epochs: EpochFiles, work_dir: Path, options: Sequence[str]
    ) -> dict[str, Any]:
        paths = [str(path) for path in epochs.paths]
        command = [str(venv / "bin" / "python"), str(_DRIVERS / self.driver), str(work_dir)]
        done = subprocess.run(
            [*command, *options, *paths], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} failed:\n{done.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer
