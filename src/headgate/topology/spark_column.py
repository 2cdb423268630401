"""A Spark Column as a tree, read node by node from the JVM; what is not known is refused.

Columns are descriptions until Spark resolves them, so all there is to read are names, literals,
calls, CASE, casts and SQL text. Spark's own classes are asked, and nothing of it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError
from headgate.topology.sql import NULL, Call, Case, Cast, Constant, Name, Tree, parse

CALENDAR = frozenset(
    "year quarter month day dayofmonth dayofyear dayofweek weekofyear hour minute second date "
    "to_date date_trunc".split()
)


def is_spark_column(given: Any) -> bool:
    return type(given).__name__ == "Column" and type(given).__module__.startswith("pyspark.")


def tree_of(column: Any) -> tuple[Tree, str | None]:
    """The tree of a Column, and the name that `alias` gave it."""
    jvm = getattr(column, "_jc", None)
    if jvm is None:
        raise DeclarationError("is a Column of Spark Connect, which cannot be looked into")
    node = jvm.node()
    if _kind(node) == "Alias":
        names = list(_items(node.name()))
        if len(names) != 1:
            raise DeclarationError("has several names")
        return _checked(_tree(node.child())), str(names[0])
    if _kind(node) == "SqlExpression":
        tree, alias = parse(str(node.expression()))
        return _checked(tree), alias
    return _checked(_tree(node)), None


def _checked(tree: Tree) -> Tree:
    """Refuse what depends on the session's time zone, unless that is UTC as here."""
    if any(map(_reads_the_calendar, _inside(tree))):
        session = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
        zone = session.conf.get("spark.sql.session.timeZone")
        if zone not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
            raise DeclarationError(
                f"goes by the session's time zone, {zone}; expressions of a flow go by UTC (set "
                "spark.sql.session.timeZone to UTC if that is meant)"
            )
    return tree


def _inside(tree: Tree) -> Iterator[Tree]:
    yield tree
    parts: Iterable[Tree] = ()
    if isinstance(tree, Call):
        parts = tree.arguments
    elif isinstance(tree, Cast):
        parts = (tree.value,)
    elif isinstance(tree, Case):
        parts = (*(part for branch in tree.branches for part in branch), tree.otherwise)
    for part in parts:
        yield from _inside(part)


def _reads_the_calendar(tree: Tree) -> bool:
    if isinstance(tree, Cast):
        written = isinstance(tree.value, Constant) and str(tree.value.value).endswith("Z")
        return tree.kind.lower() in ("date", "timestamp") and not written
    return isinstance(tree, Call) and tree.name in CALENDAR


def _tree(node: Any) -> Tree:
    kind = _kind(node)
    if kind == "UnresolvedAttribute":
        return Name(tuple(str(part) for part in _items(node.nameParts())))
    if kind == "Literal":
        return _literal(node)
    if kind == "SqlExpression":
        return parse(str(node.expression()))[0]
    if kind == "UnresolvedFunction" and not node.isDistinct():
        name = _NAMES.get(str(node.functionName()).lower(), str(node.functionName()).lower())
        return Call(name, tuple(_tree(argument) for argument in _items(node.arguments())))
    if kind == "Cast":
        return Cast(_tree(node.child()), str(node.dataType().sql()))
    if kind == "Alias":
        return _tree(node.child())
    if kind == "CaseWhenOtherwise":
        branches = tuple((_tree(pair._1()), _tree(pair._2())) for pair in _items(node.branches()))
        last = node.otherwise()
        return Case(branches, _tree(last.get()) if last.isDefined() else NULL)
    if kind == "UnresolvedExtractValue":
        of, at = _tree(node.child()), _tree(node.extraction())
        if isinstance(of, Name) and isinstance(at, Constant) and pa.types.is_string(at.value.type):
            return Name((*of.parts, at.value.as_py()))
    raise DeclarationError(f"contains {kind}, which only Spark can run")


# As Spark's functions call themselves: as SQL text is read.
_NAMES = {"!": "not", "==": "=", "isnotnull": "isnotnull", "||": "concat"}


def _literal(node: Any) -> Tree:
    value = node.value()
    if value is None:
        return NULL
    kind = value.getClass().getSimpleName() if hasattr(value, "getClass") else ""
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(node.sql())  # which tells bigint from int, as Python does not
        return Constant(pa.scalar(value, pa.int64() if text.upper().endswith("L") else pa.int32()))
    if kind == "Timestamp":
        return Cast(Constant(pa.scalar(str(value.toInstant().toString()))), "timestamp")
    if kind == "LocalDateTime":
        return Cast(Constant(pa.scalar(str(value.toString()))), "timestamp_ntz")
    if kind in ("Date", "LocalDate"):
        return Cast(Constant(pa.scalar(str(value.toString()))), "date")
    if kind == "Duration":
        return Constant(pa.scalar(int(value.toNanos()) // 1000, pa.duration("us")))
    if kind:
        raise DeclarationError(f"contains a literal of type {kind}, which is not known here")
    return Constant(pa.scalar(value))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> Any:
    """The items of a Scala sequence."""
    return (sequence.apply(at) for at in range(sequence.length()))
