"""Sources that have names in Spark's checkpoint, so that they may come and go.

Spark keeps the offsets of a query's sources by their position, and refuses another number of them.
Since 4.3 it can keep them by name (`spark.sql.streaming.queryEvolution.enableSourceEvolution`), if
the checkpoint begins so and every source has a name. headgate gives `Files` and `Kafka` theirs, so
a flow of those has names from its first start. A DataFrame has one if its reader was given it,
which Spark only allows, and then demands of all, while that setting is on in the session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.commit.changed_state import Changes
from headgate.commit.checkpoint import Checkpoint
from headgate.commit.continuity import spark_names
from headgate.errors import IncompatibleFlow
from headgate.runtime.exchange import with_conf
from headgate.topology.files import Files
from headgate.topology.graph import FlowGraph
from headgate.topology.kafka import Kafka

SETTING = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def names_for_spark(
    spark: SparkSession, graph: FlowGraph, place: Checkpoint, renamed: Mapping[str, str]
) -> dict[str, str]:
    """What Spark's checkpoint is to call the flow's sources; empty if offsets go by position."""
    sources = graph.of_kind("source")
    setting = _setting(spark)
    others = [n.own_name for n in sources if not isinstance(n.spec.frame, Files | Kafka)]
    can_be_named = setting is not None and (setting == "true" or not others)
    planned = place.spark_sources() is not None
    if planned and place.names_sources() and not can_be_named:
        raise IncompatibleFlow(
            f"sources have names in the checkpoint {place.spark_uri}, and {others[:1]} is a "
            f"DataFrame without one: set {SETTING} to true before it is made, and make it with "
            "spark.readStream.name('its name')",
            changes=others,
        )
    if not (place.names_sources() if planned else can_be_named):
        return {}
    mine = Changes(renamed=renamed).names_of("source")
    before = place.spark_sources() or ()
    return spark_names([n.own_name for n in sources], place.spark_names(), mine, before)


def _setting(spark: SparkSession) -> str | None:
    """The setting; None if this Spark has none."""
    try:
        return str(spark.conf.get(SETTING))
    except (PySparkException, Py4JError):
        return None


@contextmanager
def naming(spark: SparkSession, names: Collection[str]) -> Iterator[None]:
    """Hold the setting, if sources are to have names, while they are made and the query starts."""
    with with_conf(spark, {SETTING: "true"} if names else {}):
        yield


def come_back(graph: FlowGraph) -> list[str]:
    """Sources that go on where they were after having been gone: Spark logs the files it read."""
    return [n.own_name for n in graph.of_kind("source") if isinstance(n.spec.frame, Files)]
