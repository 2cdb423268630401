"""The flow a user declares and starts."""

from __future__ import annotations

import difflib
import inspect
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from headgate.errors import DeclarationError
from headgate.topology.builder import FlowBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.runtime.query import FlowQuery


class Flow(FlowBuilder):
    """Declare sources, operators and sinks, then `start` the flow on Spark.

    flow = hg.Flow("trends")
    posts = flow.source(spark.readStream.schema("region string, tag string").json("in"))
    regions = posts.key_by("region").process(hg.Count(emit="rows"), name="by_region")
    regions.key_by("tag").process(hg.Count(), name="by_tag").to_parquet("out")
    query = flow.start(spark, slots=4, checkpoint="checkpoint")
    """

    def start(
        self,
        spark: SparkSession,
        *,
        checkpoint: str | PathLike[str],
        slots: int | None = None,
        parallelism: int | Literal["auto"] | None = None,
        **options: Any,
    ) -> FlowQuery:
        """Start on Spark and return a handle like a StreamingQuery; see `runtime.start_flow`.

        `parallelism` is another word for `slots`; "auto" has them chosen, and changed while the
        flow runs, by what is measured. `batch="auto"` has rows per epoch chosen. The first such
        start measures the engine; `calibration=` takes a file of `headgate calibrate` instead.
        """
        from headgate.runtime.start import start_flow

        known = inspect.signature(start_flow).parameters
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}=?" if near else ""
                raise DeclarationError(f"start has no option {name}={hint}", option=name)
        return start_flow(
            self, spark, slots=slots, parallelism=parallelism, checkpoint=checkpoint, **options
        )
