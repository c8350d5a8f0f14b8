"""Rows that a checkpoint holds, written where the user wants them: Parquet, one file per epoch.

Always true: the same rows give the same files; files of other rows are never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint.store.records import SentFile, StagedFile
from holdfast.errors import RestoreError
from holdfast.storage.contract import Put, Storage
from holdfast.tasks.task_output import load_extent


def write_aside(
    storage: Storage, target: Storage, uid: str, files: Sequence[StagedFile] | Sequence[SentFile]
) -> tuple[str, ...]:
    """Write these rows of a sink or channel to `target`; gives the names of the files."""
    epochs = sorted({file.epoch for file in files})
    return tuple(
        _write(storage, target, uid, epoch, [file for file in files if file.epoch == epoch])
        for epoch in epochs
    )


def _write(
    storage: Storage, target: Storage, uid: str, epoch: int, files: Sequence[StagedFile | SentFile]
) -> str:
    name = f"{uid}-{epoch:012d}.parquet"
    tables = [load_extent(storage.url, file.extent) for file in sorted(files, key=lambda file: file.part)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(tables), out)
    data = out.getvalue().to_pybytes()
    # What an interrupted try has left is the same committed rows.
    if target.put_new(name, data) is Put.EXISTS and target.get(name) != data:
        raise RestoreError(
            f"{name} in {target.url} holds other rows, of another job or copy, and was left as it is; choose "
            "another place"
        )
    return name
