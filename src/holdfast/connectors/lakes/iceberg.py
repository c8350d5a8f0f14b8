"""Rows appended to an Iceberg table, one commit per epoch. The only door to pyiceberg.

The mark is a property of the table, set in the same commit that appends the rows: properties stay when
snapshots expire. A commit asserts that the table's newest snapshot is still the one that was looked at, so
that of two publishers one is refused. pyiceberg would then make the commit anew on the newer table, with
rows that are there already: it is told not to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.contract import Mark
from holdfast.connectors.lakes.columns import as_table_has_them, check_against
from holdfast.connectors.lakes.epochs import EpochPublisher, told_by_kind
from holdfast.connectors.parquet_rows import check_parquet_columns, listed, readable
from holdfast.connectors.partitions import check_partition_columns
from holdfast.errors import DefinitionError, HoldfastError, MachineError, Unavailable, first_line
from holdfast.secret import Secret, refuse_password_in, refuse_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

MAIN = "main"
_FINAL = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound|[Pp]ermission denied"
    r"|CERTIFICATE_VERIFY_FAILED"
)
"""What errors of storage and connections say that no other try mends."""
_SECRETS = (
    "credential", "token", "password", "passphrase", "secret-access-key", "account-key", "api-key",
    "secret", "connection-string", "authorization",
)  # fmt: skip
"""How names of settings end that hold a secret, in whatever case."""
_TRIES = "commit.retry.num-retries"
_STATISTICS = "write.metadata.metrics.column"
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = tuple(day * 86_400_000_000 for day in _DAYS)
"""Years 1 to 9999, as dates and times: pyiceberg has no objects for others, which it needs for bounds."""


class IcebergSink:
    """Appends to the Iceberg table `table` (`namespace.name`). A table that is not there is made, with the
    columns of the rows and partitioned by the values of `partition_by`.

    `catalog` is the name of a catalog of pyiceberg's (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`), and
    `properties` are added to its settings; passwords, keys and tokens in them are `hf.Secret`s. An epoch is
    one commit, so readers see whole epochs. Several jobs and other writers may append to one table.
    """

    exactly_once: Final = True

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str | Secret] | None = None,
        partition_by: Sequence[str] = (),
    ) -> None:
        if "." not in table:
            raise DefinitionError(f"Iceberg table {table!r} has no namespace; write 'namespace.name'")
        self.table: Final = table
        self.catalog: Final = catalog
        self.properties: Final = dict(properties or {})
        for name, value in self.properties.items():
            argument = f"properties[{name!r}]"
            if name.lower().endswith(_SECRETS):
                refuse_text(value, argument)
            elif isinstance(value, str):
                refuse_password_in(value, argument)
        self.partition_by: Final = tuple(partition_by)
        self._columns: pa.Schema | None = None
        """Those that were checked last: a table that has to be made gets them."""

    def check_schema(self, schema: pa.Schema) -> None:
        check_parquet_columns("Iceberg tables", schema)
        if refused := [field for field in schema if not _is_of_iceberg(field.type)]:
            raise DefinitionError(
                f"Iceberg tables cannot hold {listed(refused)}; cast it with transform(...)"
            )
        check_partition_columns("Iceberg tables", schema, self.partition_by)
        self._columns = schema
        try:
            table = _loaded(self._open(), self.table)
        except Unavailable:
            # It is met again by the run, which waits.
            return
        if table is not None:
            check_against(_named(self.table), _widened(schema), _columns_of(table))

    def publisher(self, job: str, uid: str) -> EpochPublisher:
        lake = _IcebergLake(self._open(), self.table, f"{job} {uid}", self.partition_by, self._columns)
        return EpochPublisher(lake, uid)

    def _open(self) -> Catalog:
        _require_library()
        from pyiceberg.catalog import load_catalog

        given = self.properties
        resolved = {name: of.resolve() if isinstance(of, Secret) else of for name, of in given.items()}
        try:
            return load_catalog(self.catalog, **resolved)
        except Exception as cause:
            said = first_line(cause)
            for value in given.values():
                said = value.hide_in(said) if isinstance(value, Secret) else said
            if _is_passing(cause):
                raise Unavailable(
                    f"Iceberg catalog {self.catalog!r} cannot be reached: {said}; see to its server"
                ) from None
            raise DefinitionError(
                f"Iceberg catalog {self.catalog!r} cannot be opened: {said}; describe it in .pyiceberg.yaml, "
                "or give properties="
            ) from None


@dataclass(frozen=True)
class _IcebergLake:
    catalog: Catalog
    table: str
    owner: str
    partition_by: tuple[str, ...]
    columns: pa.Schema | None

    @property
    def name(self) -> str:
        return _named(self.table)

    @property
    def property(self) -> str:
        """The table property that holds the mark."""
        return f"holdfast.shown.{self.owner}"

    def look(self) -> _IcebergLook | None:
        table = _loaded(self.catalog, self.table)
        return None if table is None else _IcebergLook(self, table)

    def told(self, cause: Exception) -> HoldfastError:
        return _told(self.table, cause)

    def create(self, mark: Mark) -> None:
        if self.columns is None:
            raise DefinitionError(
                f"{self.name} does not exist, and its columns are not known yet; call check_schema first"
            )
        namespace = self.table.rpartition(".")[0]
        if not self.catalog.namespace_exists(namespace):
            self.catalog.create_namespace_if_not_exists(namespace)
        columns = _widened(self.columns)
        with (
            self.catalog.create_table_transaction(
                self.table, columns, properties={self.property: _text(mark)}
            ) as making,
            making.update_spec() as spec,
        ):
            for column in self.partition_by:
                spec.add_identity(column)


@dataclass(frozen=True)
class _IcebergLook:
    lake: _IcebergLake
    table: Table

    @property
    def epoch(self) -> int | None:
        mark = self._mark()
        return None if mark is None else mark.epoch

    def input(self) -> str:
        mark = self._mark()
        return "" if mark is None else mark.input

    def _mark(self) -> Mark | None:
        text = self.table.properties.get(self.lake.property)
        return None if text is None else Mark(**json.loads(text))

    def data_files(self) -> None:
        return None

    def commit(self, rows: pa.Table | None, mark: Mark, files: Sequence[str] = ()) -> None:
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetPropertiesUpdate

        shown = {self.lake.property: _text(mark)}
        if rows is None:
            newest = {"ref": MAIN, "snapshot-id": self.table.metadata.current_snapshot_id}
            still = AssertRefSnapshotId.model_validate(newest)
            same = AssertTableUUID(uuid=self.table.metadata.table_uuid)
            self.lake.catalog.commit_table(self.table, (same, still), (SetPropertiesUpdate(updates=shown),))
            return
        rows, columns = _cast(readable(rows)), _columns_of(self.table)
        # The table may have changed since the run began, and so may the job since these rows were staged.
        check_against(self.lake.name, rows.schema, columns)
        rows = as_table_has_them(rows, columns)
        without_bounds = {f"{_STATISTICS}.{path}": "counts" for path in _far_away(rows)}
        properties = {**self.table.metadata.properties, **without_bounds, _TRIES: "0"}
        # Only this look has it: what is sent to the catalog are the changes of the transaction.
        self.table.metadata = self.table.metadata.model_copy(update={"properties": properties})
        with self.table.transaction() as change:
            change.append(rows)
            change.set_properties(shown)


def _text(mark: Mark) -> str:
    return json.dumps({"epoch": mark.epoch, "input": mark.input})


def _columns_of(table: Table) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema(), include_field_ids=False)


def _widened(schema: pa.Schema) -> pa.Schema:
    """Iceberg has no whole numbers below 32 bits, and times in UTC or of no zone. Nothing is required."""
    return pa.schema([pa.field(field.name, _wide(field.type)) for field in schema])


def _wide(type: pa.DataType) -> pa.DataType:
    if pa.types.is_int8(type) or pa.types.is_int16(type):
        return pa.int32()
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", "UTC" if type.tz else None)
    if pa.types.is_list(type):
        return pa.list_(_wide(type.value_type))
    if pa.types.is_map(type):
        return pa.map_(_wide(type.key_type), _wide(type.item_type))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _wide(field.type)) for field in type])
    return type


def _cast(rows: pa.Table) -> pa.Table:
    return rows.cast(_widened(rows.schema))


def _far_away(rows: pa.Table) -> list[str]:
    """The columns that hold dates or times outside the years of Python's own objects."""
    found, columns = [], dict(zip(rows.column_names, rows.columns, strict=True))
    while columns:
        path, column = columns.popitem()
        if pa.types.is_struct(column.type):
            parts = zip(column.type, column.combine_chunks().flatten(), strict=True)
            columns |= {f"{path}.{field.name}": pa.chunked_array([part]) for field, part in parts}
        elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            is_date = pa.types.is_date(column.type)
            bounds = pc.min_max(column.cast(pa.int32() if is_date else pa.int64())).as_py()
            first, end = _DAYS if is_date else _MICROSECONDS
            if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] >= end):
                found.append(path)
    return found


