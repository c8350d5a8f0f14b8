"""`format("holdfast")`: channels, to and from Spark.

Reading (`spark.read`, `spark.readStream`): options `checkpoint` and `channel`; `startingEpoch`, `endingEpoch`
(of `spark.read`), `maxEpochsPerTrigger` (of `spark.readStream`), `minPartitions`, and `failOnDataLoss=false`
to go on with the oldest epoch that is held where those before it were let go unread.
Writing (`df.writeStream`, `df.write`): options `checkpoint`, `writer` (the channel gets this name) and
`keepEpochs`.
Always true: only committed epochs are read; an offset of a stream is an epoch, and names the checkpoint whose
epoch it is.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import find_job, read_job
from holdfast.checkpoint.store.records import SentFile
from holdfast.connectors.channel import KEEP_EPOCHS
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    InputVanished,
    ObjectMissing,
    RestoreError,
    RetryableError,
)
from holdfast.runtime.doors.door_reader import (
    REMEDY,
    DoorReader,
    newest_columns,
    refuse_other_columns,
)
from holdfast.runtime.doors.partitions import FilesPartition, packed
from holdfast.runtime.doors.spark_writers import ChannelBatchWriter, ChannelStreamWriter, Target
from holdfast.state.encoding.types import frame_ddl, parse_type
from holdfast.storage.checksums import read_extent
from holdfast.storage.urls import open_storage
from holdfast.tasks.task_output import ChannelRows, unpack_rows

NAME = "holdfast"
NO_COLUMNS = pa.schema([])
_NUMBERS = ("startingepoch", "endingepoch", "maxepochspertrigger", "minpartitions")
_READING = ("channel", "failondataloss", *_NUMBERS)
_WRITING = ("writer", "keepepochs")
_SPARK = ("checkpointlocation", "path")
"""Options of Spark itself, which it hands on; `path` is another word for `checkpoint`."""


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, checked."""

    url: str
    channel: str
    first: int | None
    last: int | None
    max_epochs: int | None
    min_partitions: int
    fail_on_data_loss: bool

    def door(self, identity: str = "") -> DoorReader:
        again = "start the query with a new checkpointLocation"
        return DoorReader(self.channel, self.url, NO_COLUMNS, identity, again)


class ChannelDataSource(DataSource):
    """What Spark knows as the format `holdfast`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = {key.lower(): value for key, value in options.items()}
        self._run = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        asked = _read_options(self._given)
        storage = open_storage(asked.url)
        newest = newest_columns(storage, asked.door().held())
        if newest is None:
            holds = "holds no row yet" if find_job(storage) else "is not there yet (there is no checkpoint)"
            raise DefinitionError(
                f"channel {asked.channel!r} in {asked.url} {holds}, so that its columns are not known; check "
                "the place, or give the columns with .schema('...')"
            )
        return frame_ddl(newest)

    def reader(self, schema: Any) -> ChannelBatchReader:
        return ChannelBatchReader(_read_options(self._given), _fitting(self._given, schema))

    def streamReader(self, schema: Any) -> ChannelStreamReader:
        return ChannelStreamReader(_read_options(self._given), _fitting(self._given, schema))

    def writer(self, schema: Any, overwrite: bool) -> ChannelBatchWriter:
        if overwrite:
            raise DefinitionError("a channel cannot be overwritten, it only grows; write with mode('append')")
        return ChannelBatchWriter(_target(self._given, self._run), _columns(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> ChannelStreamWriter:
        if overwrite:
            raise DefinitionError(
                "a channel only grows, and outputMode('complete') replaces all rows each time; use "
                "outputMode('append') or 'update'"
            )
        return ChannelStreamWriter(_target(self._given, self._run), _columns(schema))


class _FileReader:
    """Reads files of a channel in Spark tasks."""

    def __init__(self, asked: ReadOptions, columns: pa.Schema) -> None:
        self._asked, self._columns = asked, columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is no file at all it is Spark's own.
        for file in partition.files if isinstance(partition, FilesPartition) else ():
            yield from self._rows(file).to_batches()

    def _rows(self, file: SentFile) -> pa.Table:
        asked = self._asked
        try:
            rows = unpack_rows(read_extent(open_storage(asked.url), file.extent), file.extent.object)
        except ObjectMissing as cause:
            raise InputVanished(
                f"epoch {file.epoch} of channel {asked.channel!r} in {asked.url} was let go while it "
                "was read; read again, and let the sender keep more epochs"
            ) from cause
        return ChannelRows(asked.url, (), self._columns, asked.channel, REMEDY).in_columns(rows)

    def _files(self, door: DoorReader, channel: Channel, after: int, through: float) -> list[InputPartition]:
        """The files of epochs after `after` up to `through`. InputVanished: some were let go. RetryableError:
        some are computed again."""
        if self._asked.fail_on_data_loss and after < channel.released:
            raise InputVanished(
                f"channel {self._asked.channel!r} in {door.place} has let go of epochs up to "
                f"{channel.released}, and epochs from {after + 1} on are to be read; let the sender keep "
                "more epochs, and to go on with the oldest that is held set the option failOnDataLoss=false"
            )
        lost = [epoch for epoch in channel.lost if after < epoch <= through]
        if lost:
            raise RetryableError(
                f"epoch {lost[0]} of channel {self._asked.channel!r} in {door.place} is damaged, and its "
                "sender computes it again; read again when it has (`holdfast channels list` shows it as LOST "
                "until then)"
            )
        files = [file for file in channel.files if after < file.epoch <= through]
        return [*packed(files, self._asked.min_partitions)]


class ChannelBatchReader(_FileReader, DataSourceReader):
    """All epochs that are held, or some of them: a read that would lack one of these is refused."""

    def partitions(self) -> list[InputPartition]:
        asked, door = self._asked, self._asked.door()
        read_job(open_storage(asked.url))
        channel = door.held()
        after = channel.released if asked.first is None else asked.first - 1
        return self._files(door, channel, after, math.inf if asked.last is None else asked.last)


class ChannelStreamReader(_FileReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Committed epochs, in order. An offset is the newest epoch that is read."""

    def __init__(self, asked: ReadOptions, columns: pa.Schema) -> None:
        super().__init__(asked, columns)
        self._opened: DoorReader | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read files; the chain is looked at on the driver.
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:
        channel = self._door("").held()
        first = self._asked.first
        return self._offset(channel.released if first is None else first - 1)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest(self._door("").held())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        door = self._door(start["identity"])
        channel, after = door.held(), start["epoch"]
        if after + 1 != self._asked.first:
            self._refuse_behind(door, channel, after)
        # Epochs without rows are no reason for a batch.
        later = sorted({file.epoch for file in channel.files if after < file.epoch <= channel.through})
        later = [epoch for epoch in later if self._target is None or epoch <= self._target]
        taken = later[: self._asked.max_epochs]
        return self._offset(taken[-1]) if taken else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        door = self._door(end["identity"])
        channel = door.held()
        self._refuse_behind(door, channel, end["epoch"])
        return self._files(door, channel, start["epoch"], end["epoch"])

    def commit(self, end: dict[str, Any]) -> None:
        """The sender waits for no reader: there is nothing to tell."""

    def _door(self, identity: str) -> DoorReader:
        if self._opened is None or identity not in ("", self._opened.identity):
            self._opened = self._asked.door(identity)
        return self._opened

    def _offset(self, epoch: int) -> dict[str, Any]:
        assert self._opened is not None, "an offset is of a channel that was looked at"
        return {"identity": self._opened.identity, "epoch": epoch}

    def _newest(self, channel: Channel) -> int:
        return max((file.epoch for file in channel.files if file.epoch <= channel.through), default=0)

    def _refuse_behind(self, door: DoorReader, channel: Channel, epoch: int) -> None:
        if epoch > channel.through and not door.awaits(epoch):
            raise RestoreError(
                f"this query has read channel {self._asked.channel!r} in {door.place} up to epoch {epoch}, "
                f"and it has come to epoch {channel.through} only: its checkpoint is an older copy; restore "
                "a newer one, or start the query with a new checkpointLocation"
            )


