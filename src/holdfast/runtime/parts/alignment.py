"""Barriers of the whole job, as one part meets them.

    a barrier begins -> a part whose input is sources alone ends its epoch, and the commit there carries it
    -> a part that reads channels reads each up to its barrier and no further; when all of them show it, its
    own commit carries it -> when every part does, the barrier is complete

Nothing is kept in memory meanwhile: rows behind a barrier stay in their channel. Where rows may be repeated
(at-least-once) a part reads on while it waits for the slowest of its inputs: what it has read behind a
barrier is read again by a job that begins there.
A barrier at which the job stops is the end of a part whoever leads it: one that takes over from a leader that
died there ends, too, and reads nothing before it knows whether it has to.
Always true: a barrier whose process has died holds no part for longer than it was to take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.checkpoint.chain.barriers import (
    BarrierRecord,
    NewestBarrier,
    Standing,
    begun_barrier,
    complete_barriers,
    end_barrier,
)
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.clock import Clock
from holdfast.connectors.contract import Json, SourceReader
from holdfast.errors import CorruptionError, ObjectMissing, StorageError, StorageRefused
from holdfast.runtime.parts.channel_source import ChannelReader
from holdfast.storage.contract import Storage

LOOK_SECONDS = 0.2
IDLE_SECONDS = 1.0
"""How often a part looks for barriers while none is under way. One that a channel shows it sees at once."""
LOST_SECONDS = 240.0
"""How long a part stands at a barrier that a channel shows, and that began nowhere: its record is lost."""


class Alignment:
    """Which barrier a part is to carry next. `root`: where barriers begin; None: the job is not in parts.
    One thread."""

    def __init__(
        self,
        root: Storage | None,
        view: CheckpointView,
        readers: Mapping[str, SourceReader],
        clock: Clock,
        *,
        waits: bool,
        keeps: int,
        part: str = "",
        begun_again_ms: Callable[[int], int | None] = lambda barrier: None,
        replayed_through: int = 0,
    ) -> None:
        """`waits`: nothing is read behind a barrier before all inputs show it. `keeps`: so many complete
        barriers can be gone back to. `part`: as they name this one. `begun_again_ms`: when the first leader
        began after the one that carried a barrier; None: not known. `replayed_through`: up to this epoch what
        sinks or other parts may know is read again as it was."""
        self._begun_again_ms = begun_again_ms
        self._clock, self._waits, self._keeps = clock, waits, keeps
        self._newest = NewestBarrier(root, clock) if root is not None else None
        self._part = part
        self._kept: frozenset[int] | None = None
        """The commits of this part that complete barriers go back to; None: it is not known which."""
        self._inputs = {uid: each for uid, each in readers.items() if isinstance(each, ChannelReader)}
        self._carried = max((place.number for place in view.barriers), default=0)
        sent = [channel.through for channel in view.channels.values()]
        self._falls_from = max([*sent, view.whole_after, replayed_through])
        """The first epoch after which a barrier may fall."""
        self._standing = Standing(0, False)
        self._looked: float | None = None
        self.has_looked = root is None
        """Whether it is known which barrier is under way: nothing is to be read before that."""
        self.unseen = ""
        """Why that is not known; empty: it is."""
        self._begun: BarrierRecord | None = None
        """The newest barrier that was seen under way, which was since `_seen`."""
        self._seen = 0.0
        self._unrecorded: dict[int, float] = {}
        """Barriers of which there is no record, and since when that is seen."""
        for reader in self._inputs.values():
            reader.holds_at = self._holds_at

    def next(self, positions: Mapping[str, Json], epoch: int) -> int:
        """The barrier that falls where the part is now, after `epoch`; 0: none does."""
        if self._newest is None:
            return 0
        self._look(self._newest)
        wanted = self._standing.number
        if not self._standing.under_way or wanted <= self._carried:
            return 0
        if epoch < self._falls_from:
            # After a rewind: a part that has read on in a channel would never come to a barrier here; a job
            # that begins with its savepoint would show other rows under the numbers of epochs that sinks
            # show, or show those again; and what state is in the making cannot be gone back to.
            return 0
        shown = [
            reader.shows(wanted, positions[uid], exactly=self._waits) for uid, reader in self._inputs.items()
        ]
        return wanted if all(shown) else 0

    def keep_from(self, view: CheckpointView) -> int | None:
        """The oldest commit that is kept for a barrier: one that is under way, or one of the newest complete
        ones; the oldest of all, as long as it is not known which are. None: none is. From any thread."""
        if self._newest is not None and self._keeps and self._kept is None:
            return view.retained_from
        standing, kept = self._standing, self._kept or frozenset()
        # Another member of a set may have carried one that was not seen to begin here.
        coming = [
            place.commit
            for place in view.barriers
            if place.number > standing.number or (place.number == standing.number and standing.under_way)
        ]
        return min([*kept, *coming], default=None)

    def carry(self, barrier: int) -> None:
        """A commit that carries it is under way."""
        self._carried = barrier

    @property
    def last(self) -> int:
        """The barrier at which the job stops, if a commit of this part carries it; 0: there is none."""
        begun = self._begun
        if begun is None or not begun.ends or not self._is_carried(begun.number):
            return 0
        return begun.number

    def _is_carried(self, barrier: int) -> bool:
        """Whether the barrier that is under way is carried."""
        return self._standing == Standing(barrier, under_way=True) and barrier == self._carried

    def _holds_at(self, barrier: int) -> bool:
        """What is not known to have ended holds: a channel may show a barrier that was not seen to begin."""
        if not self._waits or barrier <= self._carried or self._newest is None:
            return False
        if barrier > self._standing.number and barrier not in self._unrecorded:
            self._looked = None
            self._look(self._newest)
        if barrier > self._standing.number:
            # To read on is safe: it is never carried here then.
            now = self._clock.monotonic()
            return now - self._unrecorded.setdefault(barrier, now) < LOST_SECONDS
        return barrier == self._standing.number and self._standing.under_way

    def _look(self, newest: NewestBarrier) -> None:
        now, seconds = self._clock.monotonic(), LOOK_SECONDS if self._standing.under_way else IDLE_SECONDS
        if self._looked is None or now - self._looked >= seconds:
            # What cannot be read now is read later: the barrier waits, or is aborted.
            try:
                standing = self._given_up_if_left(newest.root, newest.look(), now)
                if self._keeps and (self._kept is None or standing != self._standing):
                    complete = complete_barriers(newest.root, self._keeps)
                    commits = (record.commits.get(self._part) for record in complete)
                    self._kept = frozenset(commit for commit in commits if commit is not None)
                self._standing, self._looked, self.has_looked, self.unseen = standing, now, True, ""
            except StorageRefused as refusal:
                raise StorageRefused(
                    f"{refusal}; a part has to see whether the job stops at a barrier: it needs the rights "
                    f"to list, read and write below {names.BARRIERS} in {newest.root.url}"
                ) from refusal
            except (StorageError, ObjectMissing) as away:
                if not self.has_looked:
                    self.unseen = str(away)

    def _given_up_if_left(self, root: Storage, standing: Standing, now: float) -> Standing:
        """The newest barrier, after it was aborted if it should have ended: it would hold this part for good.
        Counted since this part first saw it, because the clocks of machines differ; where the job stops at it
        and the part has come to it since it was started again, or by the date: a run that ends at it sees it
        once."""
        if not standing.under_way:
            return standing
        number, why = standing.number, ""
        try:
            if self._begun is None or self._begun.number != number:
                self._begun, self._seen = begun_barrier(root, number), now
            over = now - self._seen >= self._begun.lasts_seconds
            if self._begun.ends and number == self._carried:
                now_ms, again_ms = self._clock.now_ms(), self._begun_again_ms(number)
                over = now_ms >= self._begun.expires_ms
                if again_ms is not None:
                    over = over or now_ms - again_ms >= self._begun.lasts_seconds * 1_000
            if over:
                why = f"it was left behind by {self._begun.by}"
        except CorruptionError as damage:
            why = f"its beginning cannot be read: {damage}"
        if not why:
            return standing
        end_barrier(root, number, "aborted", self._clock.now_ms(), reason=why)
        return Standing(number, under_way=False)
