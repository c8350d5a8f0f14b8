"""A channel of another job, or of a writer, as what reads it from outside sees it; or one between parts.

The sender knows nothing of this reader and does not wait for it.
Always true: only committed epochs are read; what was let go before it was read is an error, never a gap; a
checkpoint that took the place of the one that was read is not read on from. What is computed again is waited
for, also where it was read before.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import refuse_parts
from holdfast.checkpoint.store.records import Extent, JobRecord, Json
from holdfast.connectors.contract import Slice
from holdfast.errors import DefinitionError, InputVanished, RestoreError
from holdfast.runtime.parts.channel_source import OpenChannel, Position, next_slice
from holdfast.storage.checksums import read_extent
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks.task_output import ChannelRows, unpack_rows

REMEDY = "read it with a type that holds the values of both"
_HEADER_BYTES = 64 * 1024
"""As much of a file as is read to learn its columns, unless they need more."""


class DoorReader(OpenChannel):
    """`identity`: of the checkpoint that was read before; empty: none was. `begin_again`: how what reads can
    be told to read from the beginning."""

    remedy = REMEDY

    def __init__(
        self,
        channel: str,
        url: str,
        columns: pa.Schema,
        identity: str = "",
        begin_again: str = "give the source another uid",
    ) -> None:
        place = open_storage(url).url
        super().__init__(channel, f"the sender in {place}", place, columns)
        self.place, self.identity, self._begin_again = place, identity, begin_again

    def held(self) -> Channel:
        """The channel as of now, as far as it is not let go. DefinitionError: there is none of this uid."""
        channel = self._look()
        if self._view.number and self._channel not in self._view.channels:
            has = ", ".join(map(repr, self._view.channels)) or "none"
            raise DefinitionError(
                f"there is no channel {self._channel!r} in {self.place}, its channels are: {has}; name the "
                "uid of a hf.ChannelSink, or the writer"
            )
        return channel

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        channel = self.held()
        begin = Position(channel.released).stored if after is None else after
        if Position.of(begin).epoch < channel.released:
            raise self._let_go(Position.of(begin).epoch, channel.released)
        if self.awaits(Position.of(begin).newest):
            return None
        self._refuse_if_ahead(Position.of(begin), channel)
        self._refuse_if_other(Position.of(begin), channel)
        found = next_slice(begin, channel, channel.through, max_rows)
        if found is None:
            return None
        return replace(found, start=after, notes=(self.identity,) if after is None else ())

    def awaits(self, epoch: int) -> bool:
        """Whether an epoch of those up to this one is computed again, so that nothing after it is ready."""
        known = super()._known()
        return known.ready_through < epoch <= known.through

    def _rows(self, slice: Slice) -> ChannelRows:
        released = self.held().released
        if Position.of(slice.start).epoch < released:
            objects = dict.fromkeys(file[0] for file in slice.detail["files"])
            if any(self._history.storage.size(name) is None for name in objects):
                raise self._let_go(Position.of(slice.start).epoch, released)
        return super()._rows(slice)

    def _let_go(self, after: int, released: int) -> InputVanished:
        return InputVanished(
            f"channel {self._channel!r} in {self.place} has let go of epochs up to {released}, and it was "
            f"read up to epoch {after} only; let the sender keep more epochs, and to go on without those "
            f"that are gone, {self._begin_again}: it begins with the oldest that is held"
        )

    def _known(self) -> Channel:
        # Event time does not cross into other jobs. What is computed again is waited for.
        known = super()._known()
        return replace(known, times=(), through=known.ready_through)

    def _has_begun(self, job: JobRecord | None) -> bool:
        storage = self._history.storage
        if job is None:
            refuse_parts(storage)
            return False
        if self.identity not in ("", job.identity):
            raise RestoreError(
                f"channel {self._channel!r} in {self.place} is of another checkpoint than the one that was "
                f"read so far (of job {job.job!r}, begun since): its epochs have other rows; put the former "
                f"one back, or {self._begin_again} to read this one from its beginning"
            )
        self.identity = job.identity
        return True


def newest_columns(storage: Storage, channel: Channel) -> pa.Schema | None:
    """The columns of the newest rows that a channel holds; None: it holds none."""
    if not len(channel.files):
        return None
    return _columns_of(storage, channel.files[len(channel.files) - 1].extent)


def refuse_other_columns(columns: pa.Schema, newest: pa.Schema, channel: str, place: str) -> None:
    """DefinitionError: rows of the newest columns do not have these. What came since older rows is null."""
    for wanted in columns.names:
        if wanted not in newest.names:
            raise DefinitionError(
                f"channel {channel!r} in {place} has no column {wanted!r}, its columns are "
                f"{', '.join(newest.names)}; correct the schema"
            )
    try:
        ChannelRows(place, (), columns, channel, REMEDY).in_columns(newest.empty_table())
    except RestoreError as refusal:
        raise DefinitionError(str(refusal)) from refusal


def _columns_of(storage: Storage, extent: Extent) -> pa.Schema:
    """Found at the beginning of a file. Its rows are verified when they are read."""
    length = _HEADER_BYTES
    while length < extent.length:
        try:
            return pa.ipc.open_stream(storage.get(extent.object, extent.offset, length)).schema
        except (pa.ArrowException, OSError):
            length *= 16
    return unpack_rows(read_extent(storage, extent), extent.object).schema
