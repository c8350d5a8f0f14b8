"""Barriers of a whole job that come by themselves: what the leader of its first part does beside its epochs.

It keeps nothing: every look is at storage, so that the next leader goes on with what this one began, and sees
to the end of barriers that others have left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from holdfast.checkpoint.chain.barriers import (
    begin_barrier,
    begun_barrier,
    end_barrier,
    forget_barriers,
    newest_barrier,
)
from holdfast.checkpoint.chain.checkpoint import find_job, place_of_part
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RetryableError, StorageError
from holdfast.graph.parts import part_names
from holdfast.runtime.leader_context import LeaderContext
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.5
LASTS_SECONDS = 120.0
"""How long a barrier may take to come through all parts before it is given up."""


class Coordinator:
    """Begins a barrier every `interval` seconds. One thread."""

    def __init__(
        self, root: Storage, parts: Mapping[str, Storage], by: str, interval: float, clock: Clock
    ) -> None:
        self._root, self._parts, self._by = root, parts, by
        self._interval, self._clock = interval, clock
        self._began = self._looked = clock.monotonic()
        self._commits: dict[str, int] = {}
        self._counted = 0

    def step(self) -> None:
        """Do what is to be done now. What cannot be done now is done later."""
        now = self._clock.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        with suppress(StorageError, RetryableError, ObjectMissing):
            standing = newest_barrier(self._root)
            if standing.under_way:
                self._mind(standing.number)
            elif now - self._began >= self._interval:
                lasts_ms = round(LASTS_SECONDS * 1_000)
                begin_barrier(self._root, self._by, self._clock.now_ms(), lasts_ms)
                self._began = now

    def _mind(self, number: int) -> None:
        """See whether a barrier has come through all parts, or never will."""
        if number != self._counted:
            self._commits, self._counted = {}, number
        for name, storage in self._parts.items():
            if name not in self._commits and (commit := carrying(storage, number)) is not None:
                self._commits[name] = commit
        now_ms = self._clock.now_ms()
        if len(self._commits) == len(self._parts):
            end_barrier(self._root, number, "complete", now_ms, self._commits)
            forget_barriers(self._root)
        elif now_ms >= begun_barrier(self._root, number).expires_ms:
            missing = ", ".join(name for name in self._parts if name not in self._commits)
            end_barrier(self._root, number, "aborted", now_ms, reason=f"it did not come through {missing}")


def coordinator_of(context: LeaderContext) -> Coordinator | None:
    """What the leader of a part does for the barriers of its job; None: that is left to another, or they do
    not come by themselves."""
    whole, settings = context.program.graph.whole, context.settings
    if whole is None or context.root is None or not settings.barrier_interval:
        return None
    order = part_names(whole)
    if context.program.graph.name != f"{whole.name}.{order[0]}":
        return None
    parts = {name: open_storage(place_of_part(settings.root, name)) for name in order}
    by = f"the leader of part {order[0]!r}"
    return Coordinator(context.root, parts, by, settings.barrier_interval, context.clock)


def carrying(part: Storage, number: int) -> int | None:
    """The commit of a part that carries a barrier; the last one, of a part that has come to its end."""
    if find_job(part) is None:
        return None
    with suppress(CorruptionError):
        view = History(part).load()
        for place in view.barriers:
            if place.number == number:
                return place.commit
        if view.ended and newest_ending(part) is not None:
            return view.number
    return None
