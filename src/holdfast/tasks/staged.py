"""Staged output: rows of one epoch between the operator that made them and whoever reads them next.

Stored as one Arrow IPC stream (LZ4): written in the task, read by the next operator's tasks and by the
publisher.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.checkpoint.store.records import Extent
from holdfast.errors import CorruptionError
from holdfast.storage.checksums import read_extent
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Payload

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def pack_rows(rows: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows)
    packed: bytes = buffer.getvalue().to_pybytes()
    return packed


def unpack_rows(data: bytes, name: str) -> pa.Table:
    try:
        return pa.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as cause:
        raise CorruptionError(
            f"staged rows in {name} cannot be read ({cause}); restore the file from a copy"
        ) from cause


def load_extent(storage_url: str, extent: Extent) -> pa.Table:
    """Read staged rows from storage, verified."""
    return unpack_rows(read_extent(open_storage(storage_url), extent), extent.object)


@dataclass(frozen=True)
class StagedReader:
    """Reads staged rows inside a Spark task: row `id` of the input names which payload."""

    storage_url: str
    payloads: tuple[Payload, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._load(self.payloads[index]).cast(self.schema).to_batches()

    def _load(self, payload: Payload) -> pa.Table:
        if payload.inline is not None:
            return unpack_rows(payload.inline, "the result of a task")
        assert payload.extent is not None
        return load_extent(self.storage_url, payload.extent)
