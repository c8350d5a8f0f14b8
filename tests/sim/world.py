"""A simulated world for the commit chain: unreliable storage, a sink, and checkers apart from both.

The checkers see everything that ever happened; the leaders see only what storage tells them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint import names
from holdfast.checkpoint.envelope import unseal
from holdfast.checkpoint.records import CommitRecord
from holdfast.checkpoint.view import EMPTY, CheckpointView, fold, rewound
from holdfast.errors import FencedOut, ObjectMissing, StorageError, UnknownOutcome
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Entry, Put
from tests.sim.scheduler import Scheduler


class Violation(AssertionError):
    """A checker found that an invariant does not hold."""


@dataclass
class World:
    """Everything that exists, and everything that happened."""

    scheduler: Scheduler
    fault_chance: float = 0.03
    objects: dict[str, bytes] = field(default_factory=dict)
    late: list[tuple[int, str, bytes]] = field(default_factory=list)
    chain: list[tuple[CommitRecord, str]] = field(default_factory=list)
    views: dict[int, CheckpointView] = field(default_factory=lambda: {0: EMPTY})
    shown: dict[int, str] = field(default_factory=dict)

    def floor(self) -> int:
        return max(
            (names.number_of(name) or 0 for name in self.objects if name.startswith("floor/")), default=0
        )

    def create(self, name: str, data: bytes) -> Put:
        if name in self.objects:
            return Put.EXISTS
        used_up = name.startswith(names.COMMITS) and (names.number_of(name) or 0) <= self.floor()
        self.objects[name] = data
        if name.startswith(names.COMMITS) and not used_up:
            self._grow(unseal("commit", CommitRecord, data, name), checksum(data))
        return Put.CREATED

    def publish(self, epoch: int, content: str) -> None:
        """The sink's one atomic step: an epoch already shown is left alone."""
        if epoch in self.shown:
            return
        if epoch != len(self.shown) + 1:
            raise Violation(f"the sink shows {len(self.shown)} epochs and was given epoch {epoch}")
        committed = {contents(record).get(epoch) for record, _ in self.chain}
        if content not in committed:
            raise Violation(f"the sink was given {content} for epoch {epoch}, which was never committed")
        self.shown[epoch] = content

    def fenced(self, ours: int, run: str, error: FencedOut) -> None:
        others = {record.term for record, _ in self.chain if record.run != run}
        if max(others, default=0) < ours:
            raise Violation(f"term {ours} was fenced, though no other leader has reached it: {error}")

    def check_retained(self) -> None:
        """Every commit that the newest record says is retained has all its files."""
        if not self.chain:
            return
        first = self.chain[-1][0].retained_from
        needed = set().union(*(view.objects() for number, view in self.views.items() if number >= first))
        missing = sorted(needed - self.objects.keys())
        if missing:
            raise Violation(f"commits from {first} on are retained, but {missing[0]} is gone")

    def _grow(self, record: CommitRecord, stored: str) -> None:
        last = self.views[len(self.chain)]
        if record.number != last.number + 1 or record.parent.checksum != last.checksum:
            raise Violation(f"commit {record.number} does not follow commit {last.number}")
        if record.rewind_to is not None:
            last = rewound(last.head, self.views[record.rewind_to])
        if record.first_epoch != last.last_epoch + 1:
            raise Violation(
                f"commit {record.number} repeats or skips epochs: it starts at {record.first_epoch}"
            )
        if record.term < last.term:
            raise Violation(f"commit {record.number} of term {record.term} follows one of term {last.term}")
        self.chain.append((record, stored))
        self.views[record.number] = fold(last, record, stored)


def contents(record: CommitRecord) -> dict[int, str]:
    """What a commit says that each of its epochs put out."""
    return {file.epoch: file.extent.object for file in record.staged}


class SimStorage:
    """One leader's way to the world's objects. Answers get lost, and lost writes may land much later."""

    url = "sim://world"

    def __init__(self, world: World) -> None:
        self.world = world

    def put_new(self, name: str, data: bytes) -> Put:
        self._step()
        fate = self._fate()
        if fate == "fail":
            raise StorageError("injected: nothing was written; try again")
        if fate == "lost":
            raise UnknownOutcome("injected")
        if fate == "late":
            delay = self.world.scheduler.random.choice([1, 20, 300])
            self.world.late.append((self.world.scheduler.steps + delay, name, data))
            raise UnknownOutcome("injected")
        outcome = self.world.create(name, data)
        if fate == "unanswered":
            raise UnknownOutcome("injected")
        return outcome

    def put(self, name: str, data: bytes) -> None:
        self._step()
        self.world.objects[name] = data

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._step()
        if name not in self.world.objects:
            raise ObjectMissing(f"{name} is not there")
        return self.world.objects[name][offset:][:length]

    def size(self, name: str) -> int | None:
        self._step()
        data = self.world.objects.get(name)
        return None if data is None else len(data)

    def list(self, prefix: str) -> list[Entry]:
        self._step()
        return [Entry(n, len(data)) for n, data in sorted(self.world.objects.items()) if n.startswith(prefix)]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._step()
            self.world.objects.pop(name, None)
        self.world.check_retained()

    def local_path(self, name: str) -> Path | None:
        return None

    def _step(self) -> None:
        self.world.scheduler.step()
        due = [write for write in self.world.late if write[0] <= self.world.scheduler.steps]
        for write in due:
            self.world.late.remove(write)
            self.world.create(write[1], write[2])

    def _fate(self) -> str:
        chance = self.world.scheduler.random
        if chance.random() >= self.world.fault_chance:
            return "fine"
        return chance.choice(["fail", "lost", "late", "unanswered"])
