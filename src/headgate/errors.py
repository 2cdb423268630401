"""Every error that headgate raises on purpose, as one family.

    HeadgateError
    ├── DeclarationError          the flow is wrong as declared; nothing has run
    │   ├── UnknownColumn
    │   ├── NameClash
    │   ├── CyclicFlow
    │   ├── MissingKey
    │   └── SchemaMismatch
    ├── OperatorFailed            user code raised, or returned something it may not
    ├── SourceFileError           a file of a source is gone, has changed, or cannot be read
    ├── SinkFailed                a sink raised; its epoch is committed, and it is called again
    ├── CheckpointError           the checkpoint cannot be used as asked
    │   ├── IncompatibleFlow
    │   ├── ForeignCheckpoint
    │   ├── UnsupportedVersion
    │   ├── DamagedManifest
    │   ├── Overtaken
    │   ├── UntrustedCheckpoint
    │   ├── UnsafeName
    │   └── UntrustedFolder
    ├── StateFileError            a state file is missing or does not match its checksum
    ├── StorageFull               no room left where the checkpoint lives
    ├── StorageFailed             what keeps the checkpoint cannot be read or written
    ├── CustodyMismatch           rows sent and rows received differ; the epoch is run again
    ├── UnknownSlot               a routing table names a slot that the flow does not have
    ├── UnknownName               a handle is asked for a sink or operator it does not have
    └── EngineError               Spark did not do what headgate relies on

Errors keep their facts as fields, so callers branch on type and field and never on text, and
they survive pickling (a worker raises them, the driver reports them).
"""

from __future__ import annotations

from typing import Any


class HeadgateError(Exception):
    """Base of the family; `fields` holds the facts, `str()` the sentence."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __str__(self) -> str:
        return self.message  # also of one that is a KeyError, which would quote it

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[HeadgateError], message: str, fields: dict[str, Any]) -> HeadgateError:
    return kind(message, **fields)


class DeclarationError(HeadgateError):
    """The flow is wrong as declared; nothing has run."""


class UnknownColumn(DeclarationError):
    """An operator, key or sink names a column that its input does not have."""


class NameClash(DeclarationError):
    """Two operators or two sinks of one flow share a name."""


class CyclicFlow(DeclarationError):
    """The flow feeds back into itself."""


class MissingKey(DeclarationError):
    """A stateful operator stands behind an edge that has no key."""


class SchemaMismatch(DeclarationError):
    """Two streams, or a column and its use, have types that do not fit."""


class OperatorFailed(HeadgateError):
    """User code raised, or returned a wrong schema, type or row count."""


class SourceFileError(HeadgateError):
    """A file of a source is gone, has changed since it was listed, or is not what it should be."""


class SinkFailed(HeadgateError):
    """A sink raised. Its epoch is committed; the next start calls it again with the same rows."""


class CheckpointError(HeadgateError):
    """The checkpoint cannot be used as asked."""


class IncompatibleFlow(CheckpointError):
    """The flow changed in a way that its stored state cannot follow."""


class ForeignCheckpoint(CheckpointError):
    """The checkpoint belongs to another flow, or part of it is damaged, gone or foreign."""


class UnsupportedVersion(CheckpointError):
    """The checkpoint was written by a version of headgate that this one cannot read."""


class DamagedManifest(CheckpointError):
    """A manifest is cut, empty or changed, so what its epoch committed is not known."""


class Overtaken(CheckpointError):
    """Another driver has claimed the checkpoint; this one has stopped and touches nothing more."""


class UntrustedCheckpoint(CheckpointError):
    """A checkpoint with a key holds what was not signed with it, or no key was given."""


class UnsafeName(CheckpointError):
    """A file name leads out of the folder it belongs to; the checkpoint was tampered with."""


class UntrustedFolder(CheckpointError):
    """Others could plant files in the folder, and with them code that headgate would run."""


class StateFileError(HeadgateError):
    """A state file is missing or does not match its checksum, and no older one can stand in."""


class StorageFull(HeadgateError):
    """No room is left where the checkpoint lives; nothing of the epoch was committed."""


class StorageFailed(HeadgateError, OSError):
    """Storage cannot be read or written: it is read-only, another user's, broken or not there."""


class CustodyMismatch(HeadgateError):
    """Rows sent and rows received differ between two tasks; the epoch is discarded and rerun."""


class UnknownSlot(HeadgateError):
    """A routing table names a slot that the flow does not have."""


class UnknownName(HeadgateError, KeyError):
    """A flow or a checkpoint is asked for a sink or operator that it does not have."""


class EngineError(HeadgateError):
    """Spark did not do what headgate relies on (partition counts, union, local properties)."""
