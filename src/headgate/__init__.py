"""Headgate: stateful streaming on Spark in vectorised Python that decides where keys live."""

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
