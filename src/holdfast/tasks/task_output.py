"""The bytes that tasks hand on: rows staged between operators and for sinks, deltas, lists.

Small ones travel in the result row, others are objects under names that no other attempt has. Rows are one
Arrow IPC stream (LZ4): written in the task, read by the next operator's tasks and by the publisher.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.checkpoint.store.records import Extent
from holdfast.errors import CorruptionError, RestoreError
from holdfast.state.encoding.types import in_zone
from holdfast.state.files.evolution import widens
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import EpochWork, Output, Payload
from holdfast.tasks.same_results import without_hidden_bytes

INLINE_BYTES = 32 * 1024
"""Payloads up to this size travel in the result row; the driver writes all of an epoch's into one object."""
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


def load_payload(storage_url: str, payload: Payload) -> pa.Table:
    """The rows of an output, from the result that carries them or from storage."""
    if payload.inline is not None:
        return unpack_rows(payload.inline, "the result of a task")
    assert payload.extent is not None
    return load_extent(storage_url, payload.extent)


@dataclass(frozen=True)
class StagedReader:
    """Reads staged rows inside a Spark task: row `id` of the input names which payload."""

    storage_url: str
    payloads: tuple[Payload, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self.read(index)

    def read(self, index: int) -> list[pa.RecordBatch]:
        rows = load_payload(self.storage_url, self.payloads[index])
        batches: list[pa.RecordBatch] = self.in_columns(rows).to_batches()
        return batches

    def in_columns(self, rows: pa.Table) -> pa.Table:
        return rows.cast(self.schema)


@dataclass(frozen=True)
class ChannelRows(StagedReader):
    """Reads rows of a channel, which may have been written when it had other columns."""

    channel: str
    remedy: str = "let the part that reads it finish them with the former code"

    def in_columns(self, rows: pa.Table) -> pa.Table:
        """By the rules of state: a column that came since is null, one that is gone is left out, a number may
        have become wider."""
        columns = []
        for wanted in self.schema:
            if wanted.name not in rows.column_names:
                columns.append(pa.nulls(rows.num_rows, wanted.type))
                continue
            found = rows.column(wanted.name)
            # The zone is that of the session that wrote them.
            here, there = in_zone(found.type, "UTC"), in_zone(wanted.type, "UTC")
            if not here.equals(there) and not widens(here, there):
                raise RestoreError(
                    f"channel {self.channel!r} holds rows whose column {wanted.name!r} is {found.type}, and "
                    f"it is {wanted.type} now; {self.remedy}"
                )
            columns.append(found.cast(wanted.type))
        return pa.Table.from_arrays(columns, schema=self.schema)


def read_as(columns: pa.Schema, reader: StagedReader, index: int) -> list[pa.RecordBatch]:
    """The rows of a payload in other columns, such as Spark would make of them."""
    rows: pa.Table = pa.Table.from_batches(reader.read(index), reader.schema).cast(columns)
    batches: list[pa.RecordBatch] = rows.to_batches()
    return batches


class TaskWriter:
    """Writes what one task hands on. `unique` is in its names, and in no other attempt's."""

    def __init__(self, storage: Storage, work: EpochWork, shard: int, uid: str = "") -> None:
        self.unique = uuid.uuid4().hex
        self._storage, self._replicated = storage, work.replicated
        who = "-".join(filter(None, (work.run, str(work.attempt), uid)))
        self._stem = f"data/{work.epoch:012d}/{who}-{shard}-{self.unique}"
        self._count = 0

    def write(self, data: bytes, suffix: str) -> Payload:
        total = checksum(data)
        if len(data) <= INLINE_BYTES:
            return Payload(checksum=total, length=len(data), inline=data)
        name = f"{self._stem}-{self._count}.{suffix}"
        self._count += 1
        self._storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=total)
        return Payload(checksum=total, length=len(data), extent=extent)

    def stage(self, made: Mapping[str, pa.Table], wanted: Collection[str]) -> tuple[Output, ...]:
        """Write the rows of the outputs that are read."""
        read = {name: rows for name, rows in made.items() if name in wanted and rows.num_rows}
        if self._replicated:
            read = {name: without_hidden_bytes(rows) for name, rows in read.items()}
        return tuple(
            Output(name, rows.num_rows, self.write(pack_rows(rows), "rows.arrow"))
            for name, rows in read.items()
        )
