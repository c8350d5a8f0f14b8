"""Rows appended to a Delta table, one commit per epoch. The only door to deltalake.

Data files have names of their own and count for nothing until a commit names them. The commit has the epoch
as the version of an application (`txn`), which is this sink of this checkpoint; what the epoch read is in the
commit's own information. Delta's library does not pass over a version that is there already, and would try
again by itself after a conflict: it is told not to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.connectors.contract import Mark
from holdfast.connectors.lakes.columns import as_table_has_them, check_against
from holdfast.connectors.lakes.epochs import EpochPublisher, told_by_kind
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome, Result
from holdfast.connectors.parquet_rows import check_parquet_columns, listed, parquet_bytes, readable
from holdfast.connectors.partitions import check_partition_columns, partitions
from holdfast.connectors.reaching import reaching
from holdfast.errors import (
    DefinitionError,
    HoldfastError,
    MachineError,
    ObjectMissing,
    Unavailable,
    first_line,
)
from holdfast.storage import draft_names
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

COMMITS_LOOKED_AT = 200
"""In so many of the newest commits it is looked for what the newest epoch has read."""
LOOKS_AT_ONCE = 16
FILE_BYTES = 128 << 20
"""How large the rows of a data file are, as Arrow has them; the rows of one are in memory at a time."""
_INFORMATION = "holdfast"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAPPING = "delta.columnMapping.mode"
_CHECKED = ("delta.constraints.", "delta.invariants", "delta.generationExpression", "delta.identity.")
"""How settings of a table, or of a column, begin by which a writer has to make or check values."""
_FINAL = re.compile(
    r"\b40[13] (?:Unauthorized|Forbidden)\b|NoSuchBucket|ContainerNotFound|[Pp]ermission denied"
)
_NAME_CHARS = frozenset(" ,;{}()\n\t=")
"""What Delta has no column names with."""


class DeltaSink:
    """Appends to the Delta table at `path`: a directory, a mount, or `s3://`, `gs://`, `az://`. A table that
    is not there is made, with the columns of the rows and partitioned by `partition_by`.

    An epoch is one commit, so readers see whole epochs. Several jobs and other writers may append to one
    table. Credentials come from the environment.
    """

    exactly_once: Final = True

    def __init__(self, path: str | os.PathLike[str], *, partition_by: Sequence[str] = ()) -> None:
        self.path: Final = os.fspath(path)
        self.partition_by: Final = tuple(partition_by)
        self._columns: pa.Schema | None = None
        """Those that were checked last: a table that has to be made gets them."""

    def check_schema(self, schema: pa.Schema) -> None:
        check_parquet_columns("Delta tables", schema)
        if refused := [field for field in schema if not _is_of_delta(field.type)]:
            raise DefinitionError(f"Delta tables cannot hold {listed(refused)}; cast it with transform(...)")
        if named := [field for field in schema if _NAME_CHARS.intersection(field.name)]:
            raise DefinitionError(
                f"Delta tables have no columns with blanks or any of ,;{{}}()= in their names, here "
                f"{listed(named)}; rename with transform(...)"
            )
        check_partition_columns("Delta tables", schema, self.partition_by)
        self._columns = schema
        try:
            table = _loaded(self.path)
        except Unavailable:
            # It is met again by the run, which waits.
            return
        if table is not None:
            _refuse_promises(_named(self.path), table)
            check_against(_named(self.path), schema, _columns_of(table))

    def publisher(self, job: str, uid: str) -> EpochPublisher:
        _library()
        return EpochPublisher(_DeltaLake(self.path, f"{job} {uid}", self.partition_by, self._columns), uid)


@dataclass(frozen=True)
class _DeltaLake:
    path: str
    application: str
    partition_by: tuple[str, ...]
    columns: pa.Schema | None

    @property
    def name(self) -> str:
        return _named(self.path)

    def look(self) -> _DeltaLook | None:
        table = _loaded(self.path)
        return None if table is None else _DeltaLook(self, table)

    def told(self, cause: Exception) -> HoldfastError:
        return _told(self.path, cause)

    def create(self, mark: Mark) -> None:
        if self.columns is None:
            raise DefinitionError(
                f"{self.name} does not exist, and its columns are not known yet; call check_schema first"
            )
        if "://" not in self.path:
            os.makedirs(self.path, exist_ok=True)
        _library().DeltaTable.create(
            self.path,
            _in_utc(self.columns),
            mode="error",
            partition_by=list(self.partition_by),
            storage_options=_options(self.path),
            commit_properties=self.properties(mark),
        )

    def properties(self, mark: Mark) -> CommitProperties:
        delta = _library()
        properties: CommitProperties = delta.CommitProperties(
            custom_metadata={_INFORMATION: [self.application, mark.epoch, mark.input]},
            max_commit_retries=0,
            app_transactions=[delta.Transaction(self.application, mark.epoch)],
        )
        return properties


@dataclass(frozen=True)
class _DeltaLook:
    lake: _DeltaLake
    table: DeltaTable

    @property
    def epoch(self) -> int | None:
        return self.table.transaction_version(self.lake.application)

    def input(self) -> str:
        # The library reads the log too (`history`), but lets no other thread run meanwhile.
        storage, newest = open_storage(self.lake.path), self.table.version()
        for version in range(newest, max(-1, newest - COMMITS_LOOKED_AT), -1):
            try:
                with reaching(self.lake.name):
                    entries = storage.get(f"_delta_log/{version:020d}.json").splitlines()
            except ObjectMissing:
                break
            for commit in (json.loads(entry).get("commitInfo", {}) for entry in entries):
                application, epoch, input = commit.get(_INFORMATION) or ("", 0, "")
                if (application, epoch) == (self.lake.application, self.epoch):
                    return str(input)
        return ""

    def data_files(self) -> _DataFiles:
        # The table may have changed since the run began.
        _refuse_promises(self.lake.name, self.table)
        partitioned = tuple(self.table.metadata().partition_columns)
        return _DataFiles(self.lake.path, self.lake.name, _columns_of(self.table), partitioned)

    def commit(self, rows: pa.Table | None, mark: Mark, files: Sequence[str] = ()) -> None:
        from deltalake.transaction import AddAction

        if rows is not None:
            files = self.data_files().written(rows)
        else:
            self._refuse_missing(files)
        now_ms, added = SystemClock().now_ms(), list[Any]()
        for name, size, values, count in map(json.loads, files):
            statistics = json.dumps({"numRecords": count})
            added.append(AddAction(name, size, values, now_ms, True, statistics))
        columns, partitioned = _columns_of(self.table), self.table.metadata().partition_columns
        self.table.create_write_transaction(
            added, "append", columns, partitioned, commit_properties=self.lake.properties(mark)
        )

    def _refuse_missing(self, files: Sequence[str]) -> None:
        """Refuse to name files that tasks have written where this process does not see them."""
        storage, told = open_storage(self.lake.path), [json.loads(file) for file in files]
        with reaching(self.lake.name), ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            sizes = list(pool.map(lambda file: storage.size(file[0]), told))
        missing = [name for (name, size, *_), found in zip(told, sizes, strict=True) if found != size]
        if missing:
            raise DefinitionError(
                f"{self.lake.name}: tasks of Spark have written {missing[0]}, and it is not there for the "
                "driver; let the path mean the same place on all machines (a mount, a bucket), with the same "
                "settings"
            )


@dataclass(frozen=True)
class _DataFiles:
    """Writes rows into data files of a table with these columns. A file is told as its name, its size, the
    values of the partition columns, and how many rows it has."""

    path: str
    table: str
    columns: pa.Schema
    partitioned: tuple[str, ...]

    def open(self, term: int) -> _DataFiles:
        return self

    def begin(self, through: int) -> None:
        """Files that no commit names need no mark."""

    def marks(self) -> Mapping[int, LaneMark]:
        return {}

    def write(self, rows: LaneRows) -> Result:
        try:
            files = [file for table in _as_large_as_files(rows.load()) for file in self.written(table)]
        except Unavailable as away:
            return Result(Outcome.UNAVAILABLE, reason=first_line(away))
        except DefinitionError as refusal:
            return Result(Outcome.REFUSED, reason=first_line(refusal))
        return Result(Outcome.WRITTEN, rows.end, files=tuple(files))

    def close(self) -> None:
        pass

    def written(self, rows: pa.Table) -> list[str]:
        # The job may have changed since these rows were staged.
        check_against(self.table, rows.schema, self.columns)
        storage, files = open_storage(self.path), []
        for values, part in partitions(as_table_has_them(readable(rows), self.columns), self.partitioned):
            name, data = f"{draft_names.new_name()}.parquet", parquet_bytes([part])
            with reaching(self.table):
                storage.put(name, data)
            files.append(json.dumps([name, len(data), values, part.num_rows]))
        return files


def _as_large_as_files(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, in tables of about FILE_BYTES or more."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= FILE_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _refuse_promises(name: str, table: DeltaTable) -> None:
    """DefinitionError: the table promises what is not looked at here: the library takes any files, and
    readers would find rows that break the promise, or nulls."""
    settings = table.metadata().configuration
    promises = [key for key in settings if key.startswith(_CHECKED)]
    promises += [_MAPPING] if settings.get(_MAPPING, "none") != "none" else []
    promises += [
        f"{key} of column {field.name!r}"
        for field in table.schema().fields
        for key in field.metadata
        if key.startswith(_CHECKED)
    ]
    if promises:
        raise DefinitionError(
            f"{name} has {', '.join(promises)}, which DeltaSink does not keep; write to a table without, and "
            "from there into this one, or take it off"
        )


def _columns_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _in_utc(schema: pa.Schema) -> pa.Schema:
    """Delta knows times in UTC, and times of no zone."""
    zone = pa.timestamp("us", "UTC")
    fields = [
        field.with_type(zone) if pa.types.is_timestamp(field.type) and field.type.tz else field
        for field in schema
    ]
    return pa.schema([field.with_nullable(True) for field in fields])


def _is_of_delta(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return all(_is_of_delta(field.type) for field in type)
    if pa.types.is_map(type):
        return _is_of_delta(type.key_type) and _is_of_delta(type.item_type)
    if pa.types.is_list(type):
        return _is_of_delta(type.value_type)
    return not (pa.types.is_null(type) or pa.types.is_time(type) or pa.types.is_duration(type))


def _loaded(path: str) -> DeltaTable | None:
    """The table as it is now; None: there is none."""
    delta = _library()
    try:
        table: DeltaTable = delta.DeltaTable(path, storage_options=_options(path))
    except delta.exceptions.TableNotFoundError:
        return None
    except Exception as cause:
        raise _told(path, cause) from cause
    return table


def _named(path: str) -> str:
    return f"Delta table {path}"


def _told(path: str, cause: Exception) -> HoldfastError:
    """The library has no classes for what storage says, but an OSError with all of it in its text."""
    of_storage = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    final = of_storage and _FINAL.search(str(cause)) is not None
    return told_by_kind(_named(path), cause, passing=of_storage, final=final)


def _options(path: str) -> Mapping[str, str]:
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
    plain = endpoint.scheme == "http" and endpoint.hostname in _LOOPBACK
    return {"AWS_ALLOW_HTTP": "true"} if plain and path.startswith("s3://") else {}


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as cause:
        raise MachineError(
            "Delta tables need the package deltalake; install it: pip install 'holdfast[delta]'"
        ) from cause
    return deltalake
