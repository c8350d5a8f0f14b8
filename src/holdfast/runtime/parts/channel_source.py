"""The rows of a channel, as what reads it sees them: a source whose slices are committed epochs of the part
before, or of another job.

A position is [E, n, c]: all epochs up to E are read, and n files of epoch E + 1, whose content c names; or
[E, 0].
Always true: a slice names files and their checksums, so it gives the same rows whatever becomes of the part
before. Only commits that are listed count: what a listing shows is durable. Of an epoch that was asked for
again (see damaged_epochs) nothing is read before that is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import find_job
from holdfast.checkpoint.chain.history import History, NewestCommit
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, JobRecord, Json, SentFile
from holdfast.clock import SystemClock
from holdfast.connectors.contract import Arrived, Pieces, Slice, Waiting
from holdfast.errors import CorruptionError, InputVanished, ObjectMissing, RestoreError, RetryableError
from holdfast.ids import EpochId
from holdfast.state.encoding.types import frame_ddl
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import Payload
from holdfast.tasks.task_output import ChannelRows, read_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIST_SECONDS = 5.0
"""How often the commits of the part before are listed though the next one is not there."""
SENT_MAX = 2_000
"""Of so many commits it is remembered when they were sent: more than may wait in a channel."""


class PartChannel:
    """A channel between parts, as a source. `part`: the one that sends the rows, whose checkpoint is at
    `url`."""

    replayable = True

    def __init__(self, channel: str, part: str, url: str) -> None:
        self.channel, self.part, self._url = channel, part, url
        self._columns: pa.Schema | None = None

    @property
    def schema(self) -> str:
        return frame_ddl(self._known_columns)

    def learn(self, columns: pa.Schema) -> None:
        self._columns = columns

    def reader(self, notes: Sequence[Json]) -> ChannelReader:
        return ChannelReader(self.channel, self.part, self._url, self._known_columns)

    @property
    def _known_columns(self) -> pa.Schema:
        assert self._columns is not None, (
            f"the columns of channel {self.channel!r} are known once it is typed"
        )
        return self._columns


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """How far a channel was read: all epochs up to `epoch`, and `files` of the next. `content` names what is
    in these; empty: there are none, or it was read before this was kept."""

    epoch: int = 0
    files: int = 0
    content: str = field(default="", compare=False)

    @classmethod
    def of(cls, stored: Json) -> Position:
        return cls() if stored is None else cls(*stored)

    @property
    def stored(self) -> Json:
        return [self.epoch, self.files, self.content] if self.content else [self.epoch, self.files]

    @property
    def newest(self) -> int:
        """The newest epoch that anything was read of."""
        return self.epoch + (1 if self.files else 0)

    def __str__(self) -> str:
        return f"epoch {self.epoch}" + (f" and {self.files} files of the next" if self.files else "")


class OpenChannel:
    """An open channel, on the driver of what reads it. `sender`: whose channel it is, for a person."""

    remedy = ChannelRows.remedy
    """What to do where the rows do not fit the columns."""

    def __init__(self, channel: str, sender: str, url: str, columns: pa.Schema) -> None:
        self._channel, self.sender, self._columns = channel, sender, columns
        self._as_spark: pa.Schema | None = None
        self._history = History(open_storage(url))
        self._newest = NewestCommit(self._history, SystemClock(), LIST_SECONDS)
        self._view = EMPTY
        self._looked = False
        self._sent: deque[tuple[int, int, int]] = deque(maxlen=SENT_MAX)
        """After which epoch, up to which, and when the sender planned them: as commits were seen here."""

    def exhausted(self, after: Json | None) -> bool:
        channel = self._look()
        return not self._has_more(Position.of(after), channel) and self._has_ended()

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        rows, ddl = self._rows(slice), frame_ddl(self._columns)
        files = len(rows.payloads)
        return (
            spark.range(0, files, 1, files).mapInArrow(rows, ddl) if files else spark.createDataFrame([], ddl)
        )

    def pieces(self, spark: SparkSession, slice: Slice) -> Pieces:
        rows = self._rows(slice)
        if self._as_spark is None:
            self._as_spark = spark.createDataFrame([], frame_ddl(self._columns)).toArrow().schema
        return Pieces(len(rows.payloads), slice.rows, partial(read_as, self._as_spark, rows))

    def _rows(self, slice: Slice) -> ChannelRows:
        extents = _extents(slice)
        payloads = tuple(Payload(checksum=e.checksum, length=e.length, extent=e) for e in extents)
        return ChannelRows(self._history.storage.url, payloads, self._columns, self._channel, self.remedy)

    def damaged(self, slice: Slice) -> SentFile | None:
        """The first file of a slice that is in the channel and cannot be read; None: there is none."""
        known = {(file.extent.object, file.extent.offset): file for file in self._look().files}
        for name, offset, *_ in slice.detail["files"]:
            file = known.get((name, offset))
            if file is not None and not is_whole(self._history.storage, file):
                return file
        return None

    def replaced(self, slice: Slice) -> int | None:
        """The first epoch of a slice that the sender has computed again since, or is to: its files are in the
        channel no more, and it was not let go. None: there is none."""
        channel = self._look()
        known = {file.extent for file in channel.files}
        gone = (names.number_of(extent.object) or 0 for extent in _extents(slice) if extent not in known)
        return next((epoch for epoch in gone if epoch > channel.released), None)

    def is_there(self, slice: Slice) -> bool:
        """Whether what a slice names can be read, in the channel or not."""
        return all(_can_be_read(self._history.storage, extent) for extent in _extents(slice))

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """When the sender planned the epochs of a slice. What was in the channel when it was opened is not
        known."""
        first, last = Position.of(slice.start).epoch, Position.of(slice.end).newest
        found = [
            Arrived(min(last, through) - max(first, after), clock_ms, clock_ms)
            for after, through, clock_ms in self._sent
            if after < last and through > first
        ]
        return found if sum(piece.share for piece in found) == last - first else []

    def lag(self, after: Json | None) -> int | None:
        # As of now: a drain reads so many rows, and what was committed just before is among them.
        return sum(file.rows for file in unread_files(self._look(), Position.of(after)))

    def waiting(self, after: Json | None) -> Waiting | None:
        if not self._looked:
            return None
        unread = unread_files(self._known(), Position.of(after))
        return Waiting(len(unread), sum(file.extent.length for file in unread))

    def _known(self) -> Channel:
        return self._view.channels.get(self._channel, Channel())

    def _look(self) -> Channel:
        """The channel as of now."""
        if self._newest.is_still(self._view):
            return self._known()
        try:
            if self._has_begun(find_job(self._history.storage)):
                seen, self._view = self._known().through, self._newest.load()
                if self._looked and self._known().through > seen:
                    self._sent.append((seen, self._known().through, self._view.clock_ms))
                self._history.forget_below(self._view.number)
        except CorruptionError as damage:
            # The part before goes back, and what it has sent stays what it was.
            raise RetryableError(f"channel {self._channel!r} cannot be read now: {damage}") from damage
        self._looked = True
        return self._known()

    def _has_more(self, at: Position, channel: Channel) -> bool:
        """Whether something is left to read after a position."""
        return bool(unread_files(channel, at))

    def _has_ended(self) -> bool:
        """Whether the sender has come to its end with the commit that was seen last: a leader that has begun
        since then may read more, and one that has ended since then may have."""
        if not self._view.ended:
            return False
        ending = newest_ending(self._history.storage)
        return ending is not None and ending.ending != "failed" and ending.commit == self._view.number

    def _has_begun(self, job: JobRecord | None) -> bool:
        """Whether there is a checkpoint to read. Called before it is, whenever it has something new."""
        return job is not None

    def _refuse_if_ahead(self, at: Position, channel: Channel) -> None:
        """Refuse to read on after what the channel does not have."""
        if at > Position(channel.through):
            if Plans(self._history.storage).next_attempt(EpochId(at.newest)) > 1:
                raise RetryableError(
                    f"this checkpoint has read channel {self._channel!r} up to {at}, and {self.sender} "
                    f"has lost what came after epoch {channel.through} and computes it again; wait for it"
                )
            raise RestoreError(
                f"this checkpoint has read channel {self._channel!r} up to {at}, and "
                f"{self.sender} has come to epoch {channel.through}: its checkpoint is another or an older "
                "one; restore both from copies of the same time"
            )

    def _refuse_if_other(self, at: Position, channel: Channel) -> None:
        """Refuse to read on in an epoch that is not what it was: its sender has lost it and computed it
        again, cut into other files or from other results."""
        begun = _named(at, channel)
        if at.content and at.content != begun.content:
            raise RestoreError(
                f"this checkpoint has read channel {self._channel!r} up to {at}, and {self.sender} has lost "
                "that epoch since and computed it again with other files: which of its rows were read cannot "
                "be told; go back to a common barrier with `holdfast rewind`, or restore both from copies"
            )


@runtime_checkable
class TimedReader(Protocol):
    """A reader whose rows bring event time along."""

    def time_after(self, slice: Slice) -> int | None:
        """The event time that holds for what comes after a slice, in µs since 1970; None: not known."""


class ChannelReader(OpenChannel):
    """A channel between parts: event time and barriers come with its rows."""

    def __init__(self, channel: str, part: str, url: str, columns: pa.Schema) -> None:
        super().__init__(channel, f"part {part!r}", url, columns)
        self.part = part
        self.holds_at: Callable[[int], bool] = lambda barrier: False
        """Whether nothing behind a barrier is to be read yet."""
        self.asked: tuple[int, int] | None = None
        """The epoch that was asked for last, and the commit of this part that did."""
        self.seeded = False
        """Whether this part began with a savepoint."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        at, channel = Position.of(after), self._look()
        if self.seeded and not self._view.number:
            # The part before begins with the same savepoint, and has not yet.
            return None
        self._refuse_if_gone(at, channel)
        self._refuse_if_ahead(at, channel)
        self._refuse_if_other(at, channel)
        held = [place.epoch for place in self._view.barriers if self.holds_at(place.number)]
        through = min([self._ready_through(at, channel), *held])
        time = channel.time_after(through)
        moved = time is not None and time != channel.time_after(at.epoch)
        # A barrier falls after whole epochs, also after those that have no rows, and so does the end.
        return next_slice(after, channel, through, max_rows, empty=moved or bool(held) or self._view.ended)

    def _ready_through(self, at: Position, channel: Channel) -> int:
        """The newest epoch that may be read after a position."""
        epoch, commit = self.asked or (0, 0)
        if commit > channel.answered and at.newest < epoch:
            return min(epoch - 1, channel.ready_through)
        return channel.ready_through

    def refuse_abandoned(self, after: Json | None) -> None:
        """Refuse to wait for an epoch that the part before has to compute again, and has ended."""
        at, channel = Position.of(after), self._look()
        ready = self._ready_through(at, channel)
        if ready < channel.through and at >= Position(ready) and newest_ending(self._history.storage):
            raise RestoreError(
                f"epoch {ready + 1} of channel {self._channel!r} is damaged, and {self.sender}, which has to "
                "compute it again, has ended; start the whole job again: it does so then"
            )

    def shows(self, barrier: int, after: Json | None, *, exactly: bool) -> bool:
        """Whether a barrier falls at this position, or, unless `exactly`, before it."""
        place = next((each for each in self._view.barriers if each.number == barrier), None)
        # What has come to its end shows every barrier there.
        if place is None and not self._has_ended():
            return False
        falls = place.epoch if place is not None else self._known().through
        return Position.of(after) == Position(falls) or (not exactly and Position.of(after) > Position(falls))

    def time_after(self, slice: Slice) -> int | None:
        found: int | None = slice.detail["time_us"]
        return found

    def _has_more(self, at: Position, channel: Channel) -> bool:
        return at < Position(channel.through)

    def _refuse_if_gone(self, at: Position, channel: Channel) -> None:
        if at.epoch < channel.released:
            raise InputVanished(
                f"channel {self._channel!r} has let go of epochs up to {channel.released}, and this "
                f"checkpoint has read it up to epoch {at.epoch}: it is older than what {self.sender} "
                "was told, or the job was without the channel for a while; restore a newer copy of it, go "
                "back with the whole job to a common barrier, or give the channel another uid: it then "
                "begins with what is sent from there on, without the epochs between"
            )


