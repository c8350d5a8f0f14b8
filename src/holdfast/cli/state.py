"""`holdfast state show | export | diff | get`: what operators remember, read from storage. Starts no Spark.

A state is named by its place: `URL` of a checkpoint (its newest commit) or of a savepoint, `URL@N` for
commit N, `URL#E` for the state after epoch E.
"""

from __future__ import annotations

import base64
import json as json_module
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from holdfast.cli.export import export_state, plain, plain_rows
from holdfast.cli.format import answer, counted, new_table, print_rows, size
from holdfast.cli.options import AsJson, CheckpointOrSavepoint, Verbose, one_line_errors
from holdfast.errors import DefinitionError
from holdfast.inspect.diff import OperatorDifference, differences
from holdfast.inspect.point_query import StateReader
from holdfast.inspect.stored_state import (
    StoredState,
    lists_of_operator,
    open_stored,
    pinned,
    state_entries,
    state_tables,
)
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import type_ddl
from holdfast.state.files.rows import column_names, live_items, rows_of

DIFFERENT = 1
"""Exit code of `diff` where the two differ."""

state = typer.Typer(name="state", no_args_is_help=True, help="Look at what operators remember.")

Where = Annotated[
    str,
    typer.Argument(metavar="STATE", help="URL of a checkpoint or savepoint, or URL@commit, or URL#epoch."),
]
Uid = Annotated[str | None, typer.Option(help="Which operator. [default: all]")]


def opened(where: str) -> StoredState:
    """The state that a name means."""
    found = re.fullmatch(r"(.+?)([@#])(\d+)", where)
    if found is None:
        return open_stored(where)
    url, mark, number = found.groups()
    return open_stored(url, commit=int(number)) if mark == "@" else open_stored(url, epoch=int(number))


