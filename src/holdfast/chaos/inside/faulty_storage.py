"""Storage that fails on purpose: calls that fail, hang or lose their answer, bytes that come out wrong."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import StorageError, UnknownOutcome
from holdfast.storage.contract import Entry, Put, Storage


class FaultKind(StrEnum):
    """What happens to a call of a storage."""

    FAIL = "fail"
    """StorageError, nothing done."""
    DELAY = "delay"
    """`clock.sleep(seconds)`, then the call goes on."""
    LOSE_REQUEST = "lose-request"
    """Nothing done, the outcome unknown: UnknownOutcome from writes, StorageError from reads."""
    LOSE_ANSWER = "lose-answer"
    """Done, the outcome unknown: UnknownOutcome from writes, StorageError from reads."""
    TRUNCATE = "truncate"
    """The last half of the bytes is missing: in what `get` returns, or in what a put stores."""
    FLIP = "flip"
    """One bit is wrong: in what `get` returns, or in what a put stores."""


_DAMAGE = {FaultKind.TRUNCATE, FaultKind.FLIP}
_WRITES = ("put_new", "put", "put_file", "put_stream", "delete")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a call suffers."""

    kind: FaultKind
    seconds: float = 0.0


class FaultyStorage:
    """`inner`, with the faults that a subclass chooses. Reopened by its url, in a worker say, it is `inner`
    alone.
    """

    def __init__(self, inner: Storage, *, clock: Clock, seed: int = 0) -> None:
        self.inner = inner
        self._clock = clock
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _hits(self, operation: str, name: str) -> Sequence[Fault]:
        """The faults that this call is to suffer."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, name: str, data: bytes) -> Put:
        with self._suffering("put_new", name) as damage:
            return self.inner.put_new(name, self._damaged(data, damage))

    def put(self, name: str, data: bytes) -> None:
        with self._suffering("put", name) as damage:
            self.inner.put(name, self._damaged(data, damage))

    def put_file(self, name: str, path: Path) -> None:
        with self._suffering("put_file", name) as damage:
            if damage & _DAMAGE:
                path.write_bytes(self._damaged(path.read_bytes(), damage))
            self.inner.put_file(name, path)

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        with self._suffering("put_stream", name) as damage:
            if damage & _DAMAGE:
                self.inner.put(name, self._damaged(b"".join(parts()), damage))
            else:
                self.inner.put_stream(name, parts)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._suffering("get", name) as damage:
            return self._damaged(self.inner.get(name, offset, length), damage)

    def size(self, name: str) -> int | None:
        with self._suffering("size", name):
            return self.inner.size(name)

    def entry(self, name: str) -> Entry | None:
        with self._suffering("size", name):
            return self.inner.entry(name)

    def list(self, prefix: str) -> list[Entry]:
        with self._suffering("list", prefix):
            return self.inner.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        with self._suffering("delete", doomed[0] if doomed else ""):
            self.inner.delete(doomed)

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    @contextmanager
    def _suffering(self, operation: str, name: str) -> Iterator[frozenset[FaultKind]]:
        """Around a call: suffer what comes before it, give what comes with it, lose its answer after it."""
        hit = self._hits(operation, name)
        for fault in hit:
            match fault.kind:
                case FaultKind.DELAY:
                    self._clock.sleep(fault.seconds)
                case FaultKind.FAIL:
                    raise StorageError(
                        f"injected: {operation} {name!r} failed, nothing was written; try again"
                    )
                case FaultKind.LOSE_REQUEST:
                    raise _unanswered(operation, name)
        kinds = frozenset(fault.kind for fault in hit)
        yield kinds
        if FaultKind.LOSE_ANSWER in kinds:
            raise _unanswered(operation, name)

    def _damaged(self, data: bytes, damage: Iterable[FaultKind]) -> bytes:
        if FaultKind.TRUNCATE in damage:
            data = data[: len(data) // 2]
        if FaultKind.FLIP in damage and data:
            with self._lock:
                place, bit = self._random.randrange(len(data)), self._random.randrange(8)
            data = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
        return data


def _unanswered(operation: str, name: str) -> StorageError | UnknownOutcome:
    if operation in _WRITES:
        return UnknownOutcome(f"injected: no answer to {operation} {name!r}; read it back")
    return StorageError(f"injected: no answer to {operation} {name!r}; try again")
