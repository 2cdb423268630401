"""Headgate: stateful streaming on Spark in vectorised Python that decides where keys live.

Names are loaded when first used, so that a process loads only what it needs: workers, above all,
no planner.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.commit.facts import EpochFacts, OutcomeFacts, PlanFacts
    from headgate.commit.planning import Decides, Decision, Observed
    from headgate.commit.settings import Options
    from headgate.control.settings import Manager, PlannerSettings, Scaling
    from headgate.errors import HeadgateError
    from headgate.flow import Flow
    from headgate.operator import (
        Aggregate,
        All,
        Any,
        ApproxCountDistinct,
        Collect,
        Count,
        CountDistinct,
        Deduplicate,
        EpochClock,
        FiredTimers,
        First,
        Global,
        KeyContext,
        KeyedRows,
        Last,
        Max,
        Mean,
        MeanOfLast,
        Median,
        Min,
        Output,
        Partials,
        Quantile,
        Session,
        Sliding,
        StateFields,
        StatefulOperator,
        StdDev,
        Sum,
        Timer,
        Timers,
        TopK,
        TopRows,
        Tumbling,
        Update,
        Variance,
        Window,
    )
    from headgate.routing.table import RoutingTable, hash_table, load_tables
    from headgate.runtime.query import FlowQuery
    from headgate.runtime.session import local_session
    from headgate.topology.builder import Reader
    from headgate.topology.files import Files
    from headgate.topology.kafka import Kafka
    from headgate.topology.stream import Stream

__version__ = "0.2.0"

__all__ = [
    "Aggregate",
    "All",
    "Any",
    "ApproxCountDistinct",
    "Collect",
    "Count",
    "CountDistinct",
    "Decides",
    "Decision",
    "Deduplicate",
    "EpochClock",
    "EpochFacts",
    "Files",
    "FiredTimers",
    "First",
    "Flow",
    "FlowQuery",
    "Global",
    "HeadgateError",
    "Kafka",
    "KeyContext",
    "KeyedRows",
    "Last",
    "Manager",
    "Max",
    "Mean",
    "MeanOfLast",
    "Median",
    "Min",
    "Observed",
    "Options",
    "OutcomeFacts",
    "Output",
    "Partials",
    "PlanFacts",
    "PlannerSettings",
    "Quantile",
    "Reader",
    "RoutingTable",
    "Scaling",
    "Session",
    "Sliding",
    "StateFields",
    "StatefulOperator",
    "StdDev",
    "Stream",
    "Sum",
    "Timer",
    "Timers",
    "TopK",
    "TopRows",
    "Tumbling",
    "Update",
    "Variance",
    "Window",
    "hash_table",
    "load_tables",
    "local_session",
]

_NAMES_OF = {
    "commit.facts": ("EpochFacts", "OutcomeFacts", "PlanFacts"),
    "commit.planning": ("Decides", "Decision", "Observed"),
    "commit.settings": ("Options",),
    "control.settings": ("Manager", "PlannerSettings", "Scaling"),
    "errors": ("HeadgateError",),
    "flow": ("Flow",),
    "routing.table": ("RoutingTable", "hash_table", "load_tables"),
    "runtime.query": ("FlowQuery",),
    "runtime.session": ("local_session",),
    "topology.builder": ("Reader",),
    "topology.files": ("Files",),
    "topology.kafka": ("Kafka",),
    "topology.stream": ("Stream",),
}
_HOME_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
"""Where a public name is defined; the others are in `operator`."""


def __getattr__(name: str) -> object:
    if name in ("errors", "testing"):
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME_OF.get(name, 'operator')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
