"""Rows as Parquet holds them: which columns it can hold, and a file of them as bytes.

Always true: columns that `check_parquet_columns` accepts are encoded whatever values they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.columns_as_text import utf8
from holdfast.errors import DefinitionError

_SHOWN_CHARS_MAX = 80
_SAMPLE_ROWS = 8_192

TEXT_TYPES = frozenset([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
_PLAIN_TYPES = TEXT_TYPES | frozenset(
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.date32(), pa.time64("ns"), pa.duration("us")),
    ]
)
"""Those that Spark hands to Python; decimals and timestamps come with parameters."""


def check_parquet_columns(what: str, schema: pa.Schema) -> None:
    """Raise one DefinitionError if `what` cannot hold the columns, whatever is in them."""
    if len(schema) == 0:
        raise DefinitionError(f"{what} cannot hold rows without columns; select at least one")
    for names in _name_lists(schema):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DefinitionError(
                f"{what} cannot tell columns of one name apart, here {', '.join(map(repr, twice))}; "
                "rename all but one with transform(...)"
            )
    if unknown := [field for field in schema if not _is_known(field.type)]:
        raise DefinitionError(
            f"{what} cannot hold {listed(unknown)}; cast to a type of Spark SQL with transform(...)"
        )


def parquet_bytes(tables: Sequence[pa.Table]) -> bytes:
    """The file of these rows; there is at least one table, and all have the same columns."""
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        tables[0].schema,
        compression="snappy",
        write_page_checksum=True,
        use_dictionary=_repeating(tables[0]),
    ) as writer:
        for table in tables:
            writer.write_table(readable(table))
    return bytes(out.getvalue())


def _repeating(table: pa.Table) -> list[str] | bool:
    """The columns that get a dictionary: those of which most values come again soon. Where they do not, one
    is begun, grows too large and is given up: that takes longer than the rest of the column, for nothing."""
    if any(pa.types.is_nested(type) for type in table.schema.types):
        return True  # Parts of columns have no names that could be given.
    sample = table.slice(0, _SAMPLE_ROWS)
    return [
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if pa.types.is_null(column.type) or 2 * pc.count_distinct(column).as_py() <= sample.num_rows
    ]


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


def listed(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name!r} ({str(field.type)[:_SHOWN_CHARS_MAX]})" for field in fields)


def readable(table: pa.Table) -> pa.Table:
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
