"""Stored snapshots as state reads them: by the schema that they were written under, from a local file."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.store.records import SnapshotFile
from holdfast.state.contract import SnapshotSource
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.contract import Storage


def snapshot_source(file: SnapshotFile, lineage: Lineage, path: Path) -> SnapshotSource:
    """The snapshot at `path`, to be read in the layout in force."""
    # Files of the first Holdfast say no schema. They are of generation 0: not of the one in force, which the
    # code of a run that has not committed yet may have changed already.
    generation = file.schema.generation if file.schema else 0
    return SnapshotSource(
        version=file.version,
        first_group=file.first_group,
        end_group=file.end_group,
        path=path,
        length=file.length,
        chunk_bytes=file.chunk_bytes,
        chunks=file.chunks,
        backend=file.backend,
        convert=lineage.converter(generation, f"snapshot {file.object}"),
    )


def copy_snapshot(storage: Storage, file: SnapshotFile, to: Path) -> None:
    """Copy it to the new file `to`, a chunk at a time. Opening the copy verifies it."""
    with to.open("xb") as copy:
        for offset in range(0, file.length, file.chunk_bytes):
            copy.write(storage.get(file.object, offset, min(file.chunk_bytes, file.length - offset)))
