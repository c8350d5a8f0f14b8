"""A received log under several writers, a reader that trims, and storage that fails, by one seed.

Whoever makes a call to storage may fall asleep there: others then do whole pieces of work, of which each call
may again be one at which somebody falls asleep. So a writer wakes up to a log that was read and trimmed far
beyond where it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.log.received import ReceivedLog, unpacked
from holdfast.checkpoint.store import names
from holdfast.connectors.contract import LogBatch, Slice
from holdfast.connectors.receiving import next_slice
from holdfast.errors import HoldfastError, ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage.contract import Entry, Put

SOURCE = "queue"
DEPTH_MAX = 2


class LogStorage:
    """Objects in memory; a call may fail, stay unanswered or land late, and others may work before it."""

    def __init__(self, world: LogWorld) -> None:
        self._world, self.url = world, "sim://log"

    def put_new(self, name: str, data: bytes) -> Put:
        world = self._world
        if self._fails():
            kind = world.chance.choice(("fail", "lost", "late", "unanswered"))
            if kind == "fail":
                raise StorageError("injected")
            if kind == "late":
                world.late.append((name, data))
            elif kind == "unanswered":
                world.objects.setdefault(name, data)
            raise UnknownOutcome("injected")
        if name in world.objects:
            return Put.EXISTS
        world.objects[name] = data
        return Put.CREATED

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._fails():
            raise StorageError("injected")
        if name not in self._world.objects:
            raise ObjectMissing(name)
        return self._world.objects[name]

    def list(self, prefix: str) -> list[Entry]:
        if self._fails():
            raise StorageError("injected")
        found = sorted(self._world.objects.items())
        return [Entry(name, len(data)) for name, data in found if name.startswith(prefix)]

    def delete(self, doomed: Iterable[str]) -> None:
        for name in doomed:
            if self._fails():
                raise StorageError("injected")
            self._world.objects.pop(name, None)

    def _fails(self) -> bool:
        self._world.meanwhile()
        return self._world.chance.random() < self._world.fault_chance


class LogWorld:
    """`log`: the class under test; `acks_early`, `counts_repeats`: what a broken one does besides."""

    def __init__(
        self, seed: int, log: type[ReceivedLog] = ReceivedLog, *, acks_early: bool = False,
        counts_repeats: bool = False,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.fault_chance, self._depth = self.chance.choice((0.0, 0.05, 0.2)), 0
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self._log, self._acks_early, self._counts_repeats = log, acks_early, counts_repeats
        self._writers = [self._new_log() for _ in range(3)]
        self._busy: set[int] = set()
        self._reading = False
        self._reader = self._new_log()
        self._position: Any = None
        self._earlier: list[Any] = []
        self._messages = 0
        self.acknowledged: set[int] = set()
        self.read: dict[int, set[tuple[str, int]]] = {}
        """Message -> the batches by which it came."""
        self.read_turns: list[tuple[str, int]] = []
        self.seen: dict[str, int] = {"overtaken": 0, "trimmed": 0}

    def _new_log(self) -> ReceivedLog:
        storage: Any = LogStorage(self)
        return self._log(storage, SOURCE, f"w{self.chance.getrandbits(40):x}")

    def run(self, steps: int = 40) -> None:
        for _ in range(steps):
            self._step()
        self.fault_chance, self._depth = 0.0, DEPTH_MAX
        self._land()
        self._reader = self._new_log()
        while self._read_some():
            pass

    def meanwhile(self) -> None:
        """Others work while somebody sleeps."""
        if self._depth < DEPTH_MAX and self.chance.random() < 0.08:
            self._depth += 1
            for _ in range(self.chance.choice((1, 3, 8))):
                self._step()
            self._depth -= 1

    def _step(self) -> None:
        if self.late and self.chance.random() < 0.3:
            self._land()
        work = self.chance.choice((self._append, self._append, self._read_some, self._trim, self._restart))
        with suppress(StorageError, UnknownOutcome):
            work()

    def _land(self) -> None:
        for name, data in self.late:
            self.objects.setdefault(name, data)
        self.late.clear()

    def _append(self) -> None:
        idle = [number for number in range(len(self._writers)) if number not in self._busy]
        if not idle:
            return
        number = self.chance.choice(idle)
        self._messages += 1
        message = self._messages
        self._busy.add(number)
        try:
            if self._acks_early:
                self.acknowledged.add(message)
            self._writers[number].append(pa.record_batch({"n": [message]}))
            self.acknowledged.add(message)
        finally:
            self._busy.discard(number)

    def _restart(self) -> None:
        number = self.chance.randrange(len(self._writers))
        if number not in self._busy and self.chance.random() < 0.2:
            self._writers[number] = self._new_log()

    def _read_some(self) -> bool:
        if self._reading:
            return False
        self._reading = True
        try:
            self._reader.look()
            batches = self._reader.after(self._position["batch"] if self._position else 0)
            slice = self._slice(batches)
            if slice is None:
                return False
            rows = [unpacked(self.objects[names.log_batch(SOURCE, n)], n) for n in slice.detail]
        finally:
            self._reading = False
        for batch, table in rows:
            turn = (batch.writer, batch.turn)
            self.read_turns.append(turn)
            self.read.setdefault(table.column(0)[0].as_py(), set()).add(turn)
        self._earlier.append(self._position)
        self._position = slice.end
        return True

    def _slice(self, batches: Any) -> Slice | None:
        if not self._counts_repeats:
            return next_slice(self._position, batches, self.chance.choice((1, 3, None)))
        renamed = [LogBatch(each.number, f"{each.number}", 1, each.rows) for each in batches]
        return next_slice(self._position, renamed, None)

    def _trim(self) -> None:
        if self._reading or len(self._earlier) < 2 or self._earlier[-1] is None:
            return
        self._reading = True
        try:
            self._reader.trim(self._earlier[-1]["batch"])
            self.seen["trimmed"] += 1
        finally:
            self._reading = False


def verdict(world: LogWorld) -> str:
    """What is wrong with a world that has run; empty: nothing."""
    if lost := sorted(world.acknowledged - set(world.read)):
        return f"acknowledged and never read: {lost[:5]}"
    if len(world.read_turns) != len(set(world.read_turns)):
        return "a batch was read twice"
    return ""


def run(seed: int, **how: Any) -> tuple[str, LogWorld]:
    world = LogWorld(seed, **how)
    try:
        world.run()
    except HoldfastError as refusal:
        return f"{type(refusal).__name__}: {refusal}", world
    return verdict(world), world
