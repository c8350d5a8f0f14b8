"""Negative controls of a job in parts: each takes one safeguard of channels or barriers away, and the
simulation must find that out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.chain import commits, history, retention
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.history import NewestCommit
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.chain.view import CheckpointView, Head, rewound
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, PlanRecord, SentFile
from holdfast.errors import CorruptionError, ObjectMissing, StorageError
from holdfast.runtime.epoch import recorded_plans
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.low_water import LowWater
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.parts import channel_source, edges, epochs_again
from holdfast.runtime.parts.alignment import Alignment
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.runtime.parts.edges import Edges
from holdfast.runtime.parts.outlets import ChannelReading, Outlets
from holdfast.runtime.parts.passage import Passage
from holdfast.runtime.parts.waiting import Waiting
from holdfast.runtime.recovery import Recovery
from holdfast.storage.checksums import checksum
from tests.sim.controls import Control
from tests.sim.leaders import Parts
from tests.sim.parts import part_leaders
from tests.sim.parts.contents import Content
from tests.sim.parts.part_leaders import PartLead, PartOperator
from tests.sim.parts.part_members import MemberLeadOfPart, SameOperator

_ran = LowWater.ran
_look, _look_at, _waiting, _met = ChannelReader._look, ChannelReading.look, Outlets._waiting, Passage._met


def _taken_back(head: Head, to: CheckpointView, *given: Any) -> CheckpointView:
    return replace(rewound(head, to, *given), channels=to.channels)


def _sent_again(self: EpochRunner, stream: str, epoch: int) -> list[str]:
    return self.program.channels_of(stream)


def _released_by(self: ChannelReading, number: Any) -> None:
    """Believe one commit of the reader, in the place of all that it can go back to."""
    before = self.released
    _look_at(self)
    with suppress(CorruptionError, ObjectMissing, StorageError):
        self.released = max(before, self._position(self._history.view_at(number(self._view))).epoch)


def _released_by_the_newest(self: ChannelReading) -> None:
    _released_by(self, lambda view: view.number)


def _released_by_the_oldest(self: ChannelReading) -> None:
    _released_by(self, lambda view: view.given_up_below if view.number else 0)


def _with_what_is_kept(self: Outlets, node: Any, channel: Channel) -> Waiting:
    told, held = _waiting(self, node, channel), len({file.epoch for file in channel.files})
    return replace(told, share=held / node.channel.limit_epochs)


def _unaligned(*given: Any, **named: Any) -> Alignment:
    return Alignment(*given, **{**named, "waits": False})


def _at_once(*given: Any, **named: Any) -> Alignment:
    made = Alignment(*given, **named)
    made._falls_from = 0
    return made


def _whatever_sinks_show(*given: Any, **named: Any) -> Alignment:
    return Alignment(*given, **{**named, "replayed_through": 0})


class _OfThisLeader(Alignment):
    """What a leader before has carried is not the end of this one."""

    _here = 0

    def carry(self, barrier: int) -> None:
        super().carry(barrier)
        self._here = barrier

    @property
    def last(self) -> int:
        return super().last if self._here else 0


def _a_commit_ago(self: Edges, view: CheckpointView) -> int | None:
    now = self._alignment.keep_from(view)
    kept, self._kept = getattr(self, "_kept", now), now  # type: ignore[attr-defined]
    return kept


def _met_once(self: Passage, part: Any) -> Any:
    """The first commit that is seen counts, and stays, whatever the part does later."""
    place = _met(self, part)
    if place is not None and not place.carried:
        self._keep(part, place.commit)
    return place and replace(place, carried=True)


def _ended_once(self: ChannelReader) -> bool:
    return self._view.ended


def _ended_somehow(self: ChannelReader) -> bool:
    return self._view.ended and newest_ending(self._history.storage) is not None


class _ByName(NewestCommit):
    """Reads on from the commit that it knows, one after the other, and lists nothing."""

    _last = 0

    def load(self) -> CheckpointView:
        view, following = None, names.commit(self._last + 1)
        if self._last and self._history.storage.size(following) is not None:
            with suppress(CorruptionError):
                view = self._history.view_at(self._last + 1)
        view = view or super().load()
        self._last = view.number
        return view


def _with_what_is_written(self: ChannelReader) -> Channel:
    """Take the rows of the next epoch as soon as they are there."""
    channel, storage = _look(self), self._history.storage
    epoch = channel.through + 1
    for entry in storage.list(names.data_of(epoch)):
        data = storage.get(entry.name)
        rows = Content.of(data).sent
        if rows[1] > rows[0]:
            extent = Extent(object=entry.name, offset=0, length=len(data), checksum=checksum(data))
            file = SentFile(channel=self._channel, epoch=epoch, part=0, extent=extent, rows=rows[1] - rows[0])
            return replace(channel, through=epoch, files=channel.files.appended([file]))
    return channel


def _refused(self: Planner, uid: str, max_rows: int, now_ms: int, parent: int) -> Any:
    return self.readers[uid].next(self.positions[uid], max_rows, now_ms)


def _ready_at_once(self: ChannelReader, at: Any, channel: Channel) -> int:
    return channel.ready_through


def _promises_taken_back(head: Head, to: CheckpointView, *given: Any) -> CheckpointView:
    return replace(rewound(head, to, *given), asked=to.asked)


_room = Edges.room


def _room_as_usual(self: Edges, channels: Any, epoch: int) -> float:
    """Wait for room also where the reader waits for what is to be computed."""
    return _room(self, {uid: replace(channel, lost=()) for uid, channel in channels.items()}, epoch)


class _SilentAtTheEnd(Committer):
    def record_published(self, ended: bool = False) -> None:
        super().record_published(ended and bool(self._outlets.nodes))


def _an_epoch_too_late(self: LowWater, plan: PlanRecord, expires_us: int | None) -> int:
    return min(_ran(self, plan, expires_us) + 1, plan.epoch + 1)


def _let_go_by_the_newest(history: Any, view: CheckpointView, oldest: int) -> int:
    return max(oldest, 1)


def _with_what_is_left(context: Any, view: CheckpointView) -> CheckpointView:
    return view


def _staged_again(self: EpochRunner, stream: str, epoch: int) -> tuple[str, ...]:
    return tuple(self.program.sinks_of(stream))


def _before_it(self: Recovery, view: CheckpointView, epoch: int) -> CheckpointView | None:
    """Go back to any commit before an epoch, also where state is in no file."""
    return history.newest_intact(self._chain, view.head, lambda older: older.last_epoch < epoch)


class _ShowsAgain(Committer):
    def publish_recovered(self) -> None:
        super().publish_recovered()
        self._queues.await_end(lambda: None)
        self._queues._at_end = False
        shown, last = self._publishing.through, self.view.last_epoch
        self._publishing.through = {uid: min(epoch, last) for uid, epoch in shown.items()}
        for uid, queue in self._queues._queues.items():
            queue.given = self._publishing.through[uid]


CONTROLS: dict[str, Control] = {
    "channels-taken-back-by-a-rewind": Control(
        "channel", instead=((commits, "rewound", _taken_back), (history, "rewound", _taken_back))
    ),
    "sent-again-when-computed-again": Control(
        "in channel", instead=((EpochRunner, "_channels_of", _sent_again),)
    ),
    "released-by-the-newest-commit": Control(
        "can go back to", instead=((ChannelReading, "look", _released_by_the_newest),)
    ),
    "released-by-the-oldest-commit": Control(
        "can go back to", instead=((ChannelReading, "look", _released_by_the_oldest),), season="rewinds"
    ),
    "released-files-not-deleted": Control(
        "is released and given up, but there", instead=((retention, "retire", lambda *given: []),)
    ),
    "room-without-what-is-kept": Control(
        "does not come to its end", instead=((Outlets, "_waiting", _with_what_is_kept),)
    ),
    "no-holding-at-a-barrier": Control("no consistent cut", instead=((edges, "Alignment", _unaligned),)),
    "barrier-where-a-part-computes-again": Control(
        "never comes to it", instead=((edges, "Alignment", _at_once),), season="rewinds"
    ),
    "barrier-before-what-sinks-show": Control(
        "its sink shows", instead=((edges, "Alignment", _whatever_sinks_show),), season="stops"
    ),
    "commits-of-barriers-given-up": Control(
        "of the whole job is in commit", instead=((Alignment, "keep_from", lambda self, view: None),)
    ),
    "kept-by-what-was-committed-a-commit-ago": Control(
        "of the whole job is in commit",
        instead=((Edges, "keep_from", _a_commit_ago),),
        season="savepoints",
    ),
    "stop-forgotten-by-the-next-leader": Control(
        "it has gone on", instead=((edges, "Alignment", _OfThisLeader),), season="stops"
    ),
    "cut-not-looked-at": Control(
        "no consistent cut",
        instead=((Passage, "_torn", lambda self: []), (Passage, "_met", _met_once)),
        season="ends",
    ),
    "ended-for-good": Control("taken for ended", instead=((ChannelReader, "_has_ended", _ended_once),)),
    "ended-by-another-leader": Control(
        "taken for ended", instead=((ChannelReader, "_has_ended", _ended_somehow),), season="ends"
    ),
    "end-of-the-last-part-not-told": Control("no", Parts(committer=_SilentAtTheEnd), season="ends"),
    "commits-not-listed": Control("", instead=((channel_source, "NewestCommit", _ByName),), season="ghosts"),
    "uncommitted-epoch-read": Control("", instead=((ChannelReader, "_look", _with_what_is_written),)),
    "replaced-though-it-was-read": Control(
        "",
        instead=((epochs_again, "_refuse_if_read", lambda *given: None),),
        season="damage",
    ),
    "replaced-though-a-rewind-has-read-it": Control(
        "",
        instead=((part_leaders, "replayed_through", lambda *given: 0),),
        season="damage",
    ),
    "asked-epoch-read-before-the-answer": Control(
        "", instead=((ChannelReader, "_ready_through", _ready_at_once),), season="damage"
    ),
    "request-taken-back-by-a-rewind": Control(
        "",
        instead=((commits, "rewound", _promises_taken_back), (history, "rewound", _promises_taken_back)),
        season="repairs",
    ),
    "plans-of-damaged-epochs-followed": Control(
        "", instead=((recorded_plans, "_reads_asked", lambda *given: False),), season="damage"
    ),
    "lost-epoch-passed-over": Control(
        "", instead=((Channel, "ready_through", property(lambda self: self.through)),), season="damage"
    ),
    "lost-epoch-not-sent": Control(
        "into channel",
        instead=((Channel, "covers", lambda self, epoch: epoch <= self.through),),
        season="damage",
    ),
    "no-room-for-a-lost-epoch": Control(
        "does not come to its end", instead=((Edges, "room", _room_as_usual),), season="damage"
    ),
    "low-water-position-too-late": Control(
        "", instead=((LowWater, "ran", _an_epoch_too_late),), season="replays"
    ),
    "rows-of-open-windows-let-go": Control(
        "were let go", instead=((commits, "keep_for", _let_go_by_the_newest),), season="replays"
    ),
    "state-in-no-file-taken-for-empty": Control(
        "", instead=((part_leaders, "gone_back", _with_what_is_left),), season="replays"
    ),
    "shown-again-by-the-replay": Control(
        "the sink",
        Parts(committer=_ShowsAgain),
        instead=((EpochRunner, "_sinks_of", _staged_again),),
        season="replays",
    ),
    "sent-again-by-the-replay": Control(
        "in channel", instead=((EpochRunner, "_channels_of", _sent_again),), season="replays"
    ),
    "epoch-computed-again-without-its-state": Control(
        "", instead=((Recovery, "before_epoch", _before_it),), season="damaged-replays"
    ),
    "gap-of-a-channel-not-told": Control(
        "loses or doubles rows",
        instead=((Outlets, "_new_channel", lambda self, uid, since: Channel()),),
        season="removals",
    ),
    "channels-taken-back-by-a-rewind-of-a-set": Control(
        "channel",
        instead=((commits, "rewound", _taken_back), (history, "rewound", _taken_back)),
        season="replicas",
    ),
    "sent-again-by-a-set": Control(
        "in channel", instead=((EpochRunner, "_channels_of", _sent_again),), season="replicas"
    ),
    "released-by-the-newest-commit-of-a-set": Control(
        "can go back to", instead=((ChannelReading, "look", _released_by_the_newest),), season="replicas"
    ),
    "shown-rows-not-staged-by-a-member": Control(
        "has come to other results",
        instead=((MemberLeadOfPart, "shown_through", PartLead.shown_through),),
        season="replicas",
    ),
    "results-of-members-named-by-their-files": Control(
        # Or, of a set that votes, that it never comes to its end.
        "",
        instead=((SameOperator, "_version", PartOperator._version),),
        season="replicas",
    ),
    "refused-what-the-leader-before-has-read": Control(
        "though it is the newest", instead=((Planner, "_slice", _refused),), season="ghosts"
    ),
}
