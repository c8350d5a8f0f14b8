"""A damaged epoch of a channel is computed again by the part that sent it.

    the reader finds damage -> its commit *asks* for the epoch -> the sender, which reads these commits, goes
    back before it and computes it again -> the reader goes on

Always true: an epoch is replaced only while no commit of its reader has read any of it. The request is a
commit of the reader, so that no commit of an older leader of it can follow; from there on the reader takes
nothing of the epoch until a commit of the sender has answered. Both sides thus decide by their own chains
alone, on whatever nodes they run. Other channels, and other epochs of this one, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.checkpoint.chain.channels import Channel, answering
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import ChannelState
from holdfast.errors import RestoreError
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.parts.channel_source import Position, is_whole
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked, Request


@dataclass
class Asking:
    """What one run has asked for: of each channel the files that it found damaged."""

    files: set[tuple[str, str]] = field(default_factory=set)

    def ask(
        self, context: LeaderContext, damage: EpochDamaged, led: CheckpointView, replayed_through: int,
        shards: int,
    ) -> CheckpointView:  # fmt: skip
        """Commit that this part asks for an epoch, and give the view to go on from.

        `led`: the newest commit of what was led until now, with so many shards. `replayed_through`: up to
        there epochs may not read other rows. RestoreError: rows that are others than those that were damaged
        could do harm, or the sender has none to give.
        """
        file, newest = damage.file, context.recovery.load()
        if newest.number != led.number:
            # An older leader committed until we took its place: perhaps what we could not read.
            return newest
        _refuse_if_read(damage, newest, replayed_through)
        if (file.channel, file.extent.object) in self.files:
            raise RestoreError(
                f"{damage}, and part {damage.sender!r}, which was asked for it, has no retained commit from "
                "which it could compute it again; restore the file from a copy and start again, begin again "
                "with a savepoint of the whole job, or give up what this part was going to read with "
                f"`holdfast skip --epoch {damage.planned} --checkpoint {context.checkpoint.storage.url}`"
            )
        context.monitor.say(f"DAMAGE: {damage}; part {damage.sender!r} is asked to compute it again")
        view = _committed(context, newest, asks={file.channel: file.epoch}, shards=shards)
        if view.asked.get(file.channel) == (file.epoch, view.number):
            self.files.add((file.channel, file.extent.object))
        return view


def answer(context: LeaderContext, asked: EpochsAsked) -> CheckpointView:
    """See to the first request that is still open, and give the view to go on from: after going back before
    the epoch, if it is damaged and can be computed again."""
    view = context.recovery.load()
    for request in asked.requests:
        channel = view.channels.get(request.channel, Channel())
        if channel.answered < request.commit:
            return _answered(context, view, channel, request)
    return view


def _answered(
    context: LeaderContext, view: CheckpointView, channel: Channel, request: Request
) -> CheckpointView:
    of_epoch = f"epoch {request.epoch} of channel {request.channel!r}"
    files = [file for file in channel.files if file.epoch == request.epoch]
    states = answering(view.channels, request.channel, request.commit)
    if request.epoch in channel.lost or all(is_whole(context.checkpoint.storage, file) for file in files):
        return _committed(context, view, channels=states)
    context.monitor.say(f"DAMAGE: {of_epoch} is damaged, and part {request.part!r} has not read it")
    target = None if view.uncoordinated else context.recovery.before_epoch(view, request.epoch)
    if target is None:
        why = "no retained commit before it verifies, or the rows of state that is in no file were let go"
        if view.uncoordinated:
            why = "keys that are saved on their own cannot be gone back with"
        context.monitor.say(f"DAMAGE: {of_epoch} cannot be computed again: {why}")
        return _committed(context, view, channels=states)
    lost = answering(view.channels, request.channel, request.commit, (request.epoch,))
    return context.recovery.compute_again(view, target, lost)


def _refuse_if_read(damage: EpochDamaged, view: CheckpointView, replayed_through: int) -> None:
    """Refuse to ask for an epoch of which something was committed, also before a rewind, or is shown."""
    file = damage.file
    first = damage.planned if damage.begins else view.last_epoch + 1
    at = Position.of(view.positions.get(file.channel))
    if at.newest >= file.epoch or first <= replayed_through:
        raise RestoreError(
            f"{damage}, and this part has committed rows of that epoch, or its sinks show what came of them: "
            f"computed again by part {damage.sender!r} they might be others; restore the file from a copy, "
            "go to a commit after it (`holdfast rewind`), or begin again with a savepoint of the whole job"
        )


def _committed(
    context: LeaderContext,
    view: CheckpointView,
    *,
    asks: dict[str, int] | None = None,
    channels: dict[str, ChannelState] | None = None,
    shards: int = 0,
) -> CheckpointView:
    """The view after a commit that says this and nothing else; where another's came first, that one."""
    record = news(
        view, term=context.term, run=context.run, published_through=view.published_through, asks=asks,
        channels=channels,
    )  # fmt: skip
    record = replace(record, parallelism=view.parallelism or shards)
    # It gives up nothing: which commits are kept beyond the newest is for the next one to say.
    done = context.checkpoint.chain.commit(view, record, keep_from=view.retained_from)
    return done.view if isinstance(done, Committed) else context.recovery.load()
