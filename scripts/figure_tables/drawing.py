"""Tables in Markdown and pictures in SVG, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).resolve().parent.parent.parent / "docs" / "figures"


def table(head: list[str], rows: list[list[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


@contextmanager
def picture(name: str, size: tuple[float, float]) -> Iterator[Any]:
    """Axes to draw on; saved as docs/figures/NAME.svg."""
    with pictures(name, size, 1) as sides:
        yield sides[0]


@contextmanager
def pictures(name: str, size: tuple[float, float], columns: int) -> Iterator[Any]:
    """Several beside each other, with one vertical axis."""
    plt.rcParams.update({"svg.hashsalt": "headgate", "font.family": "sans-serif"})
    figure, grid = plt.subplots(
        1, columns, figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    yield grid[0]
    for axes in grid[0]:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
