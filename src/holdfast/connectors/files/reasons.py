"""Why a row of a JSON or CSV file does not fit its schema. Runs in Spark tasks, over such rows only.

Spark only says that a row does not fit. Which value it was is told by comparing what the row says with the
columns that Spark left empty; where that tells nothing, the reason is the schema.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from holdfast.connectors.files.sampling import records

VALUE_CHARS_MAX = 80
_WORDS = {"bigint": "long", "smallint": "short", "tinyint": "byte"}
LETTERS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("row", pa.string()), ("reason", pa.string())]
)


@dataclass(frozen=True)
class RowForm:
    """What a row should look like: Spark's `types` by declared column, and those that are never null."""

    format: str
    options: Mapping[str, str]
    types: Mapping[str, str]
    never_null: tuple[str, ...]

    def reason(self, row: str, empty: Sequence[str], columns: Sequence[str] | None) -> str:
        """Why the row does not fit. `empty`: declared columns that Spark left empty; `columns`: those of its
        file, in order. None: the row could be parsed, and lacks values."""
        if columns is None:
            missing = [name for name in self.never_null if name in empty]
            return f"column {missing[0]!r} is declared not null and has no value"
        if self.format == "json":
            return self._json(row, empty)
        return self._csv(row, empty, columns) if self.format == "csv" else self._misfit()

    def _json(self, row: str, empty: Sequence[str]) -> str:
        try:
            value = json.loads(row)
        except json.JSONDecodeError as error:
            return f"it is no JSON: {error.msg} at character {error.pos + 1}"
        except (ValueError, RecursionError) as error:
            return f"it cannot be read as JSON: {error}"
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                return "it is JSON, but no object"
            for name in empty:
                if each.get(name) is not None:
                    return self._value(name, json.dumps(each[name], ensure_ascii=False))
        return self._misfit()

    def _csv(self, row: str, empty: Sequence[str], columns: Sequence[str]) -> str:
        try:
            fields = next(records([row], self.options), [])
        except csv.Error as error:
            return f"it is no CSV: {error}"
        if len(fields) != len(columns):
            return f"it has {_fields(len(fields))}, expected are {len(columns)}: {', '.join(columns)}"
        for name, value in zip(columns, fields, strict=True):
            declared = next((own for own in empty if own.casefold() == name.casefold()), None)
            if declared is not None and value:
                return self._value(declared, repr(value))
        return self._misfit()

    def _value(self, name: str, shown: str) -> str:
        if len(shown) > VALUE_CHARS_MAX:
            shown = f"{shown[:VALUE_CHARS_MAX]}..."
        return f"column {name!r} is declared {_declared(self.types[name])}, found {shown}"

    def _misfit(self) -> str:
        declared = ", ".join(f"{name} {_declared(type)}" for name, type in self.types.items())
        return f"a value does not fit the schema '{declared}'"


def with_reasons(form: RowForm, prefix: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a task: malformed rows (file, line, row, empty, columns), each with its reason. `prefix`
    goes before the names of files, which Spark gives as parts of a URL.
    """
    for batch in batches:
        rows: list[dict[str, Any]] = batch.to_pylist()
        reasons = [form.reason(row["row"], row["empty"], row["columns"]) for row in rows]
        files = pa.array([f"{prefix}{unquote(row['file'])}" for row in rows], pa.string())
        columns = [files, batch.column("line"), batch.column("row"), pa.array(reasons, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=LETTERS)


def _declared(type: str) -> str:
    """A type of Spark's in the words of schemas; a field of that name stays as it is."""
    return re.sub(r"(?<![^<:,])(bigint|smallint|tinyint)(?![^>,])", lambda found: _WORDS[found[0]], type)


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"
