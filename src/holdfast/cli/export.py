"""State as files of plain formats: Parquet, CSV or lines of JSON, one file per operator.

Always true: a file has its name only when it is whole; memory does not grow with the state.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from holdfast.errors import DefinitionError
from holdfast.inspect.stored_state import StoredState, lists_of_operator, state_tables
from holdfast.state.files.rows import row_schema

FORMATS = ("parquet", "csv", "json")


def export_state(stored: StoredState, uid: str, format: str, directory: Path) -> tuple[Path, int]:
    """Write an operator's state; gives the file and how many rows it has. DefinitionError: it is there."""
    if format not in FORMATS:
        raise DefinitionError(f"format {format!r} is not known; choose one of {', '.join(FORMATS)}")
    path = directory / f"{uid}.{format}"
    if path.exists():
        raise DefinitionError(f"{path} exists already; choose another directory, or remove it")
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f".{path.name}.unfinished"
    unkeyed = uid in stored.unkeyed_operators
    schema = _ITEMS if unkeyed else row_schema(stored.layout(uid))
    count = 0
    with _WRITERS[format](draft, schema) as write:
        for table in _item_tables(stored, uid) if unkeyed else state_tables(stored, uid):
            write(table)
            count += table.num_rows
    draft.rename(path)
    return path, count


_ITEMS = pa.schema([("state", pa.string()), ("shard", pa.int32()), ("item", pa.string())])
"""Of an operator without keys: each item as JSON text, since its lists are of different types."""


def _item_tables(stored: StoredState, uid: str) -> Iterator[pa.Table]:
    for held in lists_of_operator(stored, uid):
        items = [json.dumps(plain(item)) for item in held.items]
        states, shards = [held.state] * len(items), [held.shard] * len(items)
        yield pa.table([states, shards, items], schema=_ITEMS)


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Any]:
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Nested values and bytes as JSON text: CSV has none."""
    as_text = pa.schema([pa.field(f.name, pa.string() if _is_rich(f.type) else f.type) for f in schema])
    with pyarrow.csv.CSVWriter(str(path), as_text) as writer:

        def write(table: pa.Table) -> None:
            columns = [
                pa.array(
                    [None if v is None else json.dumps(plain(v)) for v in column.to_pylist()], pa.string()
                )
                if _is_rich(column.type)
                else column
                for column in table.columns
            ]
            writer.write_table(pa.table(columns, schema=as_text))

        yield write


@contextmanager
def _json(path: Path, schema: pa.Schema) -> Iterator[Any]:
    with path.open("w") as out:

        def write(table: pa.Table) -> None:
            out.writelines(json.dumps(row) + "\n" for row in plain_rows(table))

        yield write


_WRITERS = {"parquet": _parquet, "csv": _csv, "json": _json}


def _is_rich(type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type) or pa.types.is_binary(type))


def plain_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as JSON has them."""
    names = table.column_names
    columns = [[_plain_of(value, column.type) for value in column.to_pylist()] for column in table.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _plain_of(value: Any, type: pa.DataType) -> Any:
    if value is not None and pa.types.is_map(type) and pa.types.is_string(type.key_type):
        return {key: plain(item) for key, item in value}
    return plain(value)


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes in base 64, times in ISO form, decimals as text, maps as pairs where
    their keys are not strings.
    """
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return [[plain(key), plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    return value
