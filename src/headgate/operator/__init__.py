"""Stateful operators: the contract, and a shelf of built-ins that keep it.

All of them take whole batches. What they keep is columns in the state of their slot; what they
emit is Arrow. Write your own as a subclass of `StatefulOperator`, or start with `Update`.
"""

from headgate.operator.base import Emit, Output, StateFields, StatefulOperator
from headgate.operator.count import Count
from headgate.operator.deduplicate import Deduplicate
from headgate.operator.last import Last
from headgate.operator.max import Max
from headgate.operator.mean import Mean
from headgate.operator.mean_of_last import MeanOfLast
from headgate.operator.min import Min
from headgate.operator.partial import Partials, PartialState
from headgate.operator.rows import EpochClock, Groups, KeyedRows
from headgate.operator.sum import Sum
from headgate.operator.top_k import TopK
from headgate.operator.update import Update
from headgate.operator.window import Tumbling

__all__ = [
    "Count",
    "Deduplicate",
    "Emit",
    "EpochClock",
    "Groups",
    "KeyedRows",
    "Last",
    "Max",
    "Mean",
    "MeanOfLast",
    "Min",
    "Output",
    "PartialState",
    "Partials",
    "StateFields",
    "StatefulOperator",
    "Sum",
    "TopK",
    "Tumbling",
    "Update",
]
