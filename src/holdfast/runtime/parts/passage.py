"""The way of a barrier through the parts of a job: which commit of each part meets it.

Always true: the commits that are given as those of one barrier are a consistent cut: what a part has read of
a channel there is what the part before had sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.chain.checkpoint import find_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.store.records import Json
from holdfast.errors import CorruptionError
from holdfast.runtime.parts.channel_source import Position
from holdfast.storage.contract import Storage

Channels = Mapping[str, tuple[str, str]]
"""Channel uid -> the part that it leaves, and the one that reads it."""


@dataclass(frozen=True)
class _Place:
    """Where a part meets a barrier: after `epoch`, in commit `commit`, when it had read its channels up to
    `positions`. `carried`: the commit says so; else the part has come to its end there."""

    commit: int
    epoch: int
    positions: Mapping[str, Json]
    carried: bool


class Passage:
    """Of one barrier. `keep`: called with each commit that is to stay, as soon as it is known. One thread."""

    def __init__(
        self,
        parts: Mapping[str, Storage],
        channels: Channels,
        number: int,
        keep: Callable[[Storage, int], None] = lambda part, commit: None,
    ) -> None:
        self._parts, self._channels, self.number, self._keep = parts, channels, number, keep
        self._places: dict[str, _Place] = {}

    def look(self) -> dict[str, int] | None:
        """Of each part, the commit that meets the barrier; None: it has not come through all of them yet."""
        for name, part in self._parts.items():
            if name not in self._places or not self._places[name].carried:
                # A part that has come to its end may have begun again: then it counts what it carries.
                self._places.pop(name, None)
                if (place := self._met(part)) is not None:
                    self._places[name] = place
        if self.missing:
            return None
        for name, place in self._places.items():
            if not place.carried:
                self._keep(self._parts[name], place.commit)
        return {name: place.commit for name, place in self._places.items()}

    @property
    def missing(self) -> list[str]:
        """The parts that the barrier has not come through, as of the last look."""
        return [name for name in self._parts if name not in self._places] or self._torn()

    def _met(self, part: Storage) -> _Place | None:
        if find_job(part) is None:
            return None
        with suppress(CorruptionError):
            history = History(part)
            newest = history.load()
            for place in newest.barriers:
                if place.number == self.number:
                    self._keep(part, place.commit)
                    positions = history.view_at(place.commit).positions
                    return _Place(place.commit, place.epoch, positions, carried=True)
            if newest.ended and newest_ending(part) is not None:
                return _Place(newest.number, newest.last_epoch, newest.positions, carried=False)
        return None

    def _torn(self) -> list[str]:
        """The parts that have read less or more than was sent: one of two had come to its end, or was taken
        for ended, and has begun again. What a part has read behind a barrier that is carried is read again
        by whatever begins there, so it counts as not read."""
        found = []
        for uid, (before, after) in self._channels.items():
            sent = self._places[before]
            read, wanted = Position.of(self._places[after].positions.get(uid)), Position(sent.epoch)
            if read < wanted or (read > wanted and not sent.carried):
                found.append(after)
        return found


def newest_carried(parts: Iterable[Storage]) -> int:
    """The newest barrier that one of these parts carries, as far as can be read; 0: there is none."""
    found = [0]
    for part in parts:
        with suppress(CorruptionError):
            if find_job(part) is not None:
                found += [place.number for place in History(part).load().barriers]
    return max(found)