@state.command()
def show(
    where: Where,
    uid: Uid = None,
    limit: Annotated[int, typer.Option(help="How many keys to show.")] = 20,
    sizes: Annotated[bool, typer.Option("--sizes", help="Keys and bytes of each key group instead.")] = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show the first keys of each operator, or how the state is spread over key groups."""
    with one_line_errors(verbose):
        stored = opened(where)
        with pinned(stored, "holdfast state show"):
            operators = _operators(stored, uid)
            if not operators and not json:
                print(f"{stored} holds no state: its job has no operators that keep any")
            for one in operators:
                if one in stored.unkeyed_operators:
                    _show_lists(stored, one, limit, as_json=json)
                elif sizes:
                    _show_sizes(stored, one, as_json=json)
                else:
                    _show_keys(stored, one, limit, as_json=json)


def _operators(stored: StoredState, uid: str | None) -> list[str]:
    return [uid] if uid else [*stored.lineages, *stored.unkeyed_operators]


def _show_keys(stored: StoredState, uid: str, limit: int, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for table in state_tables(stored, uid):
        rows += plain_rows(table.slice(0, limit - len(rows)))
        if len(rows) >= limit:
            break
    layout = stored.layout(uid)
    ttls = {
        name: f"{name} ({state.ttl})"
        for name, state in zip(column_names(layout)[0], layout.fields, strict=True)
        if state.ttl is not None
    }
    columns = [ttls.get(name, name) for name in rows[0]] if rows else layout.key.names
    print_rows(
        rows,
        as_json=as_json,
        plain=lambda row: {"operator": uid, **row},
        cells=lambda row: map(_cell, row.values()),
        table=new_table(f"{uid}: first {counted(len(rows), 'key')} of {stored}", *columns),
    )


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json_module.dumps(value)


def _show_lists(stored: StoredState, uid: str, limit: int, *, as_json: bool) -> None:
    """Of an operator without keys: the first items of each shard's lists."""
    for held in lists_of_operator(stored, uid):
        items, count = [plain(item) for item in held.items[:limit]], len(held.items)
        told = {"operator": uid, "state": held.state, "shard": held.shard, "count": count, "items": items}
        first = f", the first {len(items)}" if len(items) < count else ""
        heading = f"{uid}.{held.state}, shard {held.shard}: {counted(count, 'item')}{first}"
        answer(as_json, told, heading, *(f"  {json_module.dumps(item)}" for item in items))


def _show_sizes(stored: StoredState, uid: str, *, as_json: bool) -> None:
    keys, used = [0] * stored.key_groups, [0] * stored.key_groups
    layout, at = stored.layout(uid), stored.instants(uid)
    for run in state_entries(stored, uid):
        for row in rows_of(layout, live_items(layout, run, at)).column(-1).to_pylist():
            keys[row] += 1
        for key, value in run:
            used[int.from_bytes(key[:2], "big")] += len(key) + len(value)
    groups: list[tuple[int | str, int, int]] = [*zip(range(stored.key_groups), keys, used, strict=True)]
    headings = ("key group", "keys", "size")
    print_rows(
        groups if as_json else [*groups, ("all", sum(keys), sum(used))],
        as_json=as_json,
        plain=lambda row: {"operator": uid, "key_group": row[0], "keys": row[1], "bytes": row[2]},
        cells=lambda row: (str(row[0]), f"{row[1]:,}", size(row[2])),
        table=new_table(f"{uid}: key groups of {stored}", *headings, right=headings),
    )


@state.command()
def export(
    where: Where,
    out: Annotated[Path, typer.Option(help="The directory to write to: one file per operator.")],
    format: Annotated[str, typer.Option(help="parquet, csv, or json (an object per line).")] = "parquet",
    uid: Uid = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write state to files that any tool reads: one row per key, or per item where there are no keys."""
    with one_line_errors(verbose):
        stored = opened(where)
        with pinned(stored, "holdfast state export"):
            for one in _operators(stored, uid):
                path, count = export_state(stored, one, format, out)
                told = {"operator": one, "file": str(path), "rows": count}
                answer(json, told, f"{one}: {counted(count, 'row')} in {path}")


@state.command()
def diff(
    a: Where,
    b: Where,
    limit: Annotated[int, typer.Option(help="How many differing keys to show of each operator.")] = 10,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Compare two states. Exit code 0: they are equal, 1: they differ."""
    found: list[OperatorDifference] = []
    with one_line_errors(verbose):
        before, after = opened(a), opened(b)
        with pinned(before, "holdfast state diff"), pinned(after, "holdfast state diff"):
            found = differences(before, after, limit)
        for one in found:
            answer(json, plain(asdict(one)), *_described(one))
    if any(one.differs for one in found):
        raise typer.Exit(DIFFERENT)


def _described(one: OperatorDifference) -> Iterator[str]:
    if not one.differs:
        yield f"{one.uid}: equal"
        return
    yield f"{one.uid}: {counted(one.added, 'key')} added, {one.removed:,} removed, {one.changed:,} changed"
    for line in one.schema:
        yield f"  {line}"
    for example in one.examples:
        yield f"  {example.kind} {json_module.dumps(plain(example.key))}"
        for mark, values in (("-", example.before), ("+", example.after)):
            if values is not None:
                yield f"    {mark} {json_module.dumps(plain(values))}"


@state.command()
def get(
    checkpoint: CheckpointOrSavepoint,
    uid: Annotated[str, typer.Option(help="Which operator.")],
    key: Annotated[
        str,
        typer.Option(
            help="""The key: ann where it is one column, '{"user": "ann", "day": 3}' where several."""
        ),
    ],
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show the committed state of one key, also of a job that runs. Exit code 1: the key has none."""
    found = False
    with one_line_errors(verbose):
        with StateReader(checkpoint) as reader:
            got = reader.get(uid, key_written(reader.layout(uid), key))
        found = got.found
        values = (f"{name} = {json_module.dumps(plain(value))}" for name, value in got.values.items())
        answer(json, plain(asdict(got)), f"commit {got.commit}, epoch {got.epoch}", *values)
        if not found and not json:
            print("nothing is stored for this key", file=sys.stderr)
    if not found:
        raise typer.Exit(DIFFERENT)


def key_written(layout: StateLayout, text: str) -> Any:
    """A key as it was typed: JSON, or, where the key is one column, just its value.

    DefinitionError: it is neither.
    """
    try:
        asked = json_module.loads(text)
    except ValueError:
        asked = text
    if len(layout.key) > 1 and not isinstance(asked, dict):
        columns = ", ".join(f"{field.name} {type_ddl(field.type)}" for field in layout.key)
        example = {field.name: 1 if pa.types.is_integer(field.type) else "..." for field in layout.key}
        raise DefinitionError(
            f"--key {text!r} is no key of operator {layout.operator!r}, whose key has the columns "
            f"{columns}; write all of them as JSON: --key '{json_module.dumps(example)}'"
        )
    if pa.types.is_string(layout.key.field(0).type) and isinstance(asked, int | float | list):
        # Of a column of texts, 12 means the text "12": there is no other key that it could be.
        return text
    return key_of(layout, asked)


def key_of(layout: StateLayout, asked: Any) -> Any:
    """A key given as JSON, its texts read as the dates, times, decimals and bytes (base 64) that they mean.

    DefinitionError: a text cannot be read so.
    """
    if not isinstance(asked, dict):
        names = layout.key.names
        return key_of(layout, {names[0]: asked})[names[0]] if len(names) == 1 else asked
    return {
        name: _read(value, layout.key.field(name)) if name in layout.key.names else value
        for name, value in asked.items()
    }


def _read(value: Any, column: pa.Field) -> Any:
    type = column.type
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_floating(type):
        return float(value)
    if not isinstance(value, str) or pa.types.is_string(type) or pa.types.is_nested(type):
        return value
    try:
        if pa.types.is_binary(type):
            return base64.b64decode(value, validate=True)
        return pa.scalar(value).cast(type).as_py()
    except (pa.ArrowException, ValueError):
        raise DefinitionError(
            f"key column {column.name!r} is {type_ddl(type)}, and {value!r} cannot be read as that"
        ) from None
