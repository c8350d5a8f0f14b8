"""The channels that leave a part, as its leader sees them: how far they are read, and when they are full.

The part that reads a channel tells nothing: its commits are read. What it has read and committed is waited
for no more; what it could go back to is kept (`released`).
Always true: what waits to be read is counted after the reader's newest commit, never what is kept for going
back: a reader that commits nothing without input would wait for ever. A channel whose readers are not known
is never full: it keeps its newest epochs, and lets go of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.checkpoint.chain.channels import Channel, Channels
from holdfast.checkpoint.chain.checkpoint import find_job
from holdfast.checkpoint.chain.history import History, NewestCommit
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import ChannelState
from holdfast.clock import Clock
from holdfast.connectors.contract import Mark
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError, StorageError
from holdfast.graph.job_graph import DoorNode, OutletNode
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.parts.channel_source import Position
from holdfast.runtime.parts.damaged_epochs import Request
from holdfast.runtime.parts.waiting import Waiting, waiting_in
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.5
LIST_SECONDS = 5.0


class ChannelReading:
    """What the part after a channel has read of it, by its checkpoint."""

    def __init__(self, node: OutletNode, clock: Clock) -> None:
        self.uid, self.part = node.uid, node.channel.part.name
        self._history = History(open_storage(node.reader))
        self._newest, self._clock = NewestCommit(self._history, clock, LIST_SECONDS), clock
        self._view = EMPTY
        self.position = Position()
        """Of its newest commit."""
        self.released = 0
        """The newest epoch that none of its checkpoints can read again."""
        self.has_read = False
        """Whether it had read anything of a channel of this uid, or planned to, when that was last asked."""

    def look(self) -> None:
        """Read its newest commits. What cannot be read now stays as it was, which is safe."""
        with suppress(ObjectMissing, StorageError):
            try:
                if find_job(self._history.storage) is None or self._newest.is_still(self._view):
                    return
                self._read()
            except CorruptionError:
                # What was known may be of another copy than what is there now.
                self._history = History(self._history.storage)
                self._newest = NewestCommit(self._history, self._clock, LIST_SECONDS)

    def _read(self) -> None:
        view = self._newest.load()
        # Whatever becomes of the rest: a reader that has caught up is waited for no more.
        self._view, self.position = view, self._position(view)
        # Of all that it can go back to: one that is a rewind has read less than those before it.
        kept = map(self._history.view_at, range(view.given_up_below, view.number + 1))
        furthest_back = min(map(self._position, kept), default=Position())
        self.released = max(self.released, furthest_back.epoch)
        self._history.forget_below(view.given_up_below)

    def seen(self) -> int:
        """The newest epoch that it has read anything of, or is going to by its plans: by these alone where
        its commits cannot be read, since what a commit of it has read a plan of it has named. StorageError:
        it cannot be told now."""
        self.look()
        seen, storage = self.position, self._history.storage
        plans = Plans(storage)
        for entry in storage.list(names.PLANS):
            if (names.number_of(entry.name) or 0) <= self._view.last_epoch:
                continue
            # One that cannot be read is not followed, or is gone.
            with suppress(CorruptionError, ObjectMissing):
                part = plans.named(entry.name).slices.get(self.uid)
                seen = max(seen, Position.of(part.end if part is not None else None))
        self.has_read = seen > Position()
        return seen.newest

    def request(self, channel: Channel) -> Request | None:
        """The epoch that it asks for, found damaged, and was given no answer to; None: there is none."""
        epoch, commit = self._view.asked.get(self.uid, (0, 0))
        # One that has read on, by a person's decision, needs it no more.
        is_open = commit > channel.answered and self.position.newest < epoch <= channel.through
        return Request(self.uid, self.part, epoch, commit) if is_open else None

    def _position(self, view: CheckpointView) -> Position:
        return Position.of(view.positions.get(self.uid))


@dataclass
class Outlets:
    """The channels that leave one part. `look` and `waiting` by the leading thread, `states` by the
    committing one."""

    nodes: tuple[OutletNode | DoorNode, ...]
    clock: Clock
    _readings: dict[str, ChannelReading] = field(init=False)
    _looked: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._readings = {node.uid: ChannelReading(node, self.clock) for node in self._read_by_parts}

    @property
    def _read_by_parts(self) -> list[OutletNode]:
        return [node for node in self.nodes if isinstance(node, OutletNode)]

    def marks(self) -> dict[str, Mark]:
        """What was seen of each channel: these epochs are replayed as they were."""
        return {uid: Mark(reading.seen()) for uid, reading in self._readings.items()}

    def look(self) -> None:
        """See how far the channels are read, now and then."""
        now = self.clock.monotonic()
        if self._looked is None or now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for reading in self._readings.values():
                reading.look()

    def requests(self, channels: Channels) -> list[Request]:
        """What the parts after ask for, as of the last look."""
        found = (reading.request(channels.get(uid, Channel())) for uid, reading in self._readings.items())
        return [request for request in found if request is not None]

    def waiting(self, channels: Channels) -> list[Waiting]:
        """What waits in each channel."""
        return [self._waiting(node, channels.get(node.uid, Channel())) for node in self._read_by_parts]

    def _waiting(self, node: OutletNode, channel: Channel) -> Waiting:
        reading, limits = self._readings[node.uid], (node.channel.limit_bytes, node.channel.limit_epochs)
        return waiting_in(node.uid, channel, reading.part, reading.position, limits)

    def states(
        self, channels: Channels, outcomes: Iterable[EpochOutcome] = (), through: int = 0, since: int = 0
    ) -> dict[str, ChannelState] | None:
        """How far the channels are after some epochs, which come after epoch `since`; None: there are none,
        and were none."""
        if not self.nodes and not channels:
            return None
        found = {}
        for node in self.nodes:
            if isinstance(node, DoorNode):
                channel = channels.get(node.uid) or new_door(since)
                found[node.uid] = door_state(channel, max(since, through), node.sink.keep_epochs)
            else:
                channel = channels.get(node.uid) or self._new_channel(node.uid, since)
                found[node.uid] = self._state(node.uid, channel, list(outcomes), max(since, through))
        return found

    def _new_channel(self, uid: str, since: int) -> Channel:
        """A channel that has nothing of the epochs up to `since`; a barrier may fall there. Its reader may
        have read one of that uid which the job had before: that one is told that they are gone, instead of
        reading on as if they had no rows."""
        return Channel(released=since if self._readings[uid].has_read else 0)

    def _state(self, uid: str, channel: Channel, outcomes: list[EpochOutcome], through: int) -> ChannelState:
        known = channel.times[-1][1] if channel.times else None
        times = []
        for outcome in outcomes:
            mark = outcome.plan.watermarks.get(uid)
            now_us = mark.now_us if mark is not None else None
            if outcome.plan.epoch > channel.through and now_us not in (None, known):
                assert now_us is not None
                times.append((outcome.plan.epoch, now_us))
                known = now_us
        return ChannelState(
            through=max(channel.through, through),
            released=max(channel.released, self._readings[uid].released),
            times=tuple(times),
        )


def new_door(since: int) -> Channel:
    """A channel whose readers are not known, and that begins after epoch `since`: what came before is not in
    it, though a former channel of that uid may have had it."""
    return Channel(through=since, released=since)


def door_state(channel: Channel, through: int, kept: int) -> ChannelState:
    """How far a channel is whose readers are not known, after epoch `through`."""
    through = max(channel.through, through)
    return ChannelState(through=through, released=max(channel.released, through - kept), kept=kept)


def refuse_unread(
    channels: Mapping[str, Channel],
    nodes: Iterable[OutletNode | DoorNode],
    url: str,
    allow_dropped_state: bool = False,
) -> None:
    """Refuse to leave rows behind that a part has not read from a channel which the job does not have now,
    and, unless they may be dropped, those that other jobs may read."""
    known = {node.uid for node in nodes}
    for uid, channel in channels.items():
        rows = sum(file.rows for file in channel.files)
        if uid in known or not (rows or channel.lost):
            continue
        if channel.kept and not allow_dropped_state:
            raise RestoreError(
                f"channel {uid!r} holds {rows} rows that other jobs may read, and the job no longer has it: "
                "they would be dropped; keep its sink, or give them up with --allow-dropped-state"
            )
        if not channel.kept:
            raise RestoreError(
                f"channel {uid!r} holds {rows} rows that its part may still read, and the job no longer has "
                "it; start the former job until they are read, or give them up with "
                f"`holdfast channels remove {uid} --app FILE --checkpoint {url}`"
            )
