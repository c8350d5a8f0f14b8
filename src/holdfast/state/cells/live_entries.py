"""The entries of a state with a ttl as user code sees them: without their times, and without what is gone.

Always true: an entry that has expired at the instant of the epoch is not there, whether or not it has been
removed yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.state.contract import StateReads
from holdfast.state.encoding.layout import StateField
from holdfast.state.encoding.ttl import TIME_BYTES, Instants, Ttl, time_of


class LiveEntries:
    """See StateReads. Of one state, at one instant. Not for the headers of lists, which have no times."""

    def __init__(self, state: StateReads, ttl: Ttl, now_us: int | None) -> None:
        self._state, self._ttl, self._now_us = state, ttl, now_us
        self.aged: set[bytes] = set()
        """Of a state that is kept as long as it is read: the entries read here that a read is to renew."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._state.get_many(keys)
        return [self._seen(key, stored) for key, stored in zip(keys, found, strict=True)]

    def get(self, key: bytes) -> bytes | None:
        return self._seen(key, self._state.get(key))

    def scan(
        self, prefix: bytes, end: bytes | None = None, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in self._state.scan(prefix, end, start):
            value = self._seen(key, stored)
            if value is not None:
                yield key, value

    def _seen(self, key: bytes, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        at_us = time_of(stored)
        if self._ttl.is_expired(at_us, self._now_us):
            return None
        if self._ttl.since == "read" and self._ttl.is_aged(at_us, self._now_us):
            self.aged.add(key)
        return stored[TIME_BYTES:]


def reads_of(field: StateField, state: StateReads, at: Instants) -> StateReads:
    """A shard's state as the cell of one of its states is to see it."""
    return state if field.ttl is None else LiveEntries(state, field.ttl, at.now(field.ttl))


def aged_keys(state: StateReads, keys: Sequence[bytes]) -> frozenset[int]:
    """Which of these entries, by their places, a read is to renew, of those that were read."""
    if not isinstance(state, LiveEntries):
        return frozenset()
    return frozenset(place for place, key in enumerate(keys) if key in state.aged)
