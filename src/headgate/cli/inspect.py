"""`headgate inspect`: what a checkpoint holds; no Spark, no JVM, safe beside a running flow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.cli.console import (
    STDOUT,
    counted,
    fail,
    plain_errors,
    safe,
    speaker,
    table,
    write_json,
)
from headgate.commit.facts import EpochFacts
from headgate.commit.inspection import FoundKey, Inspection, OperatorState
from headgate.offline.views import EpochView, short
from headgate.topology.text import plain_text

_FIELD_CHARS = 160  # of a value or record; --json has all of it


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Folder or URI given as checkpoint=.")],
    operator: Annotated[str | None, typer.Option(help="Look at this operator's slots.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help=r"Look up one key; once per key column. \N is null, binary is hex."),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="State rows to show with --operator.")] = 5,
    journal: Annotated[int, typer.Option(min=0, help="Show the last N journal records.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a checkpoint holds: operators, state sizes, chains, one key's rows, the journal."""
    with plain_errors():
        seen = Inspection(checkpoint)
        if key and operator is None:
            operator = _only_operator(seen)
        chosen = None if operator is None else seen.operator(operator)
        found = seen.find(operator, key) if key and operator is not None else None
        sample = seen.rows(operator, rows) if operator and found is None and rows else None
        records = seen.tail(journal)
        if as_json:
            write_json(STDOUT, _json(seen, chosen, found, sample, records))
            return
        console = speaker()
        if found is not None:
            _show_key(console, found)
        elif chosen is not None:
            _show_operator(console, chosen, sample)
        else:
            _show_flow(console, seen)
        if records:
            _show_journal(console, records)


def _only_operator(seen: Inspection) -> str:
    names = list(seen.describe["operators"])
    if len(names) != 1:
        fail(f"--key needs --operator, one of {', '.join(names) or '(none)'}")
    return str(names[0])


def _show_flow(console: Console, seen: Inspection) -> None:
    manifest = seen.manifest
    console.print(f"flow [bold]{safe(seen.flow)}[/]   {safe(seen.checkpoint.storage.uri)}")
    if manifest is None:
        console.print("no epoch has been committed yet")
        return
    kept, watermark = seen.checkpoint.epochs(), ""
    if manifest.watermark_us is not None:
        time = pa.scalar(manifest.watermark_us, pa.timestamp("us", "UTC")).as_py()
        watermark = f", watermark {time}"
    console.print(
        f"epoch {manifest.epoch}, {manifest.slots} slots, {seen.buckets} buckets{watermark}; "
        f"manifests {kept[0]} to {kept[-1]}\n"
    )
    head = ["operator", "kind", "key", "instances", "rows", "bytes", "chain", "routing", "pinned"]
    rows = [
        [
            state.name,
            state.kind,
            ", ".join(state.key) or "(one key)",
            len(state.instances),
            f"{state.rows:,}",
            short(state.bytes, "B"),
            state.chain_length,
            f"v{state.routing_version}",
            state.pinned_keys,
        ]
        for state in seen.operators()
    ]
    console.print(table(head, rows, words=3))
    for name, side in manifest.side_tables.items():
        read = pa.scalar(side.read_ms, pa.timestamp("ms", "UTC")).as_py()
        rows_of = counted(side.rows, "row")
        console.print(f"\nside table of {safe(name)}: {rows_of}, read {read}, {safe(side.file)}")
    sources = ", ".join(seen.describe["sources"])
    sinks = ", ".join(f"{name} ({kind})" for name, kind in seen.describe["sinks"].items())
    console.print(f"\n[dim]sources {safe(sources)}; sinks {safe(sinks or 'none')}[/]")


