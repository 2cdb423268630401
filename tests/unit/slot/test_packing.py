"""A flow that cannot travel to workers is refused, and the operator that cannot is named."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import DeclarationError
from headgate.slot.packing import packed
from headgate.slot.program import compile_flow
from headgate.testing import ListSource, run


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True)
class Locked(hg.Count):
    lock: Any = field(default_factory=threading.Lock)


def flow_with(function: Any, operator: Any) -> hg.Flow:
    flow = hg.Flow("f")
    rows = flow.source(ListSource("k bigint", [[{"k": 1}]])).map(_same, "k bigint", name="first")
    rows = rows.map(function, "k bigint", name="second")
    rows.key_by("k").process(operator, name="counts").to_memory("out")
    return flow


def locking() -> Any:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    return locked


@pytest.mark.parametrize(
    ("flow", "named"),
    [
        (flow_with(locking(), hg.Count()), "second"),
        (flow_with(_same, Locked()), "counts"),
    ],
)
def test_the_kit_refuses_what_spark_would_and_names_the_operator(flow: hg.Flow, named: str) -> None:
    with pytest.raises(DeclarationError, match="lock") as caught:
        run(flow)

    assert caught.value.operator == named and repr(named) in str(caught.value)


def test_functions_with_closures_travel() -> None:
    step = [3]
    flow = flow_with(lambda batch: {"k": [k.as_py() + step[0] for k in batch["k"]]}, hg.Count())

    assert run(flow).rows("out") == [{"k": 4, "count": 1}]


def test_a_program_that_fails_as_a_whole_is_reported_too() -> None:
    program = compile_flow(flow_with(_same, hg.Count()).graph())

    def dumps(thing: Any) -> bytes:
        if thing is program:
            raise ValueError("too large")
        return pickle.dumps(thing)

    with pytest.raises(DeclarationError, match="too large"):
        packed(program, dumps)


def test_the_kit_does_not_import_pyspark() -> None:
    code = (
        "import sys, headgate as hg\n"
        "from headgate.testing import ListSource, run\n"
        "flow = hg.Flow('f')\n"
        "flow.source(ListSource('k bigint', [[{'k': 1}]])).to_memory('out')\n"
        "run(flow)\n"
        "assert '_headgate_cloudpickle' in sys.modules\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')]\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
