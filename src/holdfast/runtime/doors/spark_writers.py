"""The writing half of the format `holdfast`: what Spark calls, on the driver and in its tasks.

A task writes the rows of its partition as Arrow files, small ones travel to the driver in its message; the
driver commits what the messages name. A task that failed, or whose twin was faster, leaves files that no
commit names: retention removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent
from holdfast.clock import SystemClock
from holdfast.runtime.doors.channel_writer import Batch, ChannelWriter
from holdfast.storage.checksums import checksum
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Output, Payload
from holdfast.tasks.task_output import INLINE_BYTES, pack_rows

FILE_BYTES_MAX = 32 << 20
"""Rows of a task that have more bytes than this in memory go into several files."""
QUERY_PROPERTY = "sql.streaming.queryId"
"""Under which Spark tells the tasks of a streaming query its id."""


@dataclass(frozen=True)
class Target:
    """Where a write goes. `run` is a fresh name for each start of a writer."""

    url: str
    name: str
    keep_epochs: int
    run: str

    def writer(self) -> ChannelWriter:
        return ChannelWriter(open_storage(self.url), self.name, self.keep_epochs, self.run, SystemClock())


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task wrote, as which epoch, for which query."""

    epoch: int
    query: str
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class RowFiles:
    """Writes the rows of a task, as columns of these types."""

    target: Target
    epoch: int
    columns: pa.Schema

    def write(self, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
        outputs, waiting, size = [], [], 0
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= FILE_BYTES_MAX:
                outputs += self._file(waiting)
                waiting, size = [], 0
        outputs += self._file(waiting)
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        return WrittenRows(self.epoch, query or "", tuple(outputs))

    def _file(self, batches: list[pa.RecordBatch]) -> list[Output]:
        rows = pa.Table.from_batches(batches) if batches else None
        if rows is None or not rows.num_rows:
            return []
        data = pack_rows(rows.cast(self.columns))
        total = checksum(data)
        if len(data) <= INLINE_BYTES:
            return [Output("", rows.num_rows, Payload(checksum=total, length=len(data), inline=data))]
        name = f"{names.data_of(self.epoch)}{self.target.run}-{uuid.uuid4().hex}.rows.arrow"
        open_storage(self.target.url).put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=total)
        return [Output("", rows.num_rows, Payload(checksum=total, length=len(data), extent=extent))]


Messages = Sequence[WriterCommitMessage | None]


def _written(messages: Messages) -> list[WrittenRows]:
    return [each for each in messages if isinstance(each, WrittenRows)]


def _outputs(written: Sequence[WrittenRows]) -> list[Output]:
    return [output for each in written for output in each.outputs]


def _discard(target: Target, messages: Messages) -> None:
    written = _written(messages)
    if written:
        target.writer().discard(written[0].epoch, _outputs(written))


class ChannelStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, one epoch. Made again for every batch, and again where it is committed."""

    def __init__(self, target: Target, columns: pa.Schema) -> None:
        self._target, self._columns = target, columns
        self._epoch = target.writer().begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return RowFiles(self._target, self._epoch, self._columns).write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        written = _written(messages)
        epoch, query = (written[0].epoch, written[0].query) if written else (self._epoch, "")
        self._target.writer().append(epoch, _outputs(written), Batch(query, batchId))

    def abort(self, messages: Messages, batchId: int) -> None:
        _discard(self._target, messages)


class ChannelBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame, one epoch."""

    def __init__(self, target: Target, columns: pa.Schema) -> None:
        self._target, self._columns = target, columns
        self._epoch = target.writer().begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return RowFiles(self._target, self._epoch, self._columns).write(iterator)

    def commit(self, messages: Messages) -> None:
        self._target.writer().append(self._epoch, _outputs(_written(messages)), None)

    def abort(self, messages: Messages) -> None:
        _discard(self._target, messages)
