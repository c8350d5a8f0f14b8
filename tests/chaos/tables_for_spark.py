"""Arrow tables in the place of Spark's frames: the engine runs whole, in one thread, without a JVM.

Only what jobs without keys need of a session: ranges, empty frames, `mapInArrow`, unions and `collect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

from holdfast.state.encoding.types import parse_schema, type_ddl


class TableFrame(DataFrame):
    """A frame of one partition whose rows are made when somebody collects it."""

    def __new__(cls, *_: Any) -> TableFrame:
        made: TableFrame = object.__new__(cls)
        return made

    def __init__(self, columns: pa.Schema, rows: Callable[[], pa.Table]) -> None:
        self._columns, self._rows = columns, rows

    @property
    def schema(self) -> Any:
        return SimpleNamespace(fields=[_field(field) for field in self._columns])

    def mapInArrow(self, func: Any, schema: Any, *_: Any) -> TableFrame:
        columns = parse_schema(schema)

        def rows() -> pa.Table:
            batches: Iterator[pa.RecordBatch] = func(iter(self._rows().to_batches()))
            return pa.Table.from_batches(list(batches), schema=columns)

        return TableFrame(columns, rows)

    def repartition(self, *_: Any) -> TableFrame:
        return self

    def unionByName(self, other: Any, *_: Any) -> TableFrame:
        return TableFrame(self._columns, lambda: pa.concat_tables([self._rows(), other._rows()]))

    def collect(self) -> list[Any]:
        return [tuple(row.values()) for row in self._rows().to_pylist()]


class TableSession:
    """What the engine asks a Spark session for."""

    conf = SimpleNamespace(get=lambda name, default=None: {"spark.master": "local[1]"}.get(name, default))
    sparkContext = SimpleNamespace(setJobDescription=lambda text: None, defaultParallelism=1)

    def createDataFrame(self, rows: list[Any], schema: str) -> TableFrame:
        columns = parse_schema(schema)
        return TableFrame(columns, lambda: pa.Table.from_pylist(rows, schema=columns))

    def range(self, first: int, end: int, *_: int) -> TableFrame:
        columns = pa.schema([("id", pa.int64())])
        return TableFrame(columns, lambda: pa.table({"id": pa.array(range(first, end), pa.int64())}))

    def sql(self, text: str) -> TableFrame:
        return self.range(0, 1)


def install(patch: pytest.MonkeyPatch) -> TableSession:
    """Let task bodies find that they run in the first partition, wherever they run."""
    patch.setattr(TaskContext, "get", staticmethod(lambda: SimpleNamespace(partitionId=lambda: 0)))
    return TableSession()


def _field(field: pa.Field) -> Any:
    return SimpleNamespace(
        name=field.name, dataType=SimpleNamespace(simpleString=partial(type_ddl, field.type))
    )
