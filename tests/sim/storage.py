"""Checkpoint storage of the simulated world: in memory, shared by all, and unreliable.

A call fails, or its outcome stays unknown: then the write happened, did not happen, or happens much later.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.checkpoint.store import names
from holdfast.errors import ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage.contract import Entry, Put
from tests.sim.world import World

_DELICATE = (names.COMMITS, names.FLOORS, names.PINS)
"""A process likes to fall asleep just before it writes one of these."""


class SimStorage:
    """One process's way to the world's objects."""

    def __init__(self, world: World, url: str = "sim://world") -> None:
        self.world = world
        self.url = url

    def put_new(self, name: str, data: bytes) -> Put:
        world = self.world
        if name.startswith(_DELICATE) and world.chance.random() < world.linger_chance:
            world.scheduler.sleep(world.chance.choice((10, 40, 100)))
        fate = self._call("put_new", name)
        if fate:
            kind = world.chance.choice(("fail", "lost", "late", "unanswered"))
            world.tell(f"  {kind}")
            if kind == "fail":
                raise StorageError("injected: nothing was written; try again")
            world.seen["unknown outcome"] += 1
            if kind == "late":
                world.land_later(world.chance.choice((1, 20, 150)), name, data)
            elif kind == "unanswered":
                world.create(name, data)
            raise UnknownOutcome("injected")
        return world.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        if self._call("put", name):
            if self.world.chance.random() < 0.5:
                raise StorageError("injected: nothing was written; try again")
            self.world.seen["unknown outcome"] += 1
            if self.world.chance.random() < 0.5:
                self.world.create(name, data)
            raise UnknownOutcome("injected")
        self.world.create(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._read("get", name)
        data = self.world.objects_in(name).get(name)
        if data is None:
            raise ObjectMissing(f"{name} is not there")
        return data[offset:][:length]

    def size(self, name: str) -> int | None:
        self._read("size", name)
        data = self.world.objects_in(name).get(name)
        return None if data is None else len(data)

    def entry(self, name: str) -> Entry | None:
        size = self.size(name)
        return None if size is None else Entry(name, size)

    def list(self, prefix: str) -> list[Entry]:
        self._read("list", prefix)
        found = sorted(self.world.objects_in(prefix).items())
        return [Entry(name, len(data)) for name, data in found if name.startswith(prefix)]

    def delete(self, doomed: Iterable[str]) -> None:
        for name in doomed:
            if self._call("delete", name):
                self.world.seen["delete that failed halfway"] += 1
                raise StorageError("injected: some may be gone; try again")
            self.world.remove(name)

    def local_path(self, name: str) -> Path | None:
        return None

    def _read(self, verb: str, name: str) -> None:
        if self._call(verb, name):
            self.world.seen["read that failed"] += 1
            raise StorageError("injected: cannot be reached; try again")

    def _call(self, verb: str, name: str) -> bool:
        """Whether this call goes wrong."""
        world, scheduler = self.world, self.world.scheduler
        process = scheduler.step()
        if world.late:
            world.land()
        world.story.append((scheduler.steps, process.name, verb, name))
        return world.chance.random() < world.fault_chance
