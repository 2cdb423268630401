"""The flow a user declares and starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Never

from headgate.commit.planning import Decides
from headgate.commit.settings import Options
from headgate.control.settings import Manager, Scaling
from headgate.errors import DeclarationError
from headgate.topology.arguments import unknown_name
from headgate.topology.builder import FlowBuilder
from headgate.topology.changelog import Changelog
from headgate.topology.joining import Asked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headgate.runtime.query import FlowQuery
    from headgate.slot.explained import Explained


class Flow(FlowBuilder):
    """Declare sources, operators and sinks, then `start` the flow on Spark.

    flow = hg.Flow("trends")
    posts = flow.source(spark.readStream.schema("region string, tag string").json("in"))
    regions = posts.key_by("region").process(hg.Count(emit="rows"), name="by_region")
    regions.key_by("tag").process(hg.Count(), name="by_tag").to_parquet("out")
    query = flow.start(spark, checkpoint="checkpoint")
    """

    def _join_operator(
        self,
        asked: Asked,
        schemas: tuple[pa.Schema, pa.Schema],
        keys: tuple[tuple[str, ...], tuple[str, ...]],
        event_times: tuple[frozenset[str], frozenset[str]],
        told: tuple[Changelog | None, Changelog | None],
    ) -> Any:
        from headgate.operator.joining import join_operator

        return join_operator(asked, schemas, keys, event_times, told)

    def explain(self) -> Explained:
        """What was declared, as a table; raises what `start` would raise of the declaration."""
        from headgate.slot.explained import explained_flow

        return explained_flow(self.graph())

    def __repr__(self) -> str:
        kinds = [node.kind for node in self._nodes]
        steps = len(kinds) - kinds.count("source") - kinds.count("sink")
        return (
            f"<Flow {self.name!r}: {kinds.count('source')} sources, {steps} operators, "
            f"{kinds.count('sink')} sinks; explain() shows them>"
        )

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_() if self._nodes else f"<b>Flow {self.name}</b>: empty"

    def start(
        self,
        spark: SparkSession,
        *,
        checkpoint: str | PathLike[str],
        slots: int | Scaling | None = None,
        trigger: Mapping[str, Any] | None = None,
        manager: Manager | Decides | None = Manager(),
        latency_s: float | None = None,
        rows_per_epoch: int | None = None,
        parallelism: Mapping[str, int] | None = None,
        options: Options | None = None,
        **unknown: Never,
    ) -> FlowQuery:
        """Start the flow; returns at once with a handle like a StreamingQuery.

        Args:
            checkpoint: Folder (path, or URI such as s3://bucket/x) that all hosts see; Spark's
                checkpoint lies inside.
            slots: How many places there are to process and keep state in; an operator has at most
                one instance in each. A number stays, until `query.rescale`;
                `hg.Scaling(min_slots=, max_slots=)` lets the flow change it within limits
                (default: chosen, and changed while the flow runs, from 1 to a slot per core).
                May differ from the last start: state moves.
            trigger: As for `DataStreamWriter.trigger`, e.g. {"availableNow": True}.
            manager: Measures while the flow runs and moves keys to where their rows are;
                `hg.Manager(...)` has its settings. None: the routing tables stay as they are,
                except for operators whose grouping asks for a policy.
            latency_s: Latency that 95 % of rows should stay within, as far as the flow keeps up
                with what comes; slots, instances and rows per epoch are chosen for it.
            rows_per_epoch: What sources that can be told (`Reader`, or a function of two
                arguments) are told, whatever is measured (default: chosen for them, and changed
                while the flow runs).
            parallelism: How many instances operators have, by name, in place of what they were
                declared with: `{"score": 12}`. These stay, until `query.rescale`. Those of other
                operators are chosen with the slots; if `slots` is a number, they are in all of
                them.
            options: What is seldom needed: tables, storage, signing, clocks; see `hg.Options`.
        """
        from headgate.runtime.start import start_flow

        wrong: Mapping[str, object] = unknown
        for name, value in wrong.items():
            raise DeclarationError(_why_unknown(name, value), option=name)
        if parallelism is not None and not isinstance(parallelism, Mapping):
            raise DeclarationError(
                f"parallelism={parallelism!r}; give a number for each operator, such as "
                '{"name": 4}: slots= is for all of them together'
            )
        self.check_outlet()
        return start_flow(
            self,
            spark,
            checkpoint=checkpoint,
            slots=slots,
            trigger=trigger,
            manager=manager,
            latency_s=latency_s,
            rows_per_epoch=rows_per_epoch,
            parallelism=parallelism,
            options=options,
        )


OPTIONS = tuple(field.name for field in fields(Options))
PARAMETERS = tuple(
    name
    for name, parameter in inspect.signature(Flow.start).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


def _why_unknown(name: str, value: object) -> str:
    """What to write instead of a keyword that `start` does not take."""
    if name in OPTIONS:
        return f"start takes no {name}=; give options=hg.Options({name}=...)"
    instead = {
        "slots_max": f"give slots=hg.Scaling(max_slots={value!r})",
        "batch": f"give options=hg.Options(batch_rows={value!r})",
    }
    if value == "auto":
        instead["batch"] = "leave rows_per_epoch= out, and it is chosen while the flow runs"
    if name in instead:
        return f"start takes no {name}=; {instead[name]}"
    return unknown_name("start", name, (*PARAMETERS, *OPTIONS))
