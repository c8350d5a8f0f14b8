"""Whether a run may commit now: always when it runs alone; in a cluster as long as its seat is safe.

A permit ends by itself when it is not extended, also while the whole process is stopped. A commit that is
about to begin waits until it is extended again, or is refused when it is revoked.
Always true: safety does not depend on it; a commit that slips through is judged by the chain.
Never here: why it is extended (see cluster.seat_lease).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import SeatLost
from holdfast.storage.contract import Entry, Put, Storage

TURN_SECONDS = 0.1


class Permit:
    """Shared by the node, which extends it, and the thread that commits."""

    def __init__(self, clock: Clock, until: float = math.inf) -> None:
        self._clock, self._until = clock, until
        self._why: str | None = None
        self._wanted_since: float | None = None
        self._reaching: dict[int, float] = {}
        """Thread -> since when it has waited for storage."""
        self._changed = threading.Condition()

    @property
    def wanted_since(self) -> float | None:
        """Since when no wanted commit has succeeded, or storage has not answered; None: all is well."""
        wanted = [self._wanted_since] if self._wanted_since is not None else []
        return min([*wanted, *self._reaching.copy().values()], default=None)

    @contextmanager
    def reaching_storage(self) -> Iterator[None]:
        """Meanwhile this thread waits for storage: a run that is kept waiting comes to no commit either."""
        self._reaching[threading.get_ident()] = self._clock.monotonic()
        try:
            yield
        finally:
            del self._reaching[threading.get_ident()]

    def extend(self, until: float) -> None:
        """Commits may begin before `until`, in monotonic seconds."""
        with self._changed:
            self._until = until
            self._changed.notify_all()

    def revoke(self, why: str) -> None:
        """From now on no commit begins."""
        with self._changed:
            self._why = self._why or why
            self._changed.notify_all()

    @property
    def is_revoked(self) -> bool:
        """Whether no commit begins any more."""
        return self._why is not None

    def refuse_if_revoked(self) -> None:
        """SeatLost: it was revoked."""
        if self._why is not None:
            raise SeatLost(f"{self._why}; this run ends and its node stands by")

    def want(self) -> None:
        """A commit is wanted, or the run failed before it came to that."""
        if self._wanted_since is None:
            self._wanted_since = self._clock.monotonic()

    def await_commit(self) -> None:
        """Return when a commit may begin. SeatLost: it never may again."""
        self.want()
        self.await_valid()

    def await_valid(self) -> None:
        """Return when the permit is valid. SeatLost: it never will be again."""
        with self._changed:
            while self._why is None and self._clock.monotonic() >= self._until:
                self._changed.wait(TURN_SECONDS)
        self.refuse_if_revoked()

    def satisfied(self) -> None:
        """A commit has succeeded, or there is nothing to commit."""
        self._wanted_since = None


class WatchedStorage:
    """Checkpoint storage as a leader uses it: its permit knows how long the leader has waited for an answer.

    A leader that is cut off from storage may hang in any call, long before it wants to commit; how long that
    may last is up to the storage's own time-outs. Calls pass unchanged. Those that move as much as there is
    to move are not watched: they may take long without anything being wrong. Reopened by its url, in a worker
    say, it is `inner` alone.
    """

    def __init__(self, inner: Storage, permit: Permit) -> None:
        self._inner, self._permit = inner, permit

    @property
    def url(self) -> str:
        return self._inner.url

    def put_new(self, name: str, data: bytes) -> Put:
        with self._permit.reaching_storage():
            return self._inner.put_new(name, data)

    def put(self, name: str, data: bytes) -> None:
        with self._permit.reaching_storage():
            self._inner.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._inner.put_file(name, path)

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        self._inner.put_stream(name, parts)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._permit.reaching_storage():
            return self._inner.get(name, offset, length)

    def size(self, name: str) -> int | None:
        with self._permit.reaching_storage():
            return self._inner.size(name)

    def entry(self, name: str) -> Entry | None:
        with self._permit.reaching_storage():
            return self._inner.entry(name)

    def list(self, prefix: str) -> list[Entry]:
        with self._permit.reaching_storage():
            return self._inner.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        with self._permit.reaching_storage():
            self._inner.delete(names)

    def local_path(self, name: str) -> Path | None:
        return self._inner.local_path(name)
