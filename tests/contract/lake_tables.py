"""Tables of every lake, made by our sinks, and read and changed as others do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue

from holdfast.connectors.lakes import delta, iceberg
from holdfast.connectors.lakes.delta import DeltaSink
from holdfast.connectors.lakes.iceberg import IcebergSink

Sink = DeltaSink | IcebergSink
COLUMNS = pa.schema([("user", pa.string()), ("n", pa.int64())])


@dataclass(frozen=True)
class Case:
    """Sinks by the names of their tables, as their columns are checked before a run; and what others do to
    these tables, with no Holdfast."""

    sink: Callable[..., Sink]
    rows: Callable[[str], pa.Table | None]
    append: Callable[[str, pa.Table], object]
    empty: Callable[[str], object]
    drop: Callable[[str], object]
    look: type
    """What is looked at, and committed to."""

    def make(self, name: str, columns: pa.Schema = COLUMNS, **how: Any) -> Sink:
        sink = self.sink(name, **how)
        sink.check_schema(columns)
        return sink

    def numbers(self, name: str) -> list[int]:
        rows = self.rows(name)
        return [] if rows is None else sorted(rows["n"].to_pylist())


def delta_case(directory: Path) -> Case:
    def rows(name: str) -> pa.Table | None:
        try:
            return DeltaTable(directory / name).to_pyarrow_table()
        except TableNotFoundError:
            return None

    return Case(
        lambda name, **how: DeltaSink(directory / name, **how),
        rows,
        lambda name, table: write_deltalake(directory / name, table, mode="append"),
        lambda name: DeltaTable(directory / name).delete(),
        lambda name: shutil.rmtree(directory / name),
        delta._DeltaLook,
    )


def iceberg_case(directory: Path) -> Case:
    properties = {
        "py-catalog-impl": "tests.contract.sqlite_catalog.SqliteCatalog",
        "uri": str(directory / "catalog.db"),
        "warehouse": f"file://{directory}/warehouse",
    }

    def table(name: str) -> Any:
        return load_catalog("default", **properties).load_table(f"db.{name}")

    def rows(name: str) -> pa.Table | None:
        there = load_catalog("default", **properties).table_exists(f"db.{name}")
        return table(name).scan().to_arrow() if there else None

    return Case(
        lambda name, **how: IcebergSink(f"db.{name}", properties=properties, **how),
        rows,
        lambda name, more: table(name).append(more),
        lambda name: table(name).delete(AlwaysTrue()),
        lambda name: load_catalog("default", **properties).drop_table(f"db.{name}"),
        iceberg._IcebergLook,
    )


CASES = {"delta": delta_case, "iceberg": iceberg_case}