def _is_of_iceberg(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return all(_is_of_iceberg(field.type) for field in type)
    if pa.types.is_map(type):
        return _is_of_iceberg(type.key_type) and _is_of_iceberg(type.item_type)
    if pa.types.is_list(type):
        return _is_of_iceberg(type.value_type)
    return not (pa.types.is_null(type) or pa.types.is_time(type) or pa.types.is_duration(type))


def _loaded(catalog: Catalog, name: str) -> Table | None:
    """The table as it is now; None: there is none."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except Exception as cause:
        raise _told(name, cause) from cause


def _named(table: str) -> str:
    return f"Iceberg table {table}"


def _told(table: str, cause: Exception) -> HoldfastError:
    return told_by_kind(_named(table), cause, passing=_is_passing(cause), final=_is_final(cause))


def _is_passing(cause: Exception) -> bool:
    """Whether catalog or storage is not there now. Errors of connections are OSErrors, whichever client of a
    catalog or of storage raises them; a file that is missing is no outage."""
    from pyiceberg import exceptions

    busy = exceptions.ServerError, exceptions.ServiceUnavailableError, exceptions.TooManyRequestsError
    away = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    return (away or isinstance(cause, busy)) and not _is_final(cause)


def _is_final(cause: Exception) -> bool:
    """Whether nobody is let in."""
    from pyiceberg import exceptions

    shut = exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError
    return isinstance(cause, shut) or (isinstance(cause, OSError) and _FINAL.search(str(cause)) is not None)


def _require_library() -> Any:
    try:
        import pyiceberg
    except ImportError as cause:
        raise MachineError(
            "Iceberg tables need the package pyiceberg; install it: pip install 'holdfast[iceberg]'"
        ) from cause
    return pyiceberg
