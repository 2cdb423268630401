"""The driver program of `bench tune --flow costly --hosts N`; runs in the cluster's namespace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate_lab.bench.flow_runs import Ground


def main(wanted: dict[str, Any], work: Path) -> dict[str, Any]:
    from headgate_lab.bench.tune_costly import compare, costly_options

    ground = Ground(SparkSession.builder.getOrCreate(), work)
    return compare(ground, costly_options(**wanted), lambda text: sys.stderr.write(text + "\n"))


if __name__ == "__main__":
    told = main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")
