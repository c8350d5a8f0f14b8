"""What is committed and not shown yet: a queue, and a thread, for each sink.

Always true: each sink is given its epochs in order, by its own thread, and none after one that it failed on;
so a sink that is slow, not there, or refuses what it is given, holds up no other. A queue is full when so
many epochs or bytes wait: then nothing more is planned until its sink has caught up.
Never here: how an epoch is shown (see publisher), or what waits in storage (see checkpoint.chain.settled).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.checkpoint.store.records import StagedFile
from holdfast.errors import DefinitionError, SinkWentBack, Unavailable
from holdfast.runtime.epoch.publisher import Publishing, Recipients, sink_told
from holdfast.runtime.epoch.showing import tried_again
from holdfast.runtime.epoch.sink_thread import LeftBehind, SinkThread
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.settings import Until

LIMIT_EPOCHS = 1_000
LIMIT_BYTES = 1 << 30
"""How many epochs, and bytes of their rows in storage, may wait for a sink before the job waits for it."""
WAIT_SECONDS = 0.1
"""How often whoever waits for a sink looks around."""


@dataclass
class SinkQueue:
    """What waits for one sink."""

    thread: SinkThread
    given: int
    """The newest epoch that it was given."""
    pending: deque[Future[None]] = field(default_factory=deque)
    sizes: deque[tuple[int, int]] = field(default_factory=deque)
    """Epoch -> bytes, of those that wait, as far as they have rows."""
    failed: bool = False


class SinkQueues:
    """Those of one run. `put` by any thread, `check`, `room` and `close` by the leading one."""

    def __init__(self, context: LeaderContext, publishing: Publishing) -> None:
        self._context, self._publishing, self._clock = context, publishing, context.clock
        self._lock = threading.Lock()
        self._closing = self._at_end = False
        self._cut_short: dict[str, str] = {}
        """Sink -> why the run does not wait for it any longer, and ends before it is at its end."""
        self._stop_by: float | None = None
        self._outages = publishing.outages
        self._outages.on_change = self.tell
        self._queues = {
            uid: SinkQueue(SinkThread(f"holdfast-sink-{uid}"), through)
            for uid, through in publishing.through.items()
        }

    def put(
        self,
        first: int,
        last: int,
        staged: Iterable[StagedFile],
        to: Recipients,
        beyond: Mapping[str, int] | None = None,
    ) -> dict[str, Future[None]]:
        """Show epochs `first` to `last`, and more where `beyond` names a later epoch for a sink, after those
        given before. Gives, by sink, what tells when that is done."""
        files = list(staged)
        found = {}
        for uid in self._publishing.sinks(to):
            until = max(last, (beyond or {}).get(uid, 0))
            ours = [file for file in files if uid in self._publishing.recipients(file)]
            queue = self._queues[uid]
            with self._lock:
                queue.given = max(queue.given, until)
                queue.sizes.extend((file.epoch, file.extent.length) for file in ours if file.rows)
                found[uid] = queue.thread.submit(partial(self._show, uid, first, until, ours))
                queue.pending.append(found[uid])
        return found

    def check(self) -> None:
        """Raise what a sink failed with, if one has."""
        for queue in self._queues.values():
            while queue.pending and queue.pending[0].done():
                queue.pending.popleft().result()

    def room(self) -> float:
        """How much of an epoch there is room for: less where a queue is more than half full, nothing where
        one is full."""
        fullest = max((self._share(uid) for uid in self._queues), default=0.0)
        self.tell()
        return max(0.0, min(1.0, 2.0 * (1.0 - fullest)))

    def behind(self, sinks: Collection[str] | None = None) -> dict[str, int]:
        """Of each sink that has not shown all that it was given: how many epochs it has still to show."""
        through = self._publishing.through
        left = {
            uid: queue.given - through[uid] + self._publishing.lost(uid)
            for uid, queue in self._queues.items()
        }
        return {uid: epochs for uid, epochs in left.items() if epochs > 0 and (not sinks or uid in sinks)}

    def await_end(self, look: Callable[[], None]) -> None:
        """Wait until all sinks have shown all, now that the run has nothing more to do; not for those that
        refuse it, and if it was told to stop no longer than it then does. Raises what one failed with.
        `look`: called now and then; may raise."""
        self._at_end = True
        while (uid := self._unfinished(self._willing())) is not None:
            if not self._queues[uid].thread.await_done(WAIT_SECONDS):
                self.tell()
                look()
                if self._is_late():
                    break
        self.check()
        self.tell()

    def await_early(self, given: Mapping[str, Future[None]]) -> bool:
        """Wait until sinks have shown what they were given, which is not committed before. Raises what one
        failed with. Of the committing thread. False: the run ends without that."""
        while waiting := [uid for uid, future in given.items() if not _is_done(future)]:
            if not self._queues[waiting[0]].thread.await_done(WAIT_SECONDS):
                self.tell()
                if self._is_late() or self.ends_without(waiting):
                    return False
        return True

    def ends_without_room(self) -> bool:
        """Whether the run ends because the queue of a sink is full that it waits for in vain."""
        return self.ends_without([uid for uid in self._queues if self._share(uid) >= 1])

    def ends_without(self, sinks: Collection[str]) -> bool:
        """Whether the run, which is to come to its end and cannot go on without these sinks, ends before
        that: it waits for one of them in vain, and no sink is left that it waits for otherwise."""
        vain, behind = self._in_vain(), self.behind().keys()
        if not vain.keys() & set(sinks) or behind - vain.keys():
            return False
        if not self._cut_short and not self._context.wishes.stopping.is_set():
            self._context.monitor.say(
                f"ENDING before all is read: the run does not wait for {_named(vain)} any longer, without "
                "which it cannot go on"
            )
        self._cut_short = vain
        return True

    @property
    def is_cut_short(self) -> bool:
        """Whether the run ends before its end because of sinks."""
        return bool(self._cut_short)

    def refused(self) -> dict[str, str]:
        """Sink -> why it refuses what the run ends without, though nobody has told it to stop."""
        return {} if self._is_told_to_stop else self._cut_short | self._refusals()

    def close(self) -> None:
        """End the threads. What was not shown waits in storage. A sink that does not come back in the time
        that a stop gives it is left behind."""
        self._closing = True
        limit = self._clock.monotonic() + self._context.settings.stop_within
        for uid, queue in self._queues.items():
            left = max(0.0, (self._stop_by or limit) - self._clock.monotonic())
            if not queue.thread.end(left, partial(self._publishing.close_late, uid)):
                self._publishing.leave(uid)
                self._context.monitor.say(
                    f"sink {uid!r} does not come back from epoch {self._publishing.through[uid] + 1} and was "
                    "left to itself: should it show the epoch late, it is as if another process did"
                )

    def tell(self) -> None:
        """Show how the sinks stand, where that has changed."""
        through, shown = self._publishing.through, self._context.monitor.progress.sinks
        told = {uid: self._told(uid, through[uid]) for uid in self._queues}
        if told == shown:
            return
        for uid, one in told.items():
            if one["full"] and not shown.get(uid, {}).get("full", False):
                self._context.monitor.say(
                    f"FULL: {one['epochs']} epochs wait for sink {uid!r}; nothing more is read until it has "
                    "shown some"
                )
        self._context.monitor.update(sinks=told)

    def _told(self, uid: str, through: int) -> dict[str, Any]:
        return sink_told(
            through, self._outages.told(uid), self._outages.refusal(uid),
            self._context.monitor.latency.told(uid),
            epochs=self.behind().get(uid, 0), bytes=self._waiting_bytes(uid), full=self._share(uid) >= 1,
        )  # fmt: skip

    def _waiting_bytes(self, uid: str) -> int:
        with self._lock:
            sizes = self._queues[uid].sizes
            while sizes and sizes[0][0] <= self._publishing.through[uid]:
                sizes.popleft()
            return sum(size for _, size in sizes)

    def _share(self, uid: str) -> float:
        """Of the limit."""
        return max(self.behind().get(uid, 0) / LIMIT_EPOCHS, self._waiting_bytes(uid) / LIMIT_BYTES)

    def _willing(self) -> list[str]:
        """The sinks that do not refuse what they have still to show."""
        refusals = self._refusals()
        return [uid for uid in self._queues if uid not in refusals]

    def _refusals(self) -> dict[str, str]:
        """Sink -> why it refuses what it has still to show."""
        behind = [
            uid for uid, queue in self._queues.items() if not self._publishing.has_shown(uid, queue.given)
        ]
        found = {uid: self._outages.refusal(uid) for uid in behind}
        return {uid: told["reason"] for uid, told in found.items() if told is not None}

    def _in_vain(self) -> dict[str, str]:
        """Sink -> why a run that is to come to its end does not wait for what it has still to show: it
        refuses it; or, once a drain was asked for, its server is away for as long as a stop waits."""
        wishes, settings = self._context.wishes, self._context.settings
        draining = wishes.draining.is_set()
        if not (wishes.stopping.is_set() or draining or settings.until is Until.EXHAUSTED):
            return {}
        vain, now_ms = self._refusals(), self._clock.now_ms()
        for uid in self.behind() if draining else ():
            away = self._outages.told(uid)
            if away is not None and now_ms - away["since_ms"] >= settings.stop_within * 1_000:
                vain[uid] = away["reason"]
        return vain

    def _unfinished(self, sinks: Collection[str]) -> str | None:
        return next((uid for uid in sinks if not self._queues[uid].thread.await_done(0)), None)

    @property
    def _is_told_to_stop(self) -> bool:
        wishes = self._context.wishes
        return wishes.stopping.is_set() or (self._at_end and wishes.draining.is_set())

    def _is_late(self) -> bool:
        """Whether a run that was told to stop has waited for its sinks for as long as it does."""
        if not self._is_told_to_stop:
            return False
        if self._stop_by is None:
            self._stop_by = self._clock.monotonic() + self._context.settings.stop_within
        return self._clock.monotonic() >= self._stop_by

    def _show(self, uid: str, first: int, last: int, files: list[StagedFile]) -> None:
        """By the thread of the sink."""
        queue = self._queues[uid]
        if queue.failed:
            raise LeftBehind(f"sink {uid!r} is shown nothing after an epoch that it failed on")
        try:
            while not self._closing:
                # Also where another member of a set of replicas shows it meanwhile.
                self._outages.wait(uid, lambda: self._closing or self._publishing.has_shown(uid, last))
                try:
                    self._publishing.show(uid, first, last, files, lambda: self._closing)
                    if self._publishing.has_shown(uid, last):
                        self._outages.answered(uid)
                        return
                except Unavailable as failure:
                    self._outages.failed(uid, failure)
                except DefinitionError as refusal:
                    self._outages.refused(uid, refusal, self._publishing.showing(uid).meanwhile)
                except SinkWentBack as back:
                    again = tried_again(uid, self._context.checkpoint.storage.url)
                    meanwhile = f"{again}; {self._publishing.showing(uid).meanwhile}"
                    self._outages.refused(uid, back, meanwhile)
                if self._publishing.broken_off.get(uid) == last:
                    # It is not shown again, and the next epoch is what is waited with.
                    return
            raise LeftBehind("the run has ended meanwhile; start it again")
        except BaseException:
            # Later epochs must not be shown before this one: a sink shows a prefix of the committed epochs.
            queue.failed = True
            raise


def _is_done(future: Future[None]) -> bool:
    """Raises what it failed with."""
    if done := future.done():
        future.result()
    return done


def _named(sinks: Iterable[str]) -> str:
    return f"sink {', '.join(map(repr, sinks))}"
