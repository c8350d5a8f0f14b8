"""Rows from a Python list and into a Python list: for tests, examples and first steps.

Both live in the driver's process and survive restarts of the job inside it, not the end of the process. A
crash is an element of the input: `MemorySource(["a", "b", CRASH, "a"])` fails the driver after "b" was
planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.connectors.contract import Json, Slice, StagedPart
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SimulatedCrash(Exception):
    """The input said CRASH.

    Not a HoldfastError on purpose: no handler of expected errors takes it, so it goes all the way up and
    reaches the restart strategy as any unknown failure of the driver would.
    """


class _Crash:
    """A crash of the driver, as an element of the input."""

    def __repr__(self) -> str:
        return "CRASH"


CRASH: Final = _Crash()
"""An element of a MemorySource: planning that reaches it fails with SimulatedCrash, once per source
object."""

_SCALAR_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "binary",
}


class MemorySource:
    """The given rows, in order: tuples, dicts, or single values (then of one column, named `value` unless
    `schema` says else)."""

    replayable: Final = True

    def __init__(self, rows: Sequence[Any], schema: str | None = None) -> None:
        self._rows: list[Any] = []
        self._crashes: list[int] = []
        """Positions before which to crash, each removed when it has happened."""
        for row in rows:
            if row is CRASH:
                self._crashes.append(len(self._rows))
            else:
                self._rows.append(row if isinstance(row, tuple | list | Mapping) else (row,))
        self.schema: Final = _inferred_schema(self._rows) if schema is None else schema

    def reader(self, notes: Sequence[Json]) -> MemoryReader:
        return MemoryReader(self)


class MemoryReader:
    """Positions count rows: `after` rows were read, crashes not counted."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        first = after or 0
        crashes, end = self._source._crashes, len(self._source._rows)
        if first in crashes:
            crashes.remove(first)
            raise SimulatedCrash(f"the input asked for a crash after row {first}")
        end = min([end, *(crash for crash in crashes if crash > first)])
        if max_rows is not None:
            end = min(end, first + max_rows)
        return Slice(after, end, rows=end - first) if end > first else None

    def exhausted(self, after: Json | None) -> bool:
        return self.lag(after) == 0 and (after or 0) not in self._source._crashes

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = StructType.fromDDL(self._source.schema)
        assert isinstance(schema, StructType)
        rows = self._source._rows[slice.start or 0 : slice.end]
        return spark.createDataFrame([_as_tuple(row, schema.names) for row in rows], schema)

    def lag(self, after: Json | None) -> int:
        return len(self._source._rows) - (after or 0)


class MemorySink:
    """Committed rows, kept in the driver's process. Shows each epoch once, however often it is published."""

    exactly_once: Final = True

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], dict[int, list[pa.Table]]] = {}

    def publisher(self, job: str, uid: str) -> MemoryPublisher:
        return MemoryPublisher(self._shown.setdefault((job, uid), {}))

    def rows(self) -> list[tuple[Any, ...]]:
        """The committed rows as Python objects, in the order of epochs. Raises where Python has no object for
        a value, such as a timestamp beyond the year 9999; `table` has those too.
        """
        return [
            row
            for table in self._tables()
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
        ]

    def table(self) -> pa.Table:
        """The committed rows as one Arrow table; without columns as long as nothing was published."""
        tables = self._tables()
        return pa.concat_tables(tables) if tables else pa.table({})

    def _tables(self) -> list[pa.Table]:
        epochs = [shown[epoch] for shown in self._shown.values() for epoch in sorted(shown)]
        return [table for tables in epochs for table in tables]


class MemoryPublisher:
    def __init__(self, shown: dict[int, list[pa.Table]]) -> None:
        self._shown = shown

    def published_through(self) -> int:
        return max(self._shown, default=0)

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch not in self._shown:
            # One assignment of a whole epoch: a failing load leaves nothing half shown.
            self._shown.setdefault(epoch, [part.load() for part in parts])

    def close(self) -> None:
        pass


def _inferred_schema(rows: list[Any]) -> str:
    kinds = {type(row[0]) for row in rows if isinstance(row, tuple) and len(row) == 1 and row[0] is not None}
    if len(kinds) != 1 or not kinds <= _SCALAR_TYPES.keys() or any(len(row) != 1 for row in rows):
        raise DefinitionError(
            "the columns of this MemorySource cannot be guessed; give schema='name type, ...'"
        )
    return f"value {_SCALAR_TYPES[kinds.pop()]}"


def _as_tuple(row: Any, names: Sequence[str]) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        if unknown := row.keys() - set(names):
            raise DefinitionError(
                f"row {row!r} of a MemorySource has columns {sorted(unknown)} beyond its schema; mend one"
            )
        return tuple(row.get(name) for name in names)
    if len(row) != len(names):
        raise DefinitionError(
            f"row {row!r} of a MemorySource does not have the columns {list(names)}; correct one of them"
        )
    return tuple(row)
