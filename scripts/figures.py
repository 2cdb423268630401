"""Put measured numbers into the docs: tables between markers, and the figure of the README.

Reads docs/figures/NAME.json, which `headgate-lab bench NAME --json docs/figures/NAME.json` wrote,
raw numbers included (for state: `python benchmarks/bench_state.py >` that file; for sax:
`headgate-lab papers sax --json` it; for nexmark: `headgate-lab nexmark --json` it; for
curves-FLOW: `bench tune --flow FLOW --curves`; for tune-costly-hosts: `bench tune --flow costly
--hosts 4`; balance-spark and albic-spark: `bench balance --spark`, `bench albic --spark`). A bench
that has no file leaves its place in the docs as it is.

    python scripts/figures.py              # all
    python scripts/figures.py osg edges    # some
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figure_tables import allocation, instances, nexmark, routing, runtime, sax, tuning
from figure_tables.drawing import FIGURES

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "docs" / "decisions"
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "guide" / "nexmark.md",
    NOTES / "0011-tables-and-planning.md",
    NOTES / "0012-cost-aware-shuffle.md",
    NOTES / "0013-hot-keys.md",
    NOTES / "0015-allocation.md",
    NOTES / "0016-tuning.md",
    NOTES / "0017-batching.md",
    NOTES / "0036-benchmarks.md",
    NOTES / "0037-instances.md",
    NOTES / "0040-windows.md",
    NOTES / "0043-files-and-text.md",
    NOTES / "0044-wide-rows.md",
    NOTES / "0045-no-debts-between-epochs.md",
)

WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "chain": runtime.chain,
    "text": runtime.text,
    "rows": runtime.wide_rows,
    "wide": runtime.wide,
    "state-text": runtime.state,
    "manage": runtime.manage,
    "fixed-cost": runtime.fixed_cost,
    "fixed-cost-parts": runtime.fixed_cost_parts,
    "state": runtime.state,
    "growth": runtime.growth,
    "vocabulary": runtime.vocabulary,
    "edges": routing.edges,
    "balance": allocation.balance,
    "albic": allocation.albic,
    "balance-spark": allocation.balance_spark,
    "albic-spark": allocation.albic_spark,
    "osg": routing.osg,
    "osg-sync": routing.osg_sync,
    "osg-spark": routing.osg_spark,
    "tune-linear-road": tuning.tune,
    "tune-sentiment": tuning.tune,
    "tune-costly": instances.costly,
    "tune-costly-hosts": instances.costly,
    "predict": instances.predict,
    "curves-linear-road": tuning.curves,
    "curves-sentiment": tuning.curves,
    "sax": sax.sax,
    "rescale": tuning.rescale,
    "skew": routing.skew,
    "nexmark": nexmark.nexmark,
}

OF_ANOTHER = {
    "osg-sync": "osg",
    "fixed-cost-parts": "fixed-cost",
}  # tables from another bench's file


def main() -> None:
    for name in sys.argv[1:] or WRITERS:
        source = FIGURES / f"{OF_ANOTHER.get(name, name)}.json"
        if not source.exists():
            continue
        text = WRITERS[name](json.loads(source.read_text()))
        for page in PAGES:
            before = page.read_text()
            marked = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
            page.write_text(marked.sub(lambda m, t=text: f"{m[1]}{t}\n{m[2]}", before))


if __name__ == "__main__":
    main()
