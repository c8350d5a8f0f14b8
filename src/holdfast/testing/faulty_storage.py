"""Storage that fails on purpose, for tests: by rules, the same for the same seed, over a given clock."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from holdfast.chaos.inside import faulty_storage
from holdfast.chaos.inside.faulty_storage import FaultKind
from holdfast.clock import Clock
from holdfast.storage.contract import Storage
from holdfast.testing.clocks import ManualClock

__all__ = ["Fault", "FaultKind", "FaultyStorage"]


@dataclass(frozen=True, kw_only=True)
class Fault(faulty_storage.Fault):
    """One rule: which calls it hits (patterns as in a shell), after how many, how often, how likely."""

    operation: str = "*"
    name: str = "*"
    after: int = 0
    times: int | None = 1
    """How many calls it hits; None: every one."""
    chance: float = 1.0


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


class FaultyStorage(faulty_storage.FaultyStorage):
    """`inner`, with faults from a list. Delays pass at once, unless a clock is given."""

    def __init__(
        self, inner: Storage, faults: Iterable[Fault] = (), *, clock: Clock | None = None, seed: int = 0
    ) -> None:
        super().__init__(inner, clock=clock or ManualClock(), seed=seed)
        self.calls: list[tuple[str, str]] = []
        self._rules = [_Rule(fault) for fault in faults]

    def add(self, fault: Fault) -> None:
        """From now on, also this fault."""
        with self._lock:
            self._rules.append(_Rule(fault))

    def heal(self) -> None:
        """No more faults; damage at rest stays."""
        with self._lock:
            self._rules.clear()

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

    def _hits(self, operation: str, name: str) -> Sequence[Fault]:
        with self._lock:
            self.calls.append((operation, name))
            return [rule.fault for rule in self._rules if rule.hits(operation, name, self._random)]
