"""Headgate: stateful streaming on Spark in vectorised Python that decides where keys live.

Names are loaded when first used, so that a process loads only what it needs: workers, above all,
no planner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.control.manager import Manager
    from headgate.control.scaling import Scaling
    from headgate.errors import HeadgateError
    from headgate.flow import Flow
    from headgate.operator import (
        Count,
        Deduplicate,
        EpochClock,
        KeyedRows,
        Last,
        Max,
        Mean,
        MeanOfLast,
        Min,
        Output,
        Partials,
        StateFields,
        StatefulOperator,
        Sum,
        TopK,
        Tumbling,
        Update,
    )
    from headgate.routing.table import RoutingTable, hash_table
    from headgate.routing.table_folder import load_tables
    from headgate.topology.reader import Reader

__version__ = "0.1.0"

__all__ = [
    "Count",
    "Deduplicate",
    "EpochClock",
    "Flow",
    "HeadgateError",
    "KeyedRows",
    "Last",
    "Manager",
    "Max",
    "Mean",
    "MeanOfLast",
    "Min",
    "Output",
    "Partials",
    "Reader",
    "RoutingTable",
    "Scaling",
    "StateFields",
    "StatefulOperator",
    "Sum",
    "TopK",
    "Tumbling",
    "Update",
    "hash_table",
    "load_tables",
]

_ELSEWHERE = {
    "Flow": "flow",
    "HeadgateError": "errors",
    "Manager": "control.manager",
    "Reader": "topology.reader",
    "RoutingTable": "routing.table",
    "Scaling": "control.scaling",
    "hash_table": "routing.table",
    "load_tables": "routing.table_folder",
}
"""Where a public name is defined; the others are in `operator`."""


def __getattr__(name: str) -> Any:
    if name in ("errors", "testing"):
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'operator')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