def _show_operator(console: Console, state: OperatorState, sample: pa.Table | None) -> None:
    by = f"{state.kind} by {', '.join(state.key) or '(one key)'}"
    slots = ", ".join(map(str, state.instances))
    console.print(f"[bold]{safe(state.name)}[/]: {safe(by)}, routing v{state.routing_version}")
    console.print(f"{counted(len(state.instances), 'instance')}, in slots {slots}")
    schema = ", ".join(f"{name} {kind}" for name, kind in state.columns)
    console.print(f"[dim]{safe(schema)}[/]\n")
    rows = [
        [
            slot.slot,
            "?" if slot.rows is None else f"{slot.rows:,}",
            "?" if slot.bytes is None else short(slot.bytes, "B"),
            short(slot.file_bytes, "B"),
            "–" if slot.last_epoch is None else slot.last_epoch,
            ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in slot.files.items()),
        ]
        for slot in state.slots
    ]
    head = ["slot", "rows", "bytes", "file bytes", "last epoch", "files"]
    shown = table(head, rows, words=0)
    shown.columns[-1].justify = "left"
    console.print(shown)
    if sample is not None and sample.num_rows:
        console.print()
        console.print(_rows(sample, len(state.key)))


def _show_key(console: Console, found: FoundKey) -> None:
    key = ", ".join(v.hex() if isinstance(v, bytes) else repr(v) for v in found.key)
    pinned = ", pinned" if found.pinned else ""
    where = f"slot {found.slot}, bucket {found.bucket}{pinned}"
    console.print(f"[bold]{safe(found.operator)}[/] key ({safe(key)}): {where}")
    if not found.rows.num_rows:
        console.print("no state: the key has not been seen, was forgotten, or its TTL is over")
        return
    console.print()
    console.print(_rows(pa.Table.from_batches([found.rows]), len(found.key)))


def _show_journal(console: Console, records: list[dict[str, Any]]) -> None:
    console.print("\n[bold]journal[/]")
    for record in records:
        console.print(Text(plain_text(_line(record))), no_wrap=True, overflow="ellipsis")


def _line(record: Mapping[str, Any]) -> str:
    if record["kind"] != "epoch":
        facts = {k: v for k, v in record.items() if k not in ("schema", "kind", "describe")}
        return f"{record['kind']:<7} {json.dumps(facts)[:_FIELD_CHARS]}"
    view = EpochView.of(EpochFacts.from_json(record))
    parts = [f"epoch   {view.epoch}: {view.rows:,} rows"]
    if view.seconds is not None:
        parts.append(f"{view.seconds:.2f} s")
    if view.locality is not None:
        parts.append(f"locality {view.locality:.1%}")
    if view.imbalance is not None:
        parts.append(f"imbalance {view.imbalance:.2f}×")
    parts.append(f"shuffled {short(view.bytes_shuffled, 'B')}")
    return ", ".join(parts)


def _rows(rows: pa.Table, key_columns: int) -> Table:
    """The rows as a table; keys in full, as `--key` takes them."""
    shown = []
    for row in rows.to_pylist():
        values = list(row.values())
        keys = [v.hex() if isinstance(v, bytes) else _cell(v) for v in values[:key_columns]]
        shown.append([*keys, *(_cell(value) for value in values[key_columns:])])
    found = table(rows.schema.names, shown, words=0)
    for column, field in zip(found.columns, rows.schema, strict=True):
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        column.justify = "right" if numeric else "left"
    return found


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"  # pickled state is never opened here
    return str(value)[:_FIELD_CHARS]


def _json(
    seen: Inspection,
    chosen: OperatorState | None,
    found: FoundKey | None,
    sample: pa.Table | None,
    records: list[dict[str, Any]],
) -> dict[str, Any]:
    result = seen.to_json()
    if chosen is not None:
        result["operators"] = [o for o in result["operators"] if o["name"] == chosen.name]
    if sample is not None:
        result["rows"] = sample.to_pylist()
    if found is not None:
        as_text = {"route": f"{found.route:016x}", "rows": found.rows.to_pylist()}
        result["key"] = vars(found) | {"key": list(found.key)} | as_text
    if records:
        result["journal"] = records
    return result
