"""Some queries in Bytewax and Pathway, over the same files, each in a Python of its own.

Both are given what they are fast at: no epochs, no state kept, totals told once at the end, results
counted and dropped. Bytewax reads the Parquet files with one worker, as in `bytewax_count`; Pathway
reads CSV files that are there before the clock starts. All rows are timed: nothing needs a warm-up.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headgate_lab.baselines import bytewax_count, pathway_count
from headgate_lab.baselines.own_venv import Rival
from headgate_lab.baselines.result import RivalUnavailable
from headgate_lab.nexmark.event_files import EventFiles
from headgate_lab.nexmark.query import Query

QUERIES = ("q3", "q17", "q18", "q20")
PEERS = {"bytewax": bytewax_count.RIVAL, "pathway": pathway_count.RIVAL}
LONGEST_S = 900
_DRIVERS = Path(bytewax_count.__file__).parent / "driver"


@dataclass(frozen=True)
class PythonPeer:
    """One of them, installed."""

    name: str
    rival: Rival
    python: Path

    @classmethod
    def installed(cls, name: str) -> PythonPeer:
        """Raises `RivalUnavailable` where it does not install."""
        return cls(name, PEERS[name], PEERS[name].setup() / "bin" / "python")

    def seconds(
        self,
        query: Query,
        files: EventFiles,
        work: Path,
        *,
        slots: int,
        results: int,
        longest_s: float = LONGEST_S,
    ) -> float:
        """How long the query took over all files.

        Raises:
            RivalUnavailable: when it is not said in this peer, fails, or has another number of
                results than DuckDB.
        """
        if query.name not in QUERIES:
            raise RivalUnavailable(f"{', '.join(QUERIES)} are said in {self.name}, no others")
        settings = work / "settings.json"
        tables = {name: [str(path) for path in files.tables[name].paths] for name in query.reads}
        settings.write_text(
            json.dumps({"query": query.name, "tables": tables, "work": str(work), "slots": slots})
        )
        command = [
            str(self.python),
            str(_DRIVERS / f"nexmark_{self.name}_driver.py"),
            str(settings),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=longest_s
            )
        except subprocess.TimeoutExpired as late:
            raise RivalUnavailable(f"{self.name}: not done in {longest_s:.0f} s") from late
        if done.returncode:
            raise RivalUnavailable(f"{self.name}: {done.stderr[-300:]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        if told["results"] != results:
            raise RivalUnavailable(
                f"{self.name}: {told['results']:,} results, {results:,} are right"
            )
        return float(told["seconds"])
