"""Rows that a checkpoint holds, written where the user wants them: Parquet, one file for an epoch, or one for
each lane of it.

Always true: the same rows give the same files; files of other rows are never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint.store.records import SentFile, StagedFile
from holdfast.connectors.lanes import lane_of
from holdfast.errors import RestoreError
from holdfast.storage.contract import Put, Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import load_extent


def write_aside(
    storage: Storage,
    target: Storage,
    uid: str,
    files: Sequence[StagedFile] | Sequence[SentFile],
    *,
    by_lane: bool = False,
) -> tuple[str, ...]:
    """Write these rows of a sink or channel to `target`; gives the names of the files. `by_lane`: the sink is
    written by lanes, each of which it may show a beginning of; so each is a file, in its order."""
    together: dict[str, list[StagedFile | SentFile]] = {}
    each: list[StagedFile | SentFile] = sorted(files, key=lambda file: (file.epoch, file.part))
    for file in each:
        lane = f"-{lane_of(file.part):02d}" if by_lane else ""
        together.setdefault(f"{uid}-{file.epoch:012d}{lane}.parquet", []).append(file)
    names = tuple(_write(storage, target, name, its) for name, its in sorted(together.items()))
    if isinstance(target, LocalStorage):
        # A place of the user's, where nothing else is written.
        target.tidy()
    return names


def _write(storage: Storage, target: Storage, name: str, files: Sequence[StagedFile | SentFile]) -> str:
    tables = [load_extent(storage.url, file.extent) for file in files]
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
