"""What a start may change of a flow whose state is stored, and what it may drop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headgate.errors import (
    DeclarationError,
    ForeignCheckpoint,
    IncompatibleFlow,
    UnknownName,
)


def check_compatible(
    old: Mapping[str, Any], new: Mapping[str, Any], uri: str, drop_state: Collection[str] = ()
) -> None:
    """Stored state must still fit: same flow, and for every operator same key, state, settings."""
    if old["flow"] != new["flow"]:
        raise ForeignCheckpoint(
            f"checkpoint {uri} belongs to flow {old['flow']!r}, not {new['flow']!r}",
            found=old["flow"],
            wanted=new["flow"],
        )
    changes = []
    for name, before in old["operators"].items():
        after = new["operators"].get(name)
        if after is None:
            if name not in drop_state:
                changes.append(
                    f"operator {name!r} is gone and its state with it "
                    f"(start with drop_state=[{name!r}] if that is meant)"
                )
            continue
        for what in ("key", "state", "settings", "ttl_ms"):
            if before[what] != after[what]:
                changes.append(f"{what} of {name!r} was {before[what]}, is now {after[what]}")
    if changes:
        raise IncompatibleFlow(
            f"the flow changed in a way its state in {uri} cannot follow: {'; '.join(changes)}. "
            "Undo the change, or start with a new checkpoint folder",
            changes=changes,
        )


def check_gone(
    old: Mapping[str, Any] | None, new: Mapping[str, Any], drop_state: Collection[str]
) -> None:
    """`drop_state` may not name operators that the flow still has, unless a sink was called so."""
    sinks = () if old is None else old.get("sinks", ())
    for name in drop_state:
        if name in new["operators"] and name not in sinks:
            raise DeclarationError(
                f"drop_state names {name!r}, which the flow still has: its state would be kept. "
                "Leave it out; or, to begin from nothing, give the operator another name=",
                operator=name,
            )


def check_dropped(
    old: Mapping[str, Any], drop_state: Collection[str], before: Collection[str]
) -> None:
    """`drop_state` may name what is stored, and what earlier starts named (`before`).

    So a start can be repeated as it was, after the state has gone.
    """
    known = [*old["operators"], *old.get("sinks", ())]
    for name in drop_state:
        if name not in known and name not in before:
            raise UnknownName(
                f"drop_state names {name!r}, but the checkpoint holds no such operator or sink; "
                f"it holds {', '.join(known) or 'none'}",
                name=name,
                known=known,
            )


def check_names(drop_state: object) -> None:
    """A text alone would be taken for the names of its letters."""
    if isinstance(drop_state, str) or not isinstance(drop_state, Collection):
        raise DeclarationError(
            f"drop_state={drop_state!r}; it takes a list of names, such as ['counts']"
        )
