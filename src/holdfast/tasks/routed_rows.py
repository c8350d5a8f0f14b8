"""Rows that never become Spark's: tasks read them, route them by key, and hand them on packed by shard.

Spark still runs the tasks and moves the rows between them, as one value for each piece and shard rather than
one for each row and column.
Always true: a row goes to the shard that Spark's own expression names (see state.encoding.routing).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.connectors.contract import Pieces
from holdfast.errors import HoldfastError, one_line
from holdfast.state.encoding.keys import GROUP_COLUMN
from holdfast.state.encoding.routing import key_groups_of, routing_hash
from holdfast.state.encoding.types import in_zone
from holdfast.tasks.operators.partial_rows import Combined

SHARD_COLUMN = "__hf_shard"
PACKED = "rows"
"""The column of rows that are packed."""
UNREADABLE = "a task cannot read a piece by itself"
"""In the words of a task's error: Spark may be able to."""
PACKED_BYTES = 16 << 20
"""About so many bytes of rows are packed at once: what is packed is whole in memory, here and in the JVM."""


@dataclass(frozen=True)
class RoutedRows:
    """The rows of an operator's input, in pieces that tasks read."""

    pieces: Pieces
    key: tuple[str, ...]
    key_groups: int
    shards: int
    combined: Combined | None = None
    """How rows are combined before they are packed; None: they are not."""
    zone: str = "UTC"
    """The time zone of the Spark session."""

    def of_shard(self, shard: int) -> list[pa.RecordBatch]:
        """A shard's rows of all pieces, which are read whole: for few rows, and as they are."""
        found = []
        for number in range(self.pieces.count):
            for batch in rows_of(self.pieces, number):
                groups, shards = self._places(batch)
                rows = _with_groups(as_spark_gives(batch, self.zone), groups)
                found.append(rows.filter(pa.array(shards == shard)))
        return found

    def pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of a task under `mapInArrow`: the rows of the pieces whose numbers it is given."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in _gathered(rows_of(self.pieces, number)):
                    yield self._packed(rows)

    def _packed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.combined is not None:
            rows = self.combined.rows(rows)
        groups, shards = self._places(rows)
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(self.shards + 1))
        sorted_rows = _with_groups(as_spark_gives(rows, self.zone), groups).take(pa.array(order))
        there = [shard for shard in range(self.shards) if ends[shard + 1] > ends[shard]]
        blobs = [_blob(sorted_rows.slice(ends[shard], ends[shard + 1] - ends[shard])) for shard in there]
        return pa.RecordBatch.from_arrays(
            [pa.array(there, pa.int32()), pa.array(blobs, pa.binary())], names=[SHARD_COLUMN, PACKED]
        )

    def _places(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """Of each row its key group and its shard."""
        groups = key_groups_of(routing_hash([rows.column(name) for name in self.key]), self.key_groups)
        firsts = np.array([shard * self.key_groups // self.shards for shard in range(1, self.shards)])
        return groups, np.searchsorted(firsts, groups, side="right").astype(np.uint16)


def as_spark_gives(rows: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    """The rows of a piece, with times in the zone of the session: in it Spark gives them to Python."""
    if zone == "UTC":
        return rows
    return rows.cast(pa.schema([field.with_type(in_zone(field.type, zone)) for field in rows.schema]))


def rows_of(pieces: Pieces, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of a piece. ValueError, with UNREADABLE: a task cannot read it, and Spark may be able to."""
    try:
        yield from pieces.read(number)
    except HoldfastError:
        raise
    except Exception as cause:
        raise ValueError(f"{UNREADABLE}: {one_line(cause)}") from cause


def unpacked(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows that other tasks have packed for a shard."""
    return [
        rows
        for batch in batches
        for blob in batch.column(PACKED)
        for rows in pa.ipc.open_stream(blob.as_buffer())
    ]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, in batches of about PACKED_BYTES."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        rows = max(1, batch.num_rows * PACKED_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            held.append(batch.slice(start, rows))
            size += held[-1].nbytes
            if size >= PACKED_BYTES:
                yield pa.concat_batches(held)
                held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _with_groups(rows: pa.RecordBatch, groups: npt.NDArray[np.uint16]) -> pa.RecordBatch:
    return rows.append_column(GROUP_COLUMN, pa.array(groups.astype(np.int32)))


def _blob(rows: pa.RecordBatch) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(buffer.getvalue())
