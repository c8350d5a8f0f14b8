"""The formats of a FileSink: which columns each can hold, and an epoch's rows as the bytes of one file.

Always true: columns that `check_columns` accepts are encoded whatever values they hold. Where it says no it
says so before anything runs, because a committed epoch must be shown.
docs/formats/sink-files.md says how each type is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.columns_as_text import TEXT, joined, json_objects, plain_texts
from holdfast.connectors.parquet_rows import TEXT_TYPES, check_parquet_columns, listed, parquet_bytes
from holdfast.errors import DefinitionError

_BATCH_ROWS = 65_536


def check_columns(format: str, schema: pa.Schema) -> None:
    """Raise one DefinitionError if a file of this format cannot hold the columns, whatever is in them."""
    check_parquet_columns(f"{format} files", schema)
    if format == "csv" and (nested := [field for field in schema if pa.types.is_nested(field.type)]):
        raise DefinitionError(
            f"csv files cannot hold nested columns, here {listed(nested)}; "
            "use format='json' or 'parquet', or make text of them with transform(...)"
        )


def encode(format: str, tables: Sequence[pa.Table]) -> bytes:
    """The file of these rows; there is at least one table, and all have the same columns."""
    check_columns(format, tables[0].schema)
    return FORMATS[format](tables)


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
    if column.type in TEXT_TYPES:
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


FORMATS: Final[dict[str, Callable[[Sequence[pa.Table]], bytes]]] = {
    "parquet": parquet_bytes,
    "json": _json_lines,
    "csv": _csv,
}
