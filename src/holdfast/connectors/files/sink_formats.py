"""The formats of a FileSink: which columns each can hold, and an epoch's rows as the bytes of one file.

Always true: columns that `check_columns` accepts are encoded whatever values they hold. Where it says no it
says so before anything runs, because a committed epoch must be shown.
docs/formats/sink-files.md says how each type is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.columns_as_text import TEXT, joined, json_objects, plain_texts, utf8
from holdfast.errors import DefinitionError

_BATCH_ROWS = 65_536
_SHOWN_CHARS_MAX = 80

_TEXT_TYPES = frozenset([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
_PLAIN_TYPES = _TEXT_TYPES | frozenset(
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.date32(), pa.time64("ns"), pa.duration("us")),
    ]
)
"""Those that Spark hands to Python; decimals and timestamps come with parameters."""


def check_columns(format: str, schema: pa.Schema) -> None:
    """Raise one DefinitionError if a file of this format cannot hold the columns, whatever is in them."""
    if len(schema) == 0:
        raise DefinitionError(f"{format} files cannot hold rows without columns; select at least one")
    for names in _name_lists(schema):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DefinitionError(
                f"{format} files cannot tell columns of one name apart, here {', '.join(map(repr, twice))}; "
                "rename all but one with transform(...)"
            )
    if unknown := [field for field in schema if not _is_known(field.type)]:
        raise DefinitionError(
            f"{format} files cannot hold {_shown(unknown)}; cast to a type of Spark SQL with transform(...)"
        )
    if format == "csv" and (nested := [field for field in schema if pa.types.is_nested(field.type)]):
        raise DefinitionError(
            f"csv files cannot hold nested columns, here {_shown(nested)}; "
            "use format='json' or 'parquet', or make text of them with transform(...)"
        )


def encode(format: str, tables: Sequence[pa.Table]) -> bytes:
    """The file of these rows; there is at least one table, and all have the same columns."""
    check_columns(format, tables[0].schema)
    return FORMATS[format](tables)


def _name_lists(schema: pa.Schema) -> Iterator[list[str]]:
    """The names that stand side by side: of the columns, and of the fields of every struct."""
    yield schema.names
    types = list(schema.types)
    while types:
        type = types.pop()
        if pa.types.is_struct(type):
            yield [field.name for field in type]
        types += _inner_types(type)


def _inner_types(type: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_struct(type):
        return [field.type for field in type]
    if pa.types.is_list(type):
        return [type.value_type]
    return [type.key_type, type.item_type] if pa.types.is_map(type) else []


def _is_known(type: pa.DataType) -> bool:
    if inner := _inner_types(type):
        return all(map(_is_known, inner))
    if pa.types.is_timestamp(type):
        return bool(type.unit == "us")
    return pa.types.is_decimal128(type) or type in _PLAIN_TYPES


def _shown(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name!r} ({str(field.type)[:_SHOWN_CHARS_MAX]})" for field in fields)


def _parquet(tables: Sequence[pa.Table]) -> bytes:
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, tables[0].schema, compression="snappy", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(_readable(table))
    return bytes(out.getvalue())


def _json_lines(tables: Sequence[pa.Table]) -> bytes:
    out = pa.BufferOutputStream()
    for batch in _batches(tables):
        _write(out, joined(json_objects(batch.schema.names, batch.columns), "\n"))
    return bytes(out.getvalue())


def _csv(tables: Sequence[pa.Table]) -> bytes:
    out = pa.BufferOutputStream()
    names = pa.array(tables[0].column_names)
    out.write((",".join(_cells(names).to_pylist()) + "\n").encode())
    # Readers pass over empty lines: a null that is alone in its line is quoted.
    null = '""' if len(names) == 1 else ""
    for batch in _batches(tables):
        cells = [_cells(column).fill_null(null) for column in batch.columns]
        _write(out, joined(pc.binary_join_element_wise(*cells, pa.scalar(",", TEXT)), "\n"))
    return bytes(out.getvalue())


def _cells(column: pa.Array) -> pa.Array:
    """As CSV has them: text and binary in quotes, so that empty is not taken for null; null as null."""
    text = plain_texts(column)
    if column.type in _TEXT_TYPES:
        return joined('"', pc.replace_substring(text, '"', '""'), '"')
    return text


def _batches(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches(max_chunksize=_BATCH_ROWS)


def _write(out: pa.BufferOutputStream, lines: pa.Array) -> None:
    """Lines end to end: just as they lie in memory."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    out.write(data.slice(ends[0], ends[-1] - ends[0]))


def _readable(table: pa.Table) -> pa.Table:
    """The table with text that is UTF-8 throughout, as Parquet's readers insist on."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        columns = [pa.chunked_array(map(_repaired, column.chunks), column.type) for column in table.columns]
        return pa.Table.from_arrays(columns, schema=table.schema)
    return table


def _repaired(column: pa.Array) -> pa.Array:
    type = column.type
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return utf8(column)
    if pa.types.is_struct(type):
        children = [_repaired(column.field(i)) for i in range(type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(type), mask=column.is_null())
    if not (pa.types.is_list(type) or pa.types.is_map(type)):
        return column
    # A copy of the offsets: Arrow takes no mask beside those of a slice.
    offsets, mask = pa.array(column.offsets.to_numpy()), column.is_null()
    if pa.types.is_list(type):
        return pa.ListArray.from_arrays(offsets, _repaired(column.values), type, mask=mask)
    keys, items = _repaired(column.keys), _repaired(column.items)
    return pa.MapArray.from_arrays(offsets, keys, items, type, mask=mask)


FORMATS: Final[dict[str, Callable[[Sequence[pa.Table]], bytes]]] = {
    "parquet": _parquet,
    "json": _json_lines,
    "csv": _csv,
}
