"""A leader like the engine, with no data: claim, load, publish, then plan, commit, publish, retire."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint import names
from holdfast.checkpoint.commits import Adopted, Chain
from holdfast.checkpoint.plans import Plans
from holdfast.checkpoint.records import (
    CommitRecord,
    DeltaFile,
    Extent,
    PlanRecord,
    SnapshotFile,
    StagedFile,
    VersionRecord,
)
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.terms import claim
from holdfast.checkpoint.view import CheckpointView
from holdfast.errors import FencedOut, RetryableError
from holdfast.ids import EpochId
from tests.sim.scheduler import Crashed
from tests.sim.world import SimStorage, World

OPERATOR, GROUPS, SINK = "totals", 4, "out"


@dataclass(frozen=True)
class Doubles:
    """The parts under test; a negative control swaps one for a broken one."""

    chain: type[Chain] = Chain
    retention: type[Retention] = Retention
    retain: int = 3
    manifest_every: int = 4
    rewinds: bool = False


class Leader:
    """One simulated process, started again as a new run when it crashes, until its lives are used up."""

    def __init__(
        self, world: World, name: str, doubles: Doubles, *, lives: int = 3, commits: int = 12
    ) -> None:
        self.world, self.name, self.doubles = world, name, doubles
        self.lives, self.commits = lives, commits
        self.names = 0

    def __call__(self) -> None:
        for life in range(self.lives):
            run = f"{self.name}{life}"
            try:
                self._live(run)
            except (Crashed, RetryableError):
                continue

    def _live(self, run: str) -> None:
        storage = SimStorage(self.world)
        term = claim(storage, run, "host", 1, 0)
        try:
            self._lead(storage, term, run)
        except FencedOut as error:
            self.world.fenced(term, run, error)

    def _lead(self, storage: SimStorage, term: int, run: str) -> None:
        chain = self.doubles.chain(
            storage, retain=self.doubles.retain, manifest_every=self.doubles.manifest_every
        )
        retention = self.doubles.retention(chain, sweep_every=1)
        view = chain.load()
        self._publish(storage, view)
        for _ in range(self.commits):
            try:
                if self.doubles.rewinds and view.number and storage.world.scheduler.random.random() < 0.1:
                    to = storage.world.scheduler.random.randint(view.retained_from, view.number)
                    outcome = chain.rewind(view.head, to, term=term, run=run)
                else:
                    outcome = chain.commit(view, self._epochs(storage, view, term, run))
                view = outcome.view
                self._publish(storage, view)
                if not isinstance(outcome, Adopted):
                    retention.after_commit(view)
            except RetryableError:
                view = chain.load()
                self._publish(storage, view)

    def _publish(self, storage: SimStorage, view: CheckpointView) -> None:
        for file in view.staged:
            storage._step()
            self.world.publish(file.epoch, file.extent.object)

    def _epochs(self, storage: SimStorage, view: CheckpointView, term: int, run: str) -> CommitRecord:
        """One to three epochs, planned and run: each leader cuts its barriers elsewhere."""
        chance = self.world.scheduler.random
        first = view.last_epoch + 1
        last = first + chance.choice([0, 0, 1, 2])
        plans = Plans(storage)
        attempts, deltas, staged = {}, [], []
        parent = VersionRecord(epoch=view.last_epoch, attempt=1, result="")
        for epoch in range(first, last + 1):
            attempt = plans.next_attempt(EpochId(epoch))
            plan = PlanRecord(
                epoch=epoch, attempt=attempt, term=term, run=run, parent=view.number,
                fingerprint="f", parallelism=1, clock_ms=epoch, slices={},
            )  # fmt: skip
            attempts[str(epoch)] = plans.write(plan).plan.attempt
            bundle = self._write(storage, names.data_of(epoch), run)
            version = VersionRecord(epoch=epoch, attempt=attempt, result=bundle.object)
            deltas.append(
                DeltaFile(
                    operator=OPERATOR, first_group=0, end_group=GROUPS, version=version, parent=parent,
                    extent=bundle, entries=1,
                )
            )  # fmt: skip
            staged.append(StagedFile(stream=SINK, epoch=epoch, part=0, extent=bundle, rows=1))
            parent = version
        return CommitRecord(
            term=term, run=run, first_epoch=first, last_epoch=last, attempts=attempts, clock_ms=last,
            parallelism=1, fingerprint="f", positions={"in": last},
            deltas=tuple(deltas), staged=tuple(staged),
            snapshots=self._snapshots(storage, view, run), rows=last - first + 1,
            published_through={SINK: view.last_epoch},
        )  # fmt: skip

    def _snapshots(self, storage: SimStorage, view: CheckpointView, run: str) -> tuple[SnapshotFile, ...]:
        if view.last_epoch == 0 or self.world.scheduler.random.random() < 0.7:
            return ()
        extent = self._write(storage, names.snapshots_of(view.last_epoch), run)
        version = VersionRecord(epoch=view.last_epoch, attempt=1, result="")
        return (
            SnapshotFile(
                operator=OPERATOR, first_group=0, end_group=GROUPS, version=version, object=extent.object,
                length=1, chunk_bytes=1, chunks=("",), backend="sim",
            ),
        )  # fmt: skip

    def _write(self, storage: SimStorage, directory: str, run: str) -> Extent:
        self.names += 1
        name = f"{directory}{run}-{self.names}"
        storage.put(name, b"x")
        return Extent(object=name, offset=0, length=1, checksum="")
