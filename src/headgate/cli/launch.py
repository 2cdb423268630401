"""What commands that start Spark share: options, a session, and the flow that a user names.

A flow is named as `path/app.py:flow` or `package.module:flow`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headgate.cli.console import fail
from headgate.control.tuner import TUNING_FILE
from headgate.errors import DeclarationError, HeadgateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.flow import Flow

DEFAULT_NAME = "flow"
LOG = Path("artifacts/spark.log")
Master = Annotated[
    str | None, typer.Option(help="Spark master. [default: HEADGATE_MASTER or local[*]]")
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting; may be repeated.")
]
Target = Annotated[
    str, typer.Argument(metavar="APP.PY:FLOW", help="A Flow, or a function (spark) -> Flow.")
]
Latency = Annotated[
    float | None, typer.Option(min=1e-3, help="Latency that 95 % of rows should stay within.")
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write all figures there ('-': stdout).")
]


def kept_in(flow: str) -> Path:
    """Where `headgate tune` keeps its result, and `headgate run` looks for it."""
    return Path("artifacts") / flow / TUNING_FILE


@contextmanager
def session(
    console: Console,
    name: str,
    conf: list[str] | None = None,
    master: str | None = None,
    *,
    log: Path = LOG,
    what: str = "flow",
) -> Iterator[SparkSession]:
    """A session that ends with the command; errors of Spark are shown in a few lines."""
    from pyspark.errors import PySparkException

    from headgate.runtime.session import local_session

    settings = {}
    for text in conf or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise HeadgateError(f"--conf {text!r} is not of the form KEY=VALUE")
        settings[key] = value
    if master:
        settings["spark.master"] = master
    with console.status("[dim]starting Spark[/]"):
        spark = local_session(name, conf=settings, log_file=log)
    try:
        yield spark
    except PySparkException as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        fail("\n".join(lines[:12]), title=f"Spark stopped the {what}")  # the rest is a trace
    finally:
        spark.stop()


def load_target(target: str) -> Any:
    """The object that `target` names, before it is known to be a flow.

    The file's folder joins the import path, here and in Python workers of this machine, and
    functions of the file travel by value, so that a single file runs anywhere.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", DEFAULT_NAME)
    is_file = place.endswith(".py") or os.sep in place
    module = _from_file(Path(place)) if is_file else _from_package(place)
    if not hasattr(module, name):
        found = [n for n, value in vars(module).items() if _is_flow_like(n, value, module)]
        hint = f"; it has {', '.join(found)}" if found else ""
        raise DeclarationError(f"{place} defines no {name!r}{hint}. Name it: {place}:NAME")
    return getattr(module, name)


def flow_of(found: Any, spark: Any) -> Flow:
    """The flow itself, made by calling `found` with the session if it is a function."""
    from headgate.flow import Flow

    if isinstance(found, Flow):
        return found
    if callable(found):
        wants_spark = bool(inspect.signature(found).parameters)
        found = found(spark) if wants_spark else found()
    if not isinstance(found, Flow):
        raise DeclarationError(
            f"that is a {type(found).__name__}; name a headgate Flow, or a function that takes "
            "the SparkSession and returns one"
        )
    return found


def _from_file(path: Path) -> ModuleType:
    from pyspark import cloudpickle

    if not path.is_file():
        raise DeclarationError(f"there is no file {path} (from {Path.cwd()})")
    _search(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    register: Any = cloudpickle.register_pickle_by_value
    register(module)
    return module


def _from_package(name: str) -> ModuleType:
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not name.startswith(problem.name):
            raise
        raise DeclarationError(
            f"there is no module {name!r}; give a file as path/app.py:flow, or an importable module"
        ) from problem


def _search(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])


def _is_flow_like(name: str, value: Any, module: ModuleType) -> bool:
    from headgate.flow import Flow

    own = inspect.isfunction(value) and value.__module__ == module.__name__
    return isinstance(value, Flow) or (own and not name.startswith("_") and "flow" in name)