def _fitting(given: dict[str, str], schema: Any) -> pa.Schema:
    """The columns to read, if rows of the channel can have them."""
    asked, columns = _read_options(given), _columns(schema)
    channel, newest = asked.door().held(), None
    # What is damaged, or let go at this moment, is told when it is read.
    with suppress(ObjectMissing, CorruptionError):
        newest = newest_columns(open_storage(asked.url), channel)
    if newest is not None:
        refuse_other_columns(columns, newest, asked.channel, asked.url)
    return columns


def _columns(schema: Any) -> pa.Schema:
    """The columns of a Spark schema as Arrow types."""
    fields = [(each.name, parse_type(each.dataType.simpleString())) for each in schema.fields]
    return pa.schema(fields)


def _read_options(given: dict[str, str]) -> ReadOptions:
    problems = _problems(given, _READING, "channel", "the uid of a hf.ChannelSink, or the name of a writer")
    numbers = {name: _number(given, name, problems) for name in _NUMBERS}
    loss = given.get("failondataloss", "true").lower()
    if loss not in ("true", "false"):
        problems.append(f"option 'failOnDataLoss' is true or false, not {loss!r}")
    _refuse(problems)
    return ReadOptions(
        _place(given), given["channel"], numbers["startingepoch"], numbers["endingepoch"],
        numbers["maxepochspertrigger"],
        # How many tasks the session runs at once is not told here: Spark asks in a process of its own.
        numbers["minpartitions"] or os.cpu_count() or 1,
        loss == "true",
    )  # fmt: skip


def _target(given: dict[str, str], run: str) -> Target:
    problems = _problems(given, _WRITING, "writer", "the name of the channel that is written")
    keep = _number(given, "keepepochs", problems)
    _refuse(problems)
    return Target(_place(given), given["writer"], KEEP_EPOCHS if keep is None else keep, run)


def _problems(given: dict[str, str], known: tuple[str, ...], needed: str, meaning: str) -> list[str]:
    names = ("checkpoint", *known, *_SPARK)
    problems = [f"option {name!r} is not known here" for name in given if name not in names]
    if len([name for name in ("checkpoint", "path") if given.get(name)]) != 1:
        problems.append("give the option 'checkpoint', a directory or url")
    if not given.get(needed):
        problems.append(f"give the option {needed!r}, {meaning}")
    return problems


def _number(given: dict[str, str], name: str, problems: list[str]) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        problems.append(f"option {name!r} is a number from 1 on, not {text!r}")
        return None
    return int(text)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise DefinitionError(f"format {NAME!r}: {'; '.join(problems)}")


def _place(given: dict[str, str]) -> str:
    # Workers have other current directories than the driver.
    return open_storage(given.get("checkpoint") or given["path"]).url