def next_slice(
    after: Json | None, channel: Channel, through: int, max_rows: int | None, *, empty: bool = False
) -> Slice | None:
    """What follows a position in a channel, up to the end of epoch `through`; None: nothing does. `empty`:
    epochs without rows are read on their own."""
    at = Position.of(after)
    unread = [file for file in unread_files(channel, at) if file.epoch <= through]
    if not unread:
        end = Position(through)
        return _slice(after, end, [], channel.time_after(through)) if empty and end > at else None
    taken = _fitting(unread, max_rows)
    end = _end(at, taken, unread[len(taken) :], through)
    return _slice(after, _named(end, channel), taken, channel.time_after(end.epoch))


def is_whole(storage: Storage, file: SentFile) -> bool:
    """Whether a file of a channel can be read."""
    return _can_be_read(storage, file.extent)


def _can_be_read(storage: Storage, extent: Extent) -> bool:
    try:
        read_extent(storage, extent)
    except (CorruptionError, ObjectMissing):
        return False
    return True


def _extents(slice: Slice) -> list[Extent]:
    return [Extent(object=o, offset=f, length=n, checksum=c) for o, f, n, c in slice.detail["files"]]


def unread_files(channel: Channel, at: Position) -> list[SentFile]:
    """What is in a channel after a position, in order."""
    begun = [file for file in channel.files if file.epoch == at.epoch + 1]
    return [*begun[at.files :], *(file for file in channel.files if file.epoch > at.epoch + 1)]


