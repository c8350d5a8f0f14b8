"""Why a row of a JSON or CSV file does not fit its schema. Runs in Spark tasks, over such rows only."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from holdfast.connectors.files.sampling import records
from holdfast.connectors.misfits import json_misfit, missing_value, schema_misfit, value_misfit

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
            return missing_value(missing[0])
        if self.format == "json":
            return json_misfit(row, empty, self.types)
        return self._csv(row, empty, columns) if self.format == "csv" else schema_misfit(self.types)

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
                return value_misfit(declared, repr(value), self.types)
        return schema_misfit(self.types)


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


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"
