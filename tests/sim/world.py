"""The simulated world: the objects in storage, what a sink shows, and the checkers of both.

The checkers see everything that ever happened, at the instant when it happens; the processes see only what
storage tells them. What must hold:

- one chain: every commit record created above the floor continues the newest one, in number, parent, term
  and epochs; no two runs hold one term;
- no row lost or doubled: the rows of an epoch are those of its plan, the state of every commit is made of
  all rows up to its position, each once, and of nobody else's results;
- event time: see event_time; when a leader has come to the end of the input, no timer is open;
- the sink shows a prefix of the committed epochs, each once, with no row lost or doubled between them;
- nothing that a retained or pinned commit needs is deleted, and no record above the floor; the floor never
  falls and stays below every retained and pinned commit;
- the leader of the newest term is never stopped by an older one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from holdfast.checkpoint.chain.retention import record_objects
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, fold, rewound
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import unseal
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    PlannedWatermark,
    PlanRecord,
    SnapshotFile,
)
from holdfast.connectors.contract import Mark
from holdfast.errors import DefinitionError, HoldfastError, Unavailable
from holdfast.runtime.epoch.committer import COMMITS_IN_FLIGHT
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Put
from tests.sim.event_time import (
    GROUP_COUNT,
    SINK,
    SOURCE,
    Content,
    Shown,
    State,
    Violation,
    check_time,
    mark_of,
    read,
)
from tests.sim.scheduler import Scheduler
from tests.sim.threads import LIMIT_EPOCHS


@dataclass
class World:
    """Everything that exists, and everything that happened."""

    scheduler: Scheduler
    chance: random.Random
    fault_chance: float = 0.0
    linger_chance: float = 0.0
    objects: dict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """By the first part of the name, so that a listing looks at few."""
    late: list[tuple[int, str, bytes]] = field(default_factory=list)
    chain: list[CommitRecord] = field(default_factory=list)
    views: dict[int, CheckpointView] = field(default_factory=lambda: {0: EMPTY})
    needs: dict[int, frozenset[str]] = field(default_factory=lambda: {0: frozenset()})
    line: list[State] = field(default_factory=lambda: [State()])
    """By epoch: the history that holds now."""
    lines: dict[int, tuple[State, ...]] = field(default_factory=lambda: {0: (State(),)})
    """By commit: the history that held then."""
    committed: dict[int, Shown] = field(default_factory=dict)
    judged: dict[int, PlannedWatermark] = field(default_factory=dict)
    """Epoch -> its event time when it was last committed, in a record that is not lost."""
    first: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Epoch -> the files for the sink that the first commit of it has named."""
    shown: list[Shown] = field(default_factory=list)
    available: int = 0
    """How many rows the source has."""
    away_until: int = 0
    """Up to which step the sink is not there."""
    refuses_until: int = 0
    """Up to which step the sink refuses what it is given."""
    mark: Mark = field(default_factory=lambda: Mark(0))
    """What the sink remembers."""
    floor: int = 0
    terms: dict[int, str] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    story: list[tuple[int, str, str, str]] = field(default_factory=list)

    # What storage does.

    def objects_in(self, name: str) -> dict[str, bytes]:
        """The objects beside `name`."""
        return self.objects[name.partition("/")[0]]

    def create(self, name: str, data: bytes) -> Put:
        beside = self.objects_in(name)
        if name in beside:
            return Put.EXISTS
        beside[name] = data
        if name.startswith(names.COMMITS):
            if (names.number_of(name) or 0) <= self.floor:
                self.seen["retired number used again"] += 1
            else:
                self._grow(unseal("commit", CommitRecord, data, name), checksum(data))
        elif name.startswith(names.FLOORS):
            self._raise_floor(names.number_of(name) or 0)
        return Put.CREATED

    def remove(self, name: str) -> None:
        there = self.objects_in(name).pop(name, None)
        if there is None:
            return
        if name.startswith((names.DATA, names.SNAPSHOTS)):
            self.seen["object retired"] += 1
            for number in self._kept():
                if name in self.needs[number]:
                    raise Violation(f"commit {number} is {self._why_kept(number)}, but {name} is gone")
        elif name.startswith(names.COMMITS):
            self._check_used_up(name)
        elif name.startswith(names.FLOORS) and names.number_of(name) == self.floor:
            raise Violation(f"the floor falls: {name} was the highest, but is deleted")

    def land_later(self, delay: int, name: str, data: bytes) -> None:
        self.late.append((self.scheduler.steps + delay, name, data))

    def land(self) -> None:
        """Let the writes happen whose time has come."""
        due = [write for write in self.late if write[0] <= self.scheduler.steps]
        for write in due:
            self.late.remove(write)
            self.seen["late write"] += self.create(write[1], write[2]) is Put.CREATED

    # What processes tell.

    def tell(self, what: str) -> None:
        self.story.append((self.scheduler.steps, self.scheduler.process.name, what, ""))

    def told(self) -> list[str]:
        """The story so far, a line for each thing that happened."""
        return [f"{step:5d} {who:5s} {what} {name}".rstrip() for step, who, what, name in self.story]

    def claimed(self, term: int, run: str) -> None:
        if term in self.terms:
            raise Violation(f"term {term} is held by {self.terms[term]} and by {run}")
        self.terms[term] = run
        self.seen["takeover"] += len(self.terms) > 1

    def believed(self, view: CheckpointView, run: str) -> None:
        """A leader was told that this is in the chain."""
        if view.number >= len(self.views) or self.views[view.number].checksum != view.checksum:
            raise Violation(f"{run} takes commit {view.number} for its own, but the chain has another")

    def stopped(self, term: int, error: HoldfastError) -> None:
        """A leader gave up for ever. It may, once there is a newer one."""
        newest = max(names.number_of(name) or 0 for name in self.objects_in(names.TERMS))
        if newest <= term:
            raise Violation(f"the leader of term {term} stops, though it is the newest: {error}")

    def lose_newest(self) -> None:
        """The newest commit record is gone, as after damage or from an older copy. What sinks show stays."""
        if len(self.chain) < 2 or self.chain[-1].rewind_to is not None:
            return
        if self._would_be_in_doubt(len(self.chain)):
            return
        lost = self.chain.pop().number
        del self.objects_in(names.COMMITS)[names.commit(lost)]
        for known in (self.views, self.needs, self.lines):
            del known[lost]  # type: ignore[attr-defined]
        self.line = list(self.lines[lost - 1])
        for epoch in range(max(len(self.line), len(self.shown) + 1), max(self.judged, default=0) + 1):
            del self.judged[epoch]
        settled = self.views[lost - 1].settled.through.get(SINK, 0)
        self.first = {epoch: files for epoch, files in self.first.items() if epoch <= settled}
        self.seen["newest commit lost"] += 1
        self.seen["sink ahead of the chain"] += len(self.shown) > self.views[lost - 1].last_epoch
        self.tell(f"finds commit {lost} lost")

    def _would_be_in_doubt(self, lost: int) -> bool:
        """Whether the sink shows epochs of a commit that have several plans, and it does not name the one:
        it does of the last that it shows. Such a replay is refused, and a person has to decide."""
        told = range(self.views[lost - 1].last_epoch + 1, len(self.shown))
        plans = self.objects_in(names.PLANS)
        return any(sum(name.startswith(names.plans_of(epoch)) for name in plans) > 1 for epoch in told)

    def reach_sink(self, away_chance: float) -> None:
        """Somebody asks the sink for something. Unavailable: it is not there for now."""
        if self.away_until <= self.scheduler.steps and self.chance.random() < away_chance:
            self.away_until = self.scheduler.steps + self.chance.choice((10, 40, 120))
            self.tell("finds that the sink is not there")
            self.seen["sink not there"] += 1
        if self.scheduler.steps < self.away_until:
            raise Unavailable("injected: the sink is not there")

    def offer(self, refuse_chance: float) -> None:
        """The sink is given an epoch. DefinitionError: it refuses it for now."""
        takes = bool(refuse_chance) and self.refuses_until <= self.scheduler.steps
        if takes and self.chance.random() < refuse_chance:
            self.refuses_until = self.scheduler.steps + self.chance.choice((10, 60, 200))
            self.tell("finds that the sink refuses")
            self.seen["sink that refuses"] += 1
        if self.scheduler.steps < self.refuses_until:
            raise DefinitionError("injected: the sink refuses; mend it")

    def check_backlog(self, committed: int) -> None:
        """A leader that has committed so many epochs plans another one."""
        if committed - len(self.shown) > LIMIT_EPOCHS + COMMITS_IN_FLIGHT:
            raise Violation(f"{committed - len(self.shown)} epochs wait for the sink, and more is planned")

    def check_first(self, epoch: int, files: list[str]) -> None:
        """The sink is given these files."""
        if sorted(files) != sorted(self.first.get(epoch, ())) and not self._are_same(epoch, files):
            raise Violation(f"the sink was given {files} for epoch {epoch}, the first commit named others")

    def _are_same(self, epoch: int, files: list[str]) -> bool:
        """Whether these are as good as the files that the first commit of the epoch has named."""
        return False

    def show(self, epoch: int, given: Shown, input: str) -> None:
        """The sink's one atomic step: an epoch already shown is left alone."""
        if epoch <= len(self.shown):
            self.seen["epoch offered to the sink again"] += 1
            if self.shown[epoch - 1] != given:
                shown = self.shown[epoch - 1]
                raise Violation(f"the sink shows rows {shown} for epoch {epoch} and was given {given}")
            return
        if epoch != len(self.shown) + 1:
            raise Violation(f"the sink shows {len(self.shown)} epochs and was given epoch {epoch}")
        if self.committed.get(epoch) != given:
            raise Violation(f"the sink was given rows {given} of epoch {epoch}, which was never committed so")
        if given[0][0] != (self.shown[-1][0][1] if self.shown else 0):
            raise Violation(f"the sink shows rows up to {self.shown[-1:]} and was given {given}")
        self.shown.append(given)
        self.mark = Mark(epoch, input)

    def ended(self, view: CheckpointView) -> None:
        """A leader has come to the end of the input, with this commit as its last."""
        if view.number != len(self.chain) or self.line[-1].through != self.available:
            return  # others have gone on, or there is more by now
        self.seen["end of the input"] += 1
        if left := sorted(self.line[-1].open):
            raise Violation(f"the input has ended, and the timer of row {left[0]} is still open")

    def pin(self, name: str, commit: int) -> None:
        """Somebody was promised this commit."""
        self.pinned[name] = commit
        missing = [o for o in self.needs[commit] if o not in self.objects_in(o)]
        if commit <= self.floor or missing:
            raise Violation(f"commit {commit} was pinned, but {(missing or ['its record'])[0]} is gone")

    # What must hold.

    def check_whole(self) -> None:
        """At the end: the sink shows everything, and what is retained or pinned has all its files."""
        if len(self.shown) < len(self.line) - 1:
            raise Violation(f"{len(self.line) - 1} epochs are committed, the sink shows {len(self.shown)}")
        for number in self._kept():
            missing = sorted(o for o in self.needs[number] if o not in self.objects_in(o))
            if missing:
                raise Violation(f"commit {number} is {self._why_kept(number)}, but {missing[0]} is gone")

    def _kept(self) -> set[int]:
        first = self.chain[-1].retained_from if self.chain else 1
        return {*range(first, len(self.chain) + 1), *self.pinned.values()}

    def _why_kept(self, number: int) -> str:
        return "pinned" if number in self.pinned.values() else "retained"

    def _raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        self.seen["floor raised"] += 1
        lost = [number for number in self._kept() if number <= self.floor]
        if lost:
            raise Violation(f"commit {lost[0]} is {self._why_kept(lost[0])}, but the floor is {self.floor}")

    def _check_used_up(self, name: str) -> None:
        if (names.number_of(name) or 0) > self.floor:
            raise Violation(f"{name} is above the floor {self.floor}, but is deleted")

    def _grow(self, record: CommitRecord, stored: str) -> None:
        last = self.views[len(self.chain)]
        if record.number != last.number + 1 or record.parent.checksum != last.checksum:
            raise Violation(f"commit {record.number} does not follow commit {last.number}")
        if record.term < last.term:
            raise Violation(f"commit {record.number} of term {record.term} follows one of term {last.term}")
        if record.rewind_to is not None:
            self.seen["rewind"] += 1
            last = rewound(last.head, self.views[record.rewind_to])
            self.line = list(self.lines[record.rewind_to])
        if record.first_epoch != last.last_epoch + 1:
            raise Violation(
                f"commit {record.number} repeats or skips epochs: it starts at {record.first_epoch}"
            )
        missing = sorted(o for o in record_objects(record) if o not in self.objects_in(o))
        if missing:
            raise Violation(f"commit {record.number} names {missing[0]}, which is not there")
        for epoch in range(record.first_epoch, record.last_epoch + 1):
            self._extend(record, epoch, [delta for delta in record.deltas if delta.version.epoch == epoch])
        self._check_position(record)
        self._check_snapshots(record)
        self.seen["commit"] += 1
        self.seen["commit of several epochs"] += record.last_epoch > record.first_epoch
        self.seen["commit by a superseded leader"] += record.term < max(self.terms, default=0)
        self.seen["plan attempt after the first"] += any(a > 1 for a in record.attempts.values())
        self.chain.append(record)
        self._settle(record)
        view = self.views[record.number] = fold(last, record, stored)
        self.needs[record.number] = frozenset(view.objects())
        self.lines[record.number] = tuple(self.line)

    def _settle(self, record: CommitRecord) -> None:
        """The first commit of an epoch says what the sink is given."""
        for epoch in range(record.first_epoch, record.last_epoch + 1):
            files = tuple(file.extent.object for file in record.staged if file.epoch == epoch)
            self.seen["epoch whose output was settled"] += epoch in self.first
            self.first.setdefault(epoch, files)

    def _check_position(self, record: CommitRecord) -> None:
        """A commit is at the position that its epochs have read to."""
        at = record.positions.get(SOURCE, 0)
        if len(self.line) != record.last_epoch + 1 or at != self.line[-1].through:
            raise Violation(f"commit {record.number} is at {record.positions}, its state at {self.line[-1]}")

    def _extend(self, record: CommitRecord, epoch: int, deltas: list[DeltaFile]) -> None:
        """An epoch of a commit: by its plan, from the state before."""
        before, name = self.line[-1], names.plan(epoch, record.attempts[str(epoch)])
        plan = self._planned(name)
        part = plan.slices.get(SOURCE)
        rows = (part.start or 0, part.end) if part is not None else (before.through, before.through)
        versions, fired, newest = dict(before.versions), set[int](), before.newest_us
        fresh = False
        for delta in deltas:
            content = Content.of(self.objects_in(delta.extent.object)[delta.extent.object])
            if content.rows != rows:
                raise Violation(f"epoch {epoch} has rows {content.rows}, its plan is another")
            self._check_parent(before, delta)
            groups = range(delta.first_group, delta.end_group)
            versions.update(dict.fromkeys(groups, (delta.version, (delta.first_group, delta.end_group))))
            fired, fresh = fired | set(content.fired), content.fresh
            newest = max((at for at in (newest, content.newest_us) if at is not None), default=None)
        covered = sorted(g for delta in deltas for g in range(delta.first_group, delta.end_group))
        if part is not None and covered != list(range(GROUP_COUNT)):
            raise Violation(f"epoch {epoch} has rows, and results of the key groups {covered} alone")
        if rows[0] != before.through:
            raise Violation(f"commit {record.number} loses or doubles rows: {rows} after {before.through}")
        given = rows, tuple(sorted(fired))
        if epoch <= len(self.shown) and self.shown[epoch - 1] != given:
            raise Violation(f"epoch {epoch} has rows {given}, the sink shows {self.shown[epoch - 1]} for it")
        check_time(before, plan, rows, fired, self.judged.get(epoch), fresh)
        self._count(plan, before, rows)
        self.line.append(
            State(
                through=rows[1],
                open=(before.open | set(read(rows))) - fired,
                watermark_us=mark_of(plan).now_us,
                newest_us=newest,
                closed_through=epoch if plan.closing else before.closed_through,
                closed_at=rows[1] if plan.closing else before.closed_at,
                versions=versions,
            )
        )
        self.committed[epoch], self.judged[epoch] = given, mark_of(plan)

    def _planned(self, name: str) -> PlanRecord:
        return unseal("plan", PlanRecord, self.objects_in(name).get(name, b""), name)

    def _check_parent(self, before: State, delta: DeltaFile) -> None:
        """A result follows the state before it. Across a rescaling only the epochs can tell."""
        for group in range(delta.first_group, delta.end_group):
            version, of = before.versions[group]
            same = of == (delta.first_group, delta.end_group)
            if delta.parent != version if same else delta.parent.epoch < version.epoch:
                raise Violation(
                    f"epoch {delta.version.epoch} was made from {delta.parent}, the state is {version}"
                )
            self.seen["state of another parallelism"] += not same

    def _count(self, plan: PlanRecord, before: State, rows: tuple[int, int]) -> None:
        self.seen["epoch without rows"] += not plan.slices
        self.seen["epoch that closes"] += plan.closing
        self.seen["rows after the input had ended"] += before.closed_at >= 0 and rows[1] > before.through
        self.seen["epoch judged as before"] += plan.epoch in self.judged and plan.attempt > 1

    def _check_snapshots(self, record: CommitRecord) -> None:
        for file in record.snapshots:
            self.seen["snapshot"] += 1
            content = Content.of(self.objects_in(file.object)[file.object])
            if not self._fits(file, content):
                raise Violation(f"commit {record.number} names {file.object}, a snapshot of another state")

    def _fits(self, file: SnapshotFile, content: Content) -> bool:
        held, groups = self.line[file.version.epoch], range(file.first_group, file.end_group)
        if (content.rows[1], content.open) != (held.through, held.open_in(groups)):
            return False
        # State that was put together from files of another parallelism has a name of its own.
        named = file.version.result.startswith("merged-")
        return named or all(held.versions[group][0] == file.version for group in groups)
