"""Tables I and II and Figures 3 to 6 of Sax et al. 2013, as measured."""

from __future__ import annotations

from typing import Any

from figure_tables.drawing import pictures
from headgate_lab.bench.sax_page import CONFIGURATIONS, page

COLORS = dict(zip(CONFIGURATIONS, ("#862e9c", "#1971c2", "#c92a2a", "#2b8a3e"), strict=True))
TITLES = {"linear-road": "Linear Road", "sentiment": "sentiment analysis"}


def sax(found: dict[str, Any]) -> str:
    draw_uptime(found)
    draw_emitted(found)
    draw_latency(found)
    shown = (
        "![Figure 3: seconds for all rows](../figures/sax-uptime.svg)",
        "![Figures 4 and 6: rows emitted over time](../figures/sax-emitted.svg)",
        "![Figure 5: latency of two operators](../figures/sax-latency.svg)",
    )
    return "\n\n".join([page(found), *shown])


def draw_uptime(found: dict[str, Any]) -> None:
    """Figure 3."""
    with pictures("sax-uptime", (9, 2.6), 2) as sides:
        for axes, (flow, told) in zip(sides, found["flows"].items(), strict=True):
            spent = told["figures"]["uptime_s"]
            names = [name.replace("_", " ") for name in CONFIGURATIONS]
            seconds = [spent[name] for name in CONFIGURATIONS]
            bars = axes.barh(names, seconds, color=[COLORS[n] for n in CONFIGURATIONS])
            axes.bar_label(bars, [f"{s:,.1f}" for s in seconds], padding=4, fontsize=9)
            axes.set_xscale("log")
            axes.set_xlim(min(seconds) / 2, max(seconds) * 5)
            axes.set_xlabel(f"seconds for {told['figures']['rows']:,} rows, logarithmic")
            axes.set_title(TITLES[flow], fontsize=10)
        sides[0].invert_yaxis()


def draw_emitted(found: dict[str, Any]) -> None:
    """Figures 4 and 6."""
    with pictures("sax-emitted", (9, 3.0), 2) as sides:
        for axes, (flow, told) in zip(sides, found["flows"].items(), strict=True):
            for name in CONFIGURATIONS:
                series = told["figures"]["emitted"][name]
                axes.plot(
                    series["seconds"],
                    [rows / max(series["rows"]) for rows in series["rows"]],
                    "o-",
                    markersize=3,
                    color=COLORS[name],
                    label=name.replace("_", " "),
                )
            axes.set_xscale("symlog", linthresh=1.0)
            axes.set_xlabel("seconds, logarithmic")
            axes.set_title(TITLES[flow], fontsize=10)
        sides[0].set_ylabel("share of all rows emitted")
        sides[0].legend(fontsize=8, frameon=False)


def draw_latency(found: dict[str, Any]) -> None:
    """Figure 5."""
    with pictures("sax-latency", (9, 2.6), 2) as sides:
        for axes, (flow, told) in zip(sides, found["flows"].items(), strict=True):
            latency = told["figures"]["processing_latency_ms"]
            operators = list(latency["optimized"])
            for place, name in enumerate(CONFIGURATIONS):
                at = [i + (place - 1.5) * 0.2 for i in range(len(operators))]
                shown = [max(latency[name][op], 1e-3) for op in operators]
                axes.bar(at, shown, 0.18, color=COLORS[name], label=name.replace("_", " "))
            axes.set_xticks(range(len(operators)), operators)
            axes.set_yscale("log")
            axes.set_title(TITLES[flow], fontsize=10)
        sides[0].set_ylabel("ms in one call, logarithmic")
        sides[1].legend(fontsize=8, frameon=False)
