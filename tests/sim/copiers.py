"""Somebody who copies a checkpoint while the job goes on, as a savepoint does: pin, read all of it, unpin."""

from __future__ import annotations

from holdfast.checkpoint.chain import pins
from holdfast.checkpoint.chain.history import History
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError, RetryableError
from tests.sim.event_time import Violation
from tests.sim.scheduler import Crashed, Process
from tests.sim.storage import SimStorage
from tests.sim.world import World


class Copier:
    """One process that takes copies until the simulation ends; started again when it crashes."""

    def __init__(self, world: World, name: str, *, copies: int) -> None:
        self.world, self.name, self.copies = world, name, copies

    def __call__(self) -> None:
        scheduler = self.world.scheduler
        for copy in range(self.copies):
            if scheduler.over:
                return
            scheduler.reborn(Process(f"{self.name}{copy}"))
            try:
                self._copy(f"{self.name}{copy}")
            except Crashed:
                self.world.seen["crash"] += 1
            except RetryableError:
                self.world.seen["copy that storage ended"] += 1

    def _copy(self, name: str) -> None:
        storage = SimStorage(self.world)
        self._unpin(storage, list(self.world.pinned))
        newest = History(storage).load()
        if newest.number == 0:
            return
        commit = self.world.chance.randint(max(1, newest.retained_from - 1), newest.number)
        if self.world.chance.random() < 0.5:
            self.world.scheduler.sleep(self.world.chance.choice((20, 60)))
        try:
            pins.pin(History(storage), name, commit, "copier", 0)
        except RestoreError:
            self.world.seen["pin refused"] += 1
            return
        self.world.tell(f"pinned commit {commit}")
        self.world.pin(name, commit)
        self.world.scheduler.sleep(self.world.chance.choice((1, 20, 60)))
        try:
            view = History(storage).view_at(commit)
            for copied in sorted(view.objects()):
                storage.get(copied)
        except (CorruptionError, ObjectMissing) as missing:
            raise Violation(f"commit {commit} is pinned, but cannot be read: {missing}") from missing
        self.world.seen["pinned commit copied"] += 1
        self._unpin(storage, [name])

    def _unpin(self, storage: SimStorage, held: list[str]) -> None:
        for name in held:
            del self.world.pinned[name]
        pins.unpin(storage, held)
