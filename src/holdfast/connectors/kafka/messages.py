"""Rows as messages: which columns are the key, the value, the headers and the time, and their bytes.

Always true: the same rows give the same bytes, in every process. Columns are taken whole; Avro alone is
written row by row, since its library knows no other way.
Never here: a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.columns_as_text import check_json_names, json_rows, plain_texts
from holdfast.connectors.kafka.avro import AvroValues
from holdfast.errors import DefinitionError


@dataclass(frozen=True)
class Messages:
    """Messages by columns. `keys`, `headers` and `times` (milliseconds; 0: when it is sent) are None where no
    message has one. A value of None is a tombstone."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    times: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def size(self, row: int) -> int:
        """Bytes of key and value."""
        key = self.keys[row] if self.keys is not None else None
        return len(self.values[row] or b"") + len(key or b"")

    @property
    def largest(self) -> int:
        """The row with the most bytes."""
        return max(range(len(self)), key=self.size)

    def after(self, start: int) -> Messages:
        """Those from a row on."""
        if not start:
            return self
        rest: list[Any] = [each and each[start:] for each in self._columns()]
        return Messages(*rest)

    def _columns(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    @staticmethod
    def joined(pieces: Sequence[Messages]) -> Messages:
        """One after the other. All of them have the same columns."""
        columns: list[Any] = [
            None if each[0] is None else list(chain.from_iterable(each))
            for each in zip(*(piece._columns() for piece in pieces), strict=True)
        ]
        return Messages(*columns)

    def in_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Key, value, headers, time of each."""
        none = [None] * len(self)
        return zip(
            self.keys or none, self.values, self.headers or none, self.times or [0] * len(self), strict=True
        )


@dataclass(frozen=True)
class MessageForm:
    """`value` empty: all columns but those of headers and time. `schema` is Avro's, as JSON."""

    format: str
    schema: str = ""
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    headers: str | None = None
    timestamp: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """DefinitionError: rows with these columns cannot be such messages."""
        named = [*self.key, *self.value, *(each for each in (self.headers, self.timestamp) if each)]
        for name in named:
            if schema.names.count(name) != 1:
                raise DefinitionError(
                    f"KafkaSink is to write the column {name!r}, and the rows have {schema.names}; name one "
                    "of these"
                )
        if self.timestamp is not None and not pa.types.is_timestamp(schema.field(self.timestamp).type):
            raise DefinitionError(
                f"KafkaSink(timestamp={self.timestamp!r}) is a {schema.field(self.timestamp).type}; name a "
                "column of timestamps"
            )
        if self.headers is not None:
            _header_parts(pa.nulls(0, schema.field(self.headers).type))
        if len(self.key) > 1:
            check_json_names(pa.schema([schema.field(name) for name in self.key]))
        wanted = set(self.value_columns(schema))
        self._check_value(pa.schema([field for field in schema if field.name in wanted]))

    def value_columns(self, schema: pa.Schema) -> list[str]:
        if self.value:
            return list(self.value)
        apart = {self.headers, self.timestamp} | (set(self.key) if self.format == "bytes" else set())
        return [name for name in schema.names if name not in apart]

    def _check_value(self, schema: pa.Schema) -> None:
        if self.format == "json":
            check_json_names(schema)
        elif self.format == "avro":
            AvroValues(self.schema).check_columns(schema)
        elif len(schema) != 1 or not _is_raw(schema.types[0]):
            told = ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
            raise DefinitionError(
                f"KafkaSink(format='bytes') writes one column of binary or text, and here are: {told}; name "
                "it with value="
            )

    def messages(self, tables: Sequence[pa.Table]) -> Messages:
        """DefinitionError: a row cannot be written in this form."""
        found = [self._of(table) for table in tables]
        return found[0] if len(found) == 1 else Messages.joined(found)

    def _of(self, table: pa.Table) -> Messages:
        return Messages(
            self._values(table.select(self.value_columns(table.schema))),
            self._keys(table) if self.key else None,
            None if self.headers is None else _headers(table[self.headers].combine_chunks()),
            None if self.timestamp is None else _times(table[self.timestamp]),
        )

    def _keys(self, table: pa.Table) -> list[bytes | None]:
        if len(self.key) == 1:
            return _raw(table[self.key[0]].combine_chunks())
        return list(json_rows(table.select(list(self.key))))

    def _values(self, table: pa.Table) -> list[bytes | None]:
        if self.format == "json":
            return list(json_rows(table))
        if self.format == "avro":
            return AvroValues(self.schema).written(table)
        return _raw(table.column(0).combine_chunks())


def _is_raw(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
        or pa.types.is_string(type)
        or pa.types.is_large_string(type)
    )


def _raw(column: pa.Array) -> list[bytes | None]:
    """Bytes as they are, everything else as its text in UTF-8; null is no bytes at all."""
    plain = column if _is_raw(column.type) else plain_texts(column)
    found: list[bytes | None] = plain.cast(pa.large_binary()).to_pylist()
    return found


def _times(column: pa.ChunkedArray) -> list[int]:
    millis = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz))
    numbers = millis.cast(pa.int64())
    # The client takes zero for no time at all, and the message would get that of its sending.
    early = pc.less_equal(numbers, 0).fill_null(False)
    if pc.any(early).as_py():
        raise DefinitionError(
            f"row {pc.index(early, True).as_py()} has a time that is not after the beginning of 1970, which "
            "no message of Kafka can have; change it (null is when the message is sent), or leave timestamp= "
            "out"
        )
    found: list[int] = numbers.fill_null(0).to_pylist()
    return found


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    keys, values = _header_parts(column)
    names = plain_texts(keys).to_pylist()
    if None in names:
        raise DefinitionError("a header has no name (null); name every header")
    flat = list(zip(names, _raw(values), strict=True))
    ends, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [
        flat[start - ends[0] : end - ends[0]] if there else None
        for start, end, there in zip(ends, ends[1:], valid, strict=False)
    ]


def _header_parts(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The names and the values of all headers of these rows, flat."""
    type = column.type
    first, end = (column.offsets[0].as_py(), column.offsets[-1].as_py()) if len(column) else (0, 0)
    if pa.types.is_map(type) and _is_raw(type.key_type) and _is_raw(type.item_type):
        return column.keys.slice(first, end - first), column.items.slice(first, end - first)
    if pa.types.is_list(type) and pa.types.is_struct(type.value_type):
        pair = {field.name: field.type for field in type.value_type}
        if set(pair) == {"key", "value"} and all(map(_is_raw, pair.values())):
            pairs = column.values.slice(first, end - first)
            return pc.struct_field(pairs, "key"), pc.struct_field(pairs, "value")
    raise DefinitionError(
        f"headers of messages are a column of type {type}; give map<string,binary>, map<string,string>, or "
        "array<struct<key:string,value:binary>>"
    )
