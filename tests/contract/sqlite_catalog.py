"""A catalog of pyiceberg's own making whose tables are rows of an SQLite file: what a commit changes is one
compare-and-set there. pyiceberg has such a catalog too, which needs a package more."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import EMPTY_DICT


class SqliteCatalog(MetastoreCatalog):
    """Properties: `uri` (a file), `warehouse` (a directory)."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        with closing(self._connect()) as db:
            db.execute("create table if not exists tables (name text primary key, location text not null)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.properties["uri"], timeout=60, isolation_level=None)

    def _location(self, identifier: Any) -> str | None:
        with closing(self._connect()) as db:
            key = ".".join(self.identifier_to_tuple(identifier))
            found = db.execute("select location from tables where name = ?", [key]).fetchone()
        return None if found is None else str(found[0])

    def load_table(self, identifier: Any) -> Table:
        location = self._location(identifier)
        if location is None:
            raise NoSuchTableError(f"there is no table {identifier}")
        io = load_file_io(self.properties, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(self.identifier_to_tuple(identifier), metadata, location, io, self)

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = EMPTY_DICT,
    ) -> Table:
        staged = self._create_staged_table(
            identifier, schema, location, partition_spec, sort_order, properties
        )
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._insert(identifier, staged.metadata_location)
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        identifier = table.name()
        current = None if self._location(identifier) is None else self.load_table(identifier)
        staged: StagedTable = self._update_and_stage_table(current, identifier, requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        if current is None:
            self._insert(identifier, staged.metadata_location)
        else:
            with closing(self._connect()) as db:
                key = ".".join(identifier)
                changed = db.execute(
                    "update tables set location = ? where name = ? and location = ?",
                    [staged.metadata_location, key, current.metadata_location],
                ).rowcount
            if not changed:
                raise CommitFailedException(f"{key} was changed by someone else")
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def _insert(self, identifier: Any, location: str) -> None:
        key = ".".join(self.identifier_to_tuple(identifier))
        try:
            with closing(self._connect()) as db:
                db.execute("insert into tables values (?, ?)", [key, location])
        except sqlite3.IntegrityError as cause:
            raise TableAlreadyExistsError(f"{key} is there already") from cause

    def namespace_exists(self, namespace: Any) -> bool:
        return True

    def load_namespace_properties(self, namespace: Any) -> Any:
        return {}

    def register_table(self, identifier: Any, metadata_location: str, overwrite: bool = False) -> Table:
        raise NotImplementedError

    def drop_table(self, identifier: Any) -> None:
        with closing(self._connect()) as db:
            db.execute("delete from tables where name = ?", [".".join(self.identifier_to_tuple(identifier))])

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Table:
        raise NotImplementedError

    def create_namespace(self, namespace: Any, properties: Any = EMPTY_DICT) -> None:
        raise NotImplementedError

    def drop_namespace(self, namespace: Any) -> None:
        raise NotImplementedError

    def list_tables(self, namespace: Any) -> Any:
        raise NotImplementedError

    def list_namespaces(self, namespace: Any = ()) -> Any:
        raise NotImplementedError

    def update_namespace_properties(
        self, namespace: Any, removals: Any = None, updates: Any = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        raise NotImplementedError

    def list_views(self, namespace: Any) -> Any:
        return []

    def view_exists(self, identifier: Any) -> bool:
        return False

    def drop_view(self, identifier: Any) -> None:
        raise NotImplementedError

    def load_view(self, identifier: Any) -> Any:
        raise NotImplementedError

    def register_view(self, identifier: Any, metadata_location: str) -> Any:
        raise NotImplementedError

    def create_view(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError
