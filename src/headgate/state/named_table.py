"""Arrow tables that lie in a checkpoint, in files that are named by content and never change.

A plan only names them, tasks read what they do not have yet, and a file that is not what its name
says is found out: routing tables, cost models, side tables of lookups.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.errors import StateFileError
from headgate.state.digest import DamagedFile, digest_of, read_named
from headgate.state.storage import Storage


def write_table(storage: Storage, stem: str, table: pa.Table) -> str:
    """Store a table durably; returns the file's name, which holds a digest of its content."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    name = f"{stem}-{digest_of(data, strong=True)}.arrow"
    storage.write(name, data, True)
    return name


def read_table(storage: Storage, name: str, what: str, way_out: str = "") -> pa.Table:
    """The table back, or an error that calls it `what` and says the way out."""
    try:
        data = read_named(storage, name)
    except DamagedFile as problem:
        raise StateFileError(
            f"{what} {name} in {storage.uri} cannot be used: {problem}{way_out}", file=name
        ) from problem
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        return reader.read_all()
