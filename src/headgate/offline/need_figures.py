"""Figures are an extra: matplotlib is large, and a flow runs without it."""

from __future__ import annotations

from importlib.util import find_spec

from headgate.errors import HeadgateError


def why_no_figures() -> str:
    """What is missing and how to get it; empty where figures can be drawn."""
    if find_spec("matplotlib") is not None:
        return ""
    return 'figures need matplotlib, which is not installed; pip install "headgate[figures]"'


def need_figures() -> None:
    """Refuse, before any work is done, what could not be drawn in the end."""
    if why := why_no_figures():
        raise HeadgateError(why, extra="figures")
