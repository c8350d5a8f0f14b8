"""Barriers of a whole job that come by themselves: what the leader of its first part does beside its epochs,
or, when that part has come to its end, the leader of the first that has not.

It keeps nothing: every look is at storage, so that the next leader goes on with what this one began, and sees
to the end of barriers that others have left behind. Where two do it, no more barriers begin than with one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from holdfast.checkpoint.chain.barriers import (
    NewestBarrier,
    begin_barrier,
    begun_barrier,
    complete_barriers,
    end_barrier,
    forget_barriers,
)
from holdfast.checkpoint.chain.checkpoint import find_job, place_of_part
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError, StorageError
from holdfast.graph.parts import homes_of, part_names
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.parts.passage import Channels, Passage, newest_carried
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.5
TURN_SECONDS = 20.0
"""How often it is looked whether the parts before have come to their ends."""
LASTS_SECONDS = 120.0
"""How long a barrier may take to come through all parts before it is given up."""


class Coordinator:
    """Begins a barrier `interval` seconds after the one before has ended. One thread."""

    def __init__(
        self,
        root: Storage,
        parts: Mapping[str, Storage],
        channels: Channels,
        by: str,
        interval: float,
        clock: Clock,
        before: Collection[str] = (),
    ) -> None:
        """`before`: the parts that see to it as long as one of them goes on."""
        self._root, self._parts, self._channels, self._by = root, parts, channels, by
        self._interval, self._clock = interval, clock
        self._began = self._over = self._looked = clock.monotonic()
        self._barriers = NewestBarrier(root, clock)
        self._newest = 0
        """The newest barrier that was seen. Members of a set of replicas all coordinate: what one of them has
        begun the others need not begin."""
        self._before, self._sees_to_it = before, not before
        self._asked: float | None = None
        self._passage: Passage | None = None

    def step(self) -> None:
        """Do what is to be done now. What cannot be done now is done later; a barrier whose beginning cannot
        be read is aborted by whichever part meets it."""
        now = self._clock.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        with suppress(StorageError, RetryableError, ObjectMissing, CorruptionError):
            if not self._has_turn(now):
                return
            standing = self._barriers.look()
            if standing.number > self._newest:
                self._newest, self._began, self._over = standing.number, now, now
            if standing.under_way:
                self._over = now
                self._mind(standing.number, now)
            elif now - self._over >= self._interval:
                # Counted from the end: a part may have stood at the barrier for all of its time.
                if self._is_idle() or not all(map(_may_carry, self._parts.values())):
                    self._over = now
                    return
                lasts_ms = round(LASTS_SECONDS * 1_000)
                above, now_ms = newest_carried(self._parts.values()), self._clock.now_ms()
                self._newest = begin_barrier(self._root, self._by, now_ms, lasts_ms, above=above)
                self._began = self._over = now

    def _has_turn(self, now: float) -> bool:
        """Whether all parts have come to their ends that would see to it before this one."""
        if self._before and (self._asked is None or now - self._asked >= TURN_SECONDS):
            self._sees_to_it = all(_has_come_to_its_end(self._parts[name]) for name in self._before)
            self._asked = now
        return self._sees_to_it

    def _is_idle(self) -> bool:
        """Whether no part has run an epoch since the newest complete barrier: the next would fall in the same
        place, and the commits that carry it would take that of others which can be gone back to."""
        with suppress(CorruptionError, ObjectMissing):
            for newest in complete_barriers(self._root, 1):
                return newest.commits.keys() == self._parts.keys() and all(
                    _last_epoch(part) == History(part).view_at(newest.commits[name]).last_epoch
                    for name, part in self._parts.items()
                )
        return False

    def _mind(self, number: int, now: float) -> None:
        """See whether a barrier has come through all parts, or never will. Its time is counted since it was
        first seen here, because the clocks of machines differ. One that stops the job is complete when all
        have ended, which is for whoever stops it to say."""
        if self._passage is None or self._passage.number != number:
            self._passage = Passage(self._parts, self._channels, number)
        commits, now_ms = self._passage.look(), self._clock.now_ms()
        begun = begun_barrier(self._root, number)
        if commits is not None and not begun.ends:
            end_barrier(self._root, number, "complete", now_ms, commits)
            forget_barriers(self._root)
        elif now - self._began >= begun.lasts_seconds:
            missing = ", ".join(self._passage.missing)
            why = f"it did not come through {missing}" if missing else f"it was left behind by {begun.by}"
            end_barrier(self._root, number, "aborted", now_ms, reason=why)


def _last_epoch(part: Storage) -> int:
    return History(part).load().last_epoch


def _may_carry(part: Storage) -> bool:
    """Whether a barrier may come through a part: it runs, for all that is known, or has come to its end."""
    if find_job(part) is None:
        return False
    return not runs_no_more(part) or _has_come_to_its_end(part)


def _has_come_to_its_end(part: Storage) -> bool:
    return find_job(part) is not None and runs_no_more(part) and History(part).load().ended


def coordinator_of(context: LeaderContext) -> Coordinator | None:
    """What the leader of a part does for the barriers of its job; None: they do not come by themselves."""
    whole, settings = context.program.graph.whole, context.settings
    if whole is None or context.root is None or not settings.barrier_interval:
        return None
    order, part = part_names(whole), context.program.graph.name.removeprefix(f"{whole.name}.")
    parts = {name: open_storage(place_of_part(settings.root, name)) for name in order}
    by, before = f"the leader of part {part!r}", order[: order.index(part)]
    homes = homes_of(whole)
    channels = {each.uid: (homes[each.parent], homes[each]) for each in whole.channels}
    return Coordinator(context.root, parts, channels, by, settings.barrier_interval, context.clock, before)
