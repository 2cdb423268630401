"""Stateful operators: the contract, and a shelf of built-ins that keep it.

All of them take whole batches. What they keep is columns in the state of their slot; what they
emit is Arrow. Write your own as a subclass of `StatefulOperator`, or start with `Update`.
"""

from headgate.operator.aggregates import Count, Max, Mean, Min, Sum
from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.first_and_last import Deduplicate, Last, MeanOfLast
from headgate.operator.fixed_windows import Sliding, Tumbling
from headgate.operator.global_window import Global
from headgate.operator.joint import Aggregate
from headgate.operator.key_calls import KeyContext, Timer
from headgate.operator.picked import Collect, First
from headgate.operator.rows import EpochClock, Groups, KeyedRows, Partials
from headgate.operator.session_window import Session
from headgate.operator.sets import ApproxCountDistinct, CountDistinct
from headgate.operator.spread import Median, Quantile, StdDev, Variance
from headgate.operator.timers import FiredTimers, Timers
from headgate.operator.top_k import TopK
from headgate.operator.top_rows import TopRows
from headgate.operator.truth import All, Any
from headgate.operator.update import Update
from headgate.operator.window import Window

__all__ = [
    "Aggregate",
    "All",
    "Any",
    "ApproxCountDistinct",
    "Collect",
    "Count",
    "CountDistinct",
    "Deduplicate",
    "Emit",
    "EpochClock",
    "FiredTimers",
    "First",
    "Global",
    "Groups",
    "KeyContext",
    "KeyedRows",
    "Last",
    "Max",
    "Mean",
    "MeanOfLast",
    "Median",
    "Min",
    "Output",
    "Partials",
    "Quantile",
    "Session",
    "Sliding",
    "StateFields",
    "StatefulOperator",
    "StdDev",
    "Sum",
    "Timer",
    "Timers",
    "TopK",
    "TopRows",
    "Tumbling",
    "Update",
    "Variance",
    "Window",
]
