"""Values in Avro: the schema becomes Spark's types, and bytes become columns, or columns bytes, inside tasks.

A value is Avro's plain binary form of one record, written with the schema that the source or sink was given.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from holdfast.errors import DefinitionError, MachineError, one_line

BAD, RAW_VALUE = "__hf_malformed", "__hf_raw"
_PLAIN = {
    "boolean": ("boolean", pa.bool_()), "int": ("int", pa.int32()), "long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()), "double": ("double", pa.float64()), "bytes": ("binary", pa.binary()),
    "string": ("string", pa.string()), "enum": ("string", pa.string()), "fixed": ("binary", pa.binary()),
}  # fmt: skip
_LOGICAL = {
    "date": ("date", pa.date32()),
    "timestamp-millis": ("timestamp", pa.timestamp("us", "UTC")),
    "timestamp-micros": ("timestamp", pa.timestamp("us", "UTC")),
    "local-timestamp-millis": ("timestamp_ntz", pa.timestamp("us")),
    "local-timestamp-micros": ("timestamp_ntz", pa.timestamp("us")),
}
_KEPT_PLAIN = {"uuid", "time-millis", "time-micros", "duration"}
"""Logical types that Spark has none for: they come as what they are written as."""

Typed = tuple[str, pa.DataType]
"""A type as Spark SQL has it, and as Arrow does."""


@dataclass(frozen=True)
class AvroValues:
    """From the values of messages to a struct; with it, why a value is none, and its bytes."""

    schema: str

    @property
    def type(self) -> Typed:
        try:
            return record_type(json.loads(self.schema))
        except ValueError as error:
            raise DefinitionError(
                f"the Avro schema of a Kafka value is no JSON: {error}; give it as text of JSON"
            ) from error

    def __call__(self, values: list[bytes | None]) -> list[tuple[pa.Field, pa.Array]]:
        records: list[Any] = []
        reasons: list[str | None] = []
        for value in values:
            record, reason = (None, None) if value is None else _read(self.schema, value)
            records.append(record)
            reasons.append(reason)
        raw = [value if reason is not None else None for value, reason in zip(values, reasons, strict=True)]
        kind = self.type[1]
        return [
            (pa.field("value", kind), pa.array(records, kind)),
            (pa.field(RAW_VALUE, pa.binary()), pa.array(raw, pa.binary())),
            (pa.field(BAD, pa.string()), pa.array(reasons, pa.string())),
        ]

    def check_columns(self, schema: pa.Schema) -> None:
        """DefinitionError: rows with these columns are no such records."""
        for field in self.type[1]:
            if field.name not in schema.names:
                raise DefinitionError(
                    f"the Avro schema of a Kafka value has the field {field.name!r}, and the rows have "
                    f"{schema.names}; correct one of them"
                )
            have = schema.field(field.name).type
            try:
                pa.nulls(0, have).cast(field.type)
            except pa.ArrowException as error:
                raise DefinitionError(
                    f"column {field.name!r} is {have}, and the Avro schema wants {field.type}; correct one "
                    "of them"
                ) from error

    def written(self, table: pa.Table) -> list[bytes | None]:
        """Each row as a record. DefinitionError: one cannot be."""
        parsed, write = _writer(self.schema)
        names = [field.name for field in self.type[1]]
        columns = [_as_type(table[field.name].combine_chunks(), field) for field in self.type[1]]
        out = io.BytesIO()
        found: list[bytes | None] = []
        for number, values in enumerate(zip(*columns, strict=True)):
            out.seek(0)
            out.truncate()
            try:
                write(out, parsed, dict(zip(names, values, strict=True)))
            except Exception as error:  # whatever the values make the library do, they are no such record
                raise DefinitionError(
                    f"row {number} is no record of the Avro schema: {one_line(error)}; change the row, or "
                    "the schema"
                ) from error
            found.append(out.getvalue())
        return found


def record_type(schema: Any) -> Typed:
    """Spark's and Arrow's type of an Avro record. DefinitionError: they have none."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise DefinitionError("the Avro schema of a Kafka value is no record; give one of type 'record'")
    return _type(schema, "value")


def _type(schema: Any, where: str) -> Typed:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise DefinitionError(
                f"{where} of the Avro schema is a union of several types, which Spark has no type for; "
                "use a union of null and one type"
            )
        return _type(others[0], where)
    if isinstance(schema, str):
        if schema not in _PLAIN:
            raise DefinitionError(
                f"{where} of the Avro schema has type {schema!r}, a name or a type that Spark has none for; "
                "write named types out where they are used, and none within itself"
            )
        return _PLAIN[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        return f"decimal({precision},{scale})", pa.decimal128(precision, scale)
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "array":
        ddl, arrow = _type(schema["items"], f"{where}[]")
        return f"array<{ddl}>", pa.list_(arrow)
    if kind == "map":
        ddl, arrow = _type(schema["values"], f"{where}[]")
        return f"map<string,{ddl}>", pa.map_(pa.string(), arrow)
    if kind == "record":
        fields = [
            (field["name"], _type(field["type"], f"{where}.{field['name']}")) for field in schema["fields"]
        ]
        ddl = ",".join(f"`{name}`:{typed[0]}" for name, typed in fields)
        return f"struct<{ddl}>", pa.struct([(name, typed[1]) for name, typed in fields])
    return _type(kind, where)


def _read(schema: str, value: bytes) -> tuple[Any, str | None]:
    parsed, read = _reader(schema)
    stream = io.BytesIO(value)
    try:
        record = read(stream, parsed, None)
        left = len(value) - stream.tell()
        why = f"{left} bytes are left over" if left else None
    except Exception as error:  # whatever the bytes make the library do, they are no such record
        why = one_line(error)
    if why is None:
        return record, None
    framed = " (it begins as messages with an id of a schema registry do)" if value[:1] == b"\0" else ""
    return None, f"it is no Avro of the schema: {why}{framed}"


def _as_type(column: pa.Array, field: pa.Field) -> list[Any]:
    try:
        found: list[Any] = column.cast(field.type).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DefinitionError(
            f"column {field.name!r} does not fit the Avro schema ({field.type}): {one_line(error)}; change "
            "the rows, or the schema"
        ) from error
    return found


@lru_cache(maxsize=8)
def _reader(schema: str) -> tuple[Any, Any]:
    return _parsed(schema), _fastavro().schemaless_reader


@lru_cache(maxsize=8)
def _writer(schema: str) -> tuple[Any, Any]:
    return _parsed(schema), _fastavro().schemaless_writer


def _parsed(schema: str) -> Any:
    return _fastavro().parse_schema(_as_plain(json.loads(schema)))


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as cause:
        raise MachineError(
            "values in Avro need the package fastavro; install it: pip install 'holdfast[kafka]'"
        ) from cause
    return fastavro


def _as_plain(schema: Any) -> Any:
    """Without the logical types that come as what they are written as."""
    if isinstance(schema, list):
        return [_as_plain(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value not in _KEPT_PLAIN}
    return {
        key: _as_plain(value) if key in ("type", "items", "values", "fields") else value
        for key, value in kept.items()
    }
