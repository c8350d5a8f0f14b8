"""The channels that leave a part: what its commits have put into them.

A channel has no files of its own. Epoch E is in it as soon as a commit covers E, and stays there until the
part that reads it has given up every checkpoint from which it could read E again. A channel whose readers are
not known keeps its newest epochs, as many as it says.
Always true: a channel only grows at one end and shrinks at the other. A rewind changes nothing of it: the
first commit that covers an epoch says what is in the channel, whatever is computed again later. But for
epochs whose rows are damaged and that its reader, which has committed nothing of them, asks for: these are
*lost*, and what is computed again takes their place. Nothing from the first of them on is read until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.store.records import ChannelState, CommitRecord, SentFile


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One channel after some commit."""

    through: int = 0
    """The newest epoch that is in it."""
    released: int = 0
    """The epoch up to which its reader needs it no more, or it is let go unread."""
    kept: int = 0
    """How many of its newest epochs are kept, for readers that are not known; 0: it has one reader."""
    times: tuple[tuple[int, int], ...] = ()
    """Epochs after which event time is another one, with that time; the first may be a released one."""
    files: SharedList[SentFile] = field(default_factory=SharedList)
    """What is not released, in the order of its epochs."""
    lost: tuple[int, ...] = ()
    """Epochs up to `through` that have to be computed again, in order: their rows are damaged."""
    answered: int = 0
    """The newest commit of its reader whose request for an epoch was seen to."""

    @property
    def ready_through(self) -> int:
        """The newest epoch that can be read, with all before it."""
        return min([self.through, *(epoch - 1 for epoch in self.lost)])

    def covers(self, epoch: int) -> bool:
        """Whether what is in it of an epoch stays as it is, whatever is computed again."""
        return epoch <= self.through and epoch not in self.lost

    def time_after(self, epoch: int) -> int | None:
        """The event time of the rows after an epoch, in µs since 1970; None: not known."""
        known = [at_us for since, at_us in self.times if since <= epoch]
        return known[-1] if known else None

    def after(self, state: ChannelState, sent: Iterable[SentFile], computed: int = 0) -> Channel:
        """The channel after a commit with this news of it. `computed`: none of the epochs up to this one has
        to be computed again any more."""
        released = max(self.released, state.released)
        times = (*self.times, *state.times)
        # The last of those that are released still holds for what comes after it.
        over = sum(since <= released for since, _ in times)
        lost = sorted({*self.lost, *state.lost})
        files, count = _with_sent(self.files, state.lost, list(sent)), 0
        while count < len(files) and files[count].epoch <= released:
            count += 1
        return replace(
            self,
            through=max(self.through, state.through),
            released=released,
            kept=state.kept,
            times=times[max(0, over - 1) :],
            files=files.without_first(count),
            lost=tuple(epoch for epoch in lost if epoch > max(computed, released)),
            answered=max(self.answered, state.answered),
        )


Channels = Mapping[str, Channel]
"""Channel uid -> the channel."""


def fold_channels(channels: Channels, record: CommitRecord) -> Channels:
    """The channels after a commit. One that the record does not name any more is gone."""
    if record.channels is None:
        return channels
    # A rewind computes nothing: where it comes to lies before what is lost.
    computed = record.last_epoch if record.rewind_to is None else 0
    return {
        uid: channels.get(uid, Channel()).after(state, _of(uid, record.sent), computed)
        for uid, state in record.channels.items()
    }


def from_states(states: Mapping[str, ChannelState], sent: Iterable[SentFile]) -> Channels:
    """The inverse of `to_states`."""
    sent = tuple(sent)
    return {uid: Channel().after(state, _of(uid, sent)) for uid, state in states.items()}


def to_states(channels: Channels) -> tuple[dict[str, ChannelState], tuple[SentFile, ...]]:
    """The channels as a manifest holds them."""
    states = {
        uid: ChannelState(
            through=channel.through,
            released=channel.released,
            times=channel.times,
            kept=channel.kept,
            lost=channel.lost,
            answered=channel.answered,
        )
        for uid, channel in channels.items()
    }
    return states, tuple(file for channel in channels.values() for file in channel.files)


def answering(
    channels: Channels, uid: str, commit: int, lost: tuple[int, ...] = ()
) -> dict[str, ChannelState]:
    """The news of all channels where what commit `commit` of a reader asks of one of them is seen to. `lost`:
    epochs that are computed again for that."""
    states = {
        each: ChannelState(through=channel.through, released=channel.released, kept=channel.kept)
        for each, channel in channels.items()
    }
    return {**states, uid: msgspec.structs.replace(states[uid], lost=lost, answered=commit)}


def _with_sent(
    files: SharedList[SentFile], lost: Collection[int], sent: Sequence[SentFile]
) -> SharedList[SentFile]:
    """Files without those of epochs that are lost, and with those that were sent, in the order of epochs."""
    if lost:
        files = SharedList(file for file in files if file.epoch not in lost)
    if sent and files and sent[0].epoch < files[-1].epoch:
        return SharedList(sorted([*files, *sent], key=lambda file: file.epoch))
    return files.appended(sent)


def _of(uid: str, sent: Iterable[SentFile]) -> list[SentFile]:
    return sorted((file for file in sent if file.channel == uid), key=lambda file: (file.epoch, file.part))
