"""A program as bytes for Spark's workers; if that fails, an error that names the operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from headgate.errors import DeclarationError
from headgate.slot.program import Program

_PICKLER = "_headgate_cloudpickle"


def packed(program: Program, dumps: Callable[[Any], bytes]) -> bytes:
    """The program, pickled by `dumps`."""
    try:
        return bytes(dumps(program))
    except Exception as problem:
        for node in program.order:
            try:
                dumps(node)
            except Exception as reason:
                raise DeclarationError(
                    f"{node.kind} {node.name!r} cannot be sent to Spark's workers: "
                    f"{type(reason).__name__}: {reason}. What it is given or refers to must be "
                    "picklable; make locks, clients and open files inside the function, at its "
                    "first call",
                    operator=node.name,
                ) from reason
        raise DeclarationError(
            f"the flow cannot be sent to Spark's workers: {type(problem).__name__}: {problem}"
        ) from problem


def check_travels(program: Program) -> None:
    """Refuse what Spark could not send to its workers; says nothing where Spark is not installed.

    Spark's pickler is one file that imports nothing of Spark, and is loaded as that file: pyspark
    itself is not imported.
    """
    if _PICKLER not in sys.modules:
        spark = find_spec("pyspark")
        if spark is None or spark.origin is None:
            return
        path = Path(spark.origin).parent / "cloudpickle" / "cloudpickle.py"
        spec = spec_from_file_location(_PICKLER, path)
        if not path.exists() or spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_PICKLER] = module
    packed(program, sys.modules[_PICKLER].dumps)
