"""Where a part meets the others: room in the channels that leave it, and barriers of the whole job.

A job that is not in parts has no such edges: there is always room, and no barrier ever falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from holdfast.checkpoint.chain.barriers import BARRIERS_RETAINED
from holdfast.checkpoint.chain.channels import Channels
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.terms import first_claimed_after
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.connectors.contract import Json, SourceReader
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.graph.guarantees import Guarantee
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.parts.alignment import Alignment
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.runtime.parts.coordinator import coordinator_of
from holdfast.runtime.parts.damaged_epochs import EpochsAsked
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.parts.waiting import Waiting


class Edges:
    """Those of one part, for as long as it is led from one view. Of the leading thread."""

    def __init__(
        self,
        context: LeaderContext,
        view: CheckpointView,
        outlets: Outlets,
        readers: Mapping[str, SourceReader],
        replayed_through: int,
    ) -> None:
        """`replayed_through`: up to this epoch what sinks or other parts may know is read again as it was."""
        settings, graph = context.settings, context.program.graph
        self._outlets, self._monitor = outlets, context.monitor
        self._alignment = Alignment(
            context.root, view, readers, context.clock,
            waits=settings.guarantee is Guarantee.EXACTLY_ONCE,
            keeps=BARRIERS_RETAINED if settings.barrier_interval else 0,
            begun_again_ms=partial(_begun_again_ms, context.checkpoint.chain, view),
            part=graph.name if graph.whole is None else graph.name.removeprefix(f"{graph.whole.name}."),
            replayed_through=replayed_through,
        )  # fmt: skip
        self._says_unseen = False
        self._coordinator = coordinator_of(context)
        self._inlets = {uid: each for uid, each in readers.items() if isinstance(each, ChannelReader)}
        for uid, inlet in self._inlets.items():
            inlet.asked = view.asked.get(uid)
            inlet.seeded = bool(context.checkpoint.job.seeded_from)

    def keep_from(self, view: CheckpointView) -> int | None:
        """The oldest commit that is kept for a barrier; None: none is. From any thread."""
        return self._alignment.keep_from(view)

    def barrier(self, positions: Mapping[str, Json], epoch: int) -> int:
        """The barrier that the next commit, after `epoch`, is to carry; 0: none."""
        if self._coordinator is not None:
            self._coordinator.step()
        barrier = self._alignment.next(positions, epoch)
        if self._alignment.unseen and not self._says_unseen:
            self._says_unseen = True
            self._monitor.say(
                f"WAITING for the storage of the whole job: {self._alignment.unseen}; nothing is read before "
                "it is known whether the job stops here, and it is tried again until then"
            )
        if barrier:
            self._alignment.carry(barrier)
        return barrier

    def missed(self, barrier: int) -> None:
        """The commit that was to carry a barrier does not: another member of the set wrote it, or nobody."""
        self._alignment.carry(barrier - 1)

    @property
    def last_barrier(self) -> int:
        """The barrier whose commit is to be the last of the run, whoever led when it was written; 0: none."""
        return self._alignment.last

    def refuse_abandoned(self, positions: Mapping[str, Json]) -> None:
        """Refuse to wait for what no part is left to compute again."""
        for uid, inlet in self._inlets.items():
            inlet.refuse_abandoned(positions[uid])

    def room(self, channels: Channels, epoch: int) -> float:
        """How much of the epoch after `epoch` the channels have room for: less when they are more than half
        full; none before it is known whether the job stops at a barrier that is carried. EpochsAsked: a part
        after asks for an epoch that it found damaged."""
        if not self._alignment.has_looked:
            return 0.0
        if not self._outlets.nodes:
            return 1.0
        self._outlets.look()
        if requests := self._outlets.requests(channels):
            raise EpochsAsked(requests)
        waiting = self._outlets.waiting(channels)
        self._tell(waiting)
        if any(lost > epoch for channel in channels.values() for lost in channel.lost):
            # The reader waits for what is computed again, so there is no more room before it is.
            return 1.0
        return max(0.0, min(1.0, 2.0 * (1.0 - max((each.share for each in waiting), default=0.0))))

    def _tell(self, waiting: list[Waiting]) -> None:
        shown = self._monitor.progress.channels
        told = {each.channel: each.told for each in waiting}
        if told == shown:
            return
        for each in waiting:
            if each.full and not shown.get(each.channel, {}).get("full", False):
                self._monitor.say(
                    f"FULL: channel {each.channel!r} holds {each.rows} rows that part {each.part!r} has not "
                    "read; waiting for it"
                )
        self._monitor.update(channels=told)


def _begun_again_ms(chain: Chain, view: CheckpointView, barrier: int) -> int | None:
    """When the first leader began after the one that carried a barrier, by its own clock. None: not known."""
    with suppress(CorruptionError, ObjectMissing):
        for place in view.barriers:
            if place.number == barrier:
                return first_claimed_after(chain.storage, chain.record(place.commit).term)
    return None