def _fitting(unread: list[SentFile], max_rows: int | None) -> list[SentFile]:
    """The first files that have no more rows together; one in any case."""
    rows, count = 0, 0
    for file in unread:
        rows += file.rows
        if count and max_rows is not None and rows > max_rows:
            break
        count += 1
    return unread[:count]


def _end(at: Position, taken: list[SentFile], left: list[SentFile], through: int) -> Position:
    if not left:
        return Position(through)
    following = left[0].epoch
    if taken[-1].epoch < following:
        # Epochs without rows in between are read with it.
        return Position(following - 1)
    of_last = sum(file.epoch == following for file in taken)
    before = at.files if at.epoch + 1 == following else 0
    return Position(following - 1, before + of_last)


def _named(at: Position, channel: Channel) -> Position:
    """A position with the content of the files that were read of an epoch that is not read whole."""
    begun = [file.extent.checksum for file in channel.files if file.epoch == at.epoch + 1][: at.files]
    return replace(at, content=checksum(" ".join(begun).encode()) if begun else "")


def _slice(after: Json | None, end: Position, files: list[SentFile], time_us: int | None) -> Slice:
    named = [[f.extent.object, f.extent.offset, f.extent.length, f.extent.checksum] for f in files]
    return Slice(
        after,
        end.stored,
        sum(file.rows for file in files),
        {"files": named, "time_us": time_us},
    )
