"""What `--help` shows of a command besides its options: calls to begin with, which tests parse."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

Example = tuple[str, str]

START: tuple[Example, ...] = (
    ("headgate demo", "a minute on this machine, ends with a checked result and an HTML report"),
    ("headgate run app.py:flow --epochs 5", "run the flow that `app.py` declares as `flow`"),
    ("headgate tune app.py:flow", "which slots and rows per epoch, and why"),
    ("headgate inspect artifacts/demo/checkpoint", "what a checkpoint holds"),
    (
        "headgate inspect artifacts/demo/checkpoint --operator by_region --key london",
        "one key's state",
    ),
    ("headgate report artifacts/demo/checkpoint --out report.html", "its journal, drawn"),
)

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "demo": (
        ("headgate demo", "about a minute"),
        ("headgate demo --rows-per-epoch 20000 --epochs 12 --seed 3", "smaller, other posts"),
    ),
    "run": (
        ("headgate run app.py:flow", "until Ctrl-C; the same again goes on where it stopped"),
        ("headgate run app.py:flow --once --slots 4", "what there is now, in four slots"),
        (
            "headgate run app.py:flow --every '5 seconds' --checkpoint s3://bucket/counts",
            "every five seconds, with its state on S3",
        ),
        (
            "headgate run app.py:flow --latency-s 3 --max-slots 8 --conf spark.ui.enabled=true",
            "slots and rows per epoch are chosen for that",
        ),
    ),
    "analyze": (
        (
            "headgate analyze posts/ --key region --key hashtag --slots 6 --out tables",
            "keys of two operators in a row; `headgate run app.py:flow --tables tables` takes them",
        ),
    ),
    "inspect": (
        ("headgate inspect ck", "a line for every operator"),
        ("headgate inspect ck --operator by_tag --key '#snow'", "where a key is, and its rows"),
        ("headgate inspect ck --operator pairs --key 7 --key '\\N'", "two columns; null is \\N"),
        ("headgate inspect ck --journal 10 --json", "for programs"),
    ),
    "replay": (
        (
            "headgate replay posts.parquet --key region --key hashtag --window 100000 "
            "--period 50000",
            "what the manager's planner would have done",
        ),
    ),
    "report": (
        ("headgate report artifacts/demo/checkpoint", "writes headgate-report.html"),
        ("headgate report ck --out day.html --title 'Tuesday'", "also beside a flow that runs"),
    ),
    "calibrate": (
        ("headgate calibrate", "once for a machine"),
        ("headgate calibrate --quick --checkpoint ck", "rough, kept with a checkpoint"),
    ),
    "tune": (
        ("headgate tune app.py:flow", "the fastest settings"),
        ("headgate tune app.py:flow --rate 50000 --latency-s 5", "the fewest slots for that"),
        ("headgate tune app.py:flow --checkpoint ck", "a start from `ck` begins with them"),
    ),
}


def epilog_of(title: str, examples: tuple[Example, ...]) -> str:
    """Examples as a paragraph of help each."""
    return "\n\n".join([f"**{title}**", *(f"`{call}` : {why}" for call, why in examples)])


class Command(TyperCommand):
    """A command whose flags do not say that they are booleans."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The same of the group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


def _bare_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
