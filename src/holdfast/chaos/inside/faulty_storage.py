"""Storage that fails on purpose.

`FaultyStorage` wraps any storage and injects faults into its calls, from a list. The same seed and the same
calls give the same faults.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
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


_WRITES = ("put_new", "put", "put_file", "put_stream", "delete")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One rule: which calls it hits (patterns as in a shell), after how many, how often, how likely."""

    kind: FaultKind
    operation: str = "*"
    name: str = "*"
    after: int = 0
    times: int | None = 1
    """How many calls it hits; None: every one."""
    chance: float = 1.0
    seconds: float = 0.0


@dataclass
class _Rule:
    fault: Fault
    seen: int = 0

    def hits(self, operation: str, name: str, chance: random.Random) -> bool:
        fault = self.fault
        if not (fnmatchcase(operation, fault.operation) and fnmatchcase(name, fault.name)):
            return False
        if fault.chance < 1.0 and chance.random() >= fault.chance:
            return False
        self.seen += 1
        return self.seen > fault.after and (fault.times is None or self.seen <= fault.after + fault.times)


class FaultyStorage:
    """`inner`, with faults. Reopened by its url, in a worker say, it is `inner` alone."""

    def __init__(self, inner: Storage, faults: Iterable[Fault] = (), *, clock: Clock, seed: int = 0) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self._clock = clock
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        for fault in faults:
            self.add(fault)

    @property
    def url(self) -> str:
        return self.inner.url

    def add(self, fault: Fault) -> None:
        """From now on, also this fault."""
        with self._lock:
            self._rules.append(_Rule(fault))

    def heal(self) -> None:
        """No more faults; damage at rest stays."""
        with self._lock:
            self._rules.clear()

    def put_new(self, name: str, data: bytes) -> Put:
        damage = self._before("put_new", name)
        outcome = self.inner.put_new(name, self._damaged(data, damage))
        self._after(damage, "put_new", name)
        return outcome

    def put(self, name: str, data: bytes) -> None:
        damage = self._before("put", name)
        self.inner.put(name, self._damaged(data, damage))
        self._after(damage, "put", name)

    def put_file(self, name: str, path: Path) -> None:
        damage = self._before("put_file", name)
        if FaultKind.TRUNCATE in damage or FaultKind.FLIP in damage:
            path.write_bytes(self._damaged(path.read_bytes(), damage))
        self.inner.put_file(name, path)
        self._after(damage, "put_file", name)

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        damage = self._before("put_stream", name)
        if FaultKind.TRUNCATE in damage or FaultKind.FLIP in damage:
            data = self._damaged(b"".join(parts()), damage)
            self.inner.put(name, data)
        else:
            self.inner.put_stream(name, parts)
        self._after(damage, "put_stream", name)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        damage = self._before("get", name)
        data = self.inner.get(name, offset, length)
        self._after(damage, "get", name)
        return self._damaged(data, damage)

    def size(self, name: str) -> int | None:
        damage = self._before("size", name)
        found = self.inner.size(name)
        self._after(damage, "size", name)
        return found

    def entry(self, name: str) -> Entry | None:
        damage = self._before("size", name)
        found = self.inner.entry(name)
        self._after(damage, "size", name)
        return found

    def list(self, prefix: str) -> list[Entry]:
        damage = self._before("list", prefix)
        found = self.inner.list(prefix)
        self._after(damage, "list", prefix)
        return found

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        damage = self._before("delete", doomed[0] if doomed else "")
        self.inner.delete(doomed)
        self._after(damage, "delete", doomed[0] if doomed else "")

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def flip_at_rest(self, name: str, offset: int | None = None) -> int:
        """Turn one bit of a stored object, at `offset` or anywhere; returns where."""
        data = bytearray(self.inner.get(name))
        with self._lock:
            place = self._random.randrange(len(data)) if offset is None else offset
            data[place] ^= 1 << self._random.randrange(8)
        self.inner.put(name, bytes(data))
        return place

    def truncate_at_rest(self, name: str, length: int) -> None:
        """Keep only the first `length` bytes of a stored object."""
        self.inner.put(name, self.inner.get(name, 0, length))

    def _before(self, operation: str, name: str) -> frozenset[FaultKind]:
        """Suffer what comes before the call; returns what comes with and after it."""
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
        return frozenset(fault.kind for fault in hit)

    def _hits(self, operation: str, name: str) -> Sequence[Fault]:
        """The faults that this call is to suffer."""
        with self._lock:
            self.calls.append((operation, name))
            return [rule.fault for rule in self._rules if rule.hits(operation, name, self._random)]

    def _after(self, damage: frozenset[FaultKind], operation: str, name: str) -> None:
        if FaultKind.LOSE_ANSWER in damage:
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
