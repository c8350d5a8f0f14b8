"""The simulated world of a job in parts: the checkpoints of its parts, what is in the channels, barriers.

On top of what holds for every part as for a job of its own (see `tests.sim.world`):

- what is in a channel of an epoch is what the first commit of that epoch has put there, whatever was computed
  again later; a reader reads that, in order, each row once, and nothing that is not committed;
- an epoch of a channel is replaced only if it is damaged, and no commit of its reader has read any of it;
- nothing is let go, and nothing deleted, that a retained commit of the part after it can still read; where a
  job was without a channel for a while, no part that has read it before reads on behind the gap;
- a channel is taken for ended only while no leader of the part before it may read more;
- the commits of a complete barrier are a consistent cut: what a part has read of a channel there is what the
  part before it had sent;
- a job that is stopped with a savepoint has gone no further than that, whichever leaders died meanwhile;
- a part that saves no state has none in storage, and every window that it closes has all its rows;
- the members of a part that a set of replicas leads come to the same results, and a term is held by one set.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.chain.barriers import BARRIERS_RETAINED, BarrierEndRecord
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    JobRecord,
    PlannedSlice,
    PlanRecord,
)
from holdfast.connectors.contract import Mark
from holdfast.errors import HoldfastError, InputVanished
from holdfast.runtime.parts.channel_source import Position
from holdfast.storage.contract import Put
from tests.sim.event_time import Rows, Violation
from tests.sim.parts.contents import CLOSED, Content, PartState, Sent
from tests.sim.parts.shapes import SOURCE, Shape
from tests.sim.scheduler import Process, Scheduler
from tests.sim.storage import SimStorage
from tests.sim.world import World


@dataclass
class PartWorld(World):
    """The checkpoint of one part, and its sink."""

    part: str = ""
    job: Any = None
    line: list[Any] = field(default_factory=lambda: [PartState()])
    lines: dict[int, Any] = field(default_factory=lambda: {0: (PartState(),)})
    sent: dict[str, dict[int, tuple[Sent, ...]]] = field(default_factory=lambda: defaultdict(dict))
    """Channel -> epoch -> its files, by the first commit of the epoch."""
    lost: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Channel -> epochs that are to be computed again."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Channel -> the newest epoch that was given up, or not sent, because the job was without it."""
    spoiled: dict[str, bytes] = field(default_factory=dict)
    """What is damaged, as it was."""
    endings: list[tuple[int, int | None, int]] = field(default_factory=list)
    """When it had come to its end: from a step, to a step (None: still), with this commit as the last."""
    newest: int = 0
    """The newest commit when one was lost."""
    unpinned: int = 0
    """The newest commit when a pin was removed."""
    members: int = 1
    """Of the set that leads it."""
    vote: bool = False
    contents: dict[int, list[bytes]] = field(default_factory=dict)
    """Of a part with replicas: epoch -> what is in the files for the sink that its first commit has named."""
    is_stopped: bool = False
    """It has ended because the job is stopped, and nobody starts it before that is over."""
    swept: CheckpointView | None = None
    """After the newest commit that was followed by a sweep which nothing disturbed."""

    def create(self, name: str, data: bytes) -> Put:
        done = super().create(name, data)
        if name.startswith((names.COMMITS, names.TERMS, names.ENDED)):
            self._note_ending()
        return done

    def remove(self, name: str) -> None:
        super().remove(name)
        if name.startswith(names.DATA):
            for uid in self.job.shape.leaving(self.part):
                self._check_unread(uid, name)
        if name.startswith(names.PINS):
            self.unpinned = len(self.chain)

    def show(self, epoch: int, given: Any, input: str) -> None:
        """The sink's one atomic step: an epoch already shown is left alone."""
        if epoch <= len(self.shown):
            if self.shown[epoch - 1] != given:
                raise Violation(f"the sink shows {self.shown[epoch - 1]} for epoch {epoch}, is given {given}")
            return
        if epoch != len(self.shown) + 1:
            raise Violation(f"the sink shows {len(self.shown)} epochs and was given epoch {epoch}")
        if self.committed.get(epoch) != given:
            raise Violation(f"the sink was given {given} of epoch {epoch}, which was never committed so")
        self.shown.append(given)
        self.mark = Mark(epoch, input)

    def lose_newest(self) -> None:
        """Only of a part that no other reads: what is in channels would be computed to other bytes. One after
        the other, for what is let go of goes by the commit before the newest."""
        self.newest = max(self.newest, len(self.chain))
        told = self.chain and (self.chain[-1].barrier or self.chain[-1].ended)
        if not told and len(self.chain) == self.newest and not self.job.shape.leaving(self.part):
            super().lose_newest()

    def spoil(self) -> None:
        """A file in a channel is damaged: one that no sink is to be given."""
        view = self.views[len(self.chain)]
        staged = {file.extent.object for file in view.staged}
        found = {file.extent.object for channel in view.channels.values() for file in channel.files}
        there = sorted(found - staged - self.spoiled.keys())
        if there:
            name = self.chance.choice(there[-4:])
            self.job.spoils = True
            self.spoiled[name] = self.objects["data"][name]
            self.objects["data"][name] = b"damaged"
            self.tell(f"{name} is damaged")

    def put_back(self) -> None:
        """What is damaged is restored from a copy."""
        if not self.spoiled:
            return
        for name, data in self.spoiled.items():
            if name in self.objects["data"]:
                self.objects["data"][name] = data
        self.spoiled.clear()
        self.tell("damaged files are restored from a copy")

    def claimed(self, term: int, run: str) -> None:
        if self.members == 1 or self.terms.setdefault(term, run) != run:
            super().claimed(term, run)

    def diverged(self, seat: int, what: str) -> None:
        raise Violation(f"member {seat} of part {self.part} has come to other results: {what}")

    def stopped(self, term: int, error: HoldfastError, replaced: bool = False) -> None:
        """A leader may also give up whose channel the job was without for a while, or whose seat in a set of
        replicas another process has."""
        if replaced:
            return
        links = [self.job.shape.links[uid] for uid in self.job.shape.inputs[self.part] if uid != SOURCE]
        if any(self.job.parts[link.before].gaps for link in links):
            self.seen["reader told of a gap"] += isinstance(error, InputVanished)
            return
        super().stopped(term, error)

    def told_ended(self, uid: str, at: Position, since: int) -> None:
        """The part after a channel takes it for ended, after a look that began at step `since`."""
        for began, over, commit in self.endings:
            if uid not in self.views[commit].channels:
                return  # its job is without it, and would not run that part
            through = self.views[commit].channels[uid].through
            if (over is None or over >= since) and began <= self.scheduler.steps and through <= at.epoch:
                self.seen["channel that has ended"] += 1
                return
        raise Violation(f"channel {uid} was taken for ended at {at}, and part {self.part} may read more")

    def handed_on(self, uid: str, commit: int) -> int:
        """The last row that was in a channel at a commit, by the state there."""
        state = self.lines[commit][-1]
        return self.job.shape.links[uid].handed_on(state.through.get(self.job.shape.inputs[self.part][0], 0))

    def kept_positions(self, uid: str) -> list[Position]:
        """How far a channel into this part is read by each commit that it can go back to."""
        first = self.chain[-1].retained_from if self.chain else 0
        return [
            Position.of(self.views[number].positions.get(uid)) for number in range(first, len(self.chain) + 1)
        ]

    # What must hold.

    def check_deleted(self) -> None:
        """At the end: what was released, and is given up, is gone."""
        if self.swept is None or self.objects["pins"] or self.swept.number <= self.unpinned:
            return  # a pin was in the way of the last sweep
        kept = range(self.swept.given_up_below, len(self.chain) + 1)
        needed = set().union(*(self.needs[number] for number in kept))
        through = min(self.views[number].last_epoch for number in kept)
        for uid, epochs in self.sent.items():
            for epoch, files in epochs.items():
                for file in files:
                    self.seen["released file looked for"] += epoch <= through and file.object not in needed
                    if (
                        epoch <= through
                        and file.object not in needed
                        and file.object in self.objects_in("data/")
                    ):
                        raise Violation(f"{file.object} of channel {uid} is released and given up, but there")

    def _grow(self, record: CommitRecord, stored: str) -> None:
        self._lose(record)
        self._give_up(record)
        super()._grow(record, stored)
        view = self.views[record.number]
        self.seen["barrier carried"] += record.barrier > 0
        self.seen["state read again"] += record.rewind_to is not None and record.whole_after > 0
        self.seen["barrier carried without an epoch"] += (
            record.barrier > 0 and record.last_epoch < record.first_epoch
        )
        self._check_retained(record)
        if self.job.is_calm and record.last_epoch >= record.first_epoch:
            self.swept = view
        for uid, link in self.job.shape.leaving(self.part).items():
            channel = view.channels.get(uid)
            if channel is None:
                continue
            self._check_channel(uid, view)
            if record.barrier and view.last_epoch != channel.through:
                raise Violation(
                    f"barrier {record.barrier} falls after epoch {view.last_epoch} of channel {uid}, which "
                    f"goes up to {channel.through}: who has read on never comes to it"
                )
            after = self.job.parts[link.after]
            furthest_back = min(after.kept_positions(uid))
            if channel.released > max(furthest_back.epoch, self.gaps.get(uid, 0)):
                raise Violation(
                    f"commit {record.number} lets go of channel {uid} up to {channel.released}, and part "
                    f"{link.after} can go back to {furthest_back}"
                )
            self.seen["epochs released"] += channel.released > 0

    def _settle(self, record: CommitRecord) -> None:
        before = set(self.first)
        super()._settle(record)
        for epoch in self.first.keys() - before if self.members > 1 else ():
            self.contents[epoch] = self._read(self.first[epoch])

    def _are_same(self, epoch: int, files: list[str]) -> bool:
        """A member shows its own files, whose content is that of those that were committed."""
        return epoch in self.contents and self._read(files) == self.contents[epoch]

    def _read(self, files: Collection[str]) -> list[bytes]:
        return sorted(self.objects_in(name)[name] for name in files)

    def _give_up(self, record: CommitRecord) -> None:
        """What is in a channel that a commit names no more."""
        for uid in self.views[len(self.chain)].channels.keys() - (record.channels or {}).keys():
            if record.channels is None:
                continue
            if not self.job.removes:
                raise Violation(f"commit {record.number} has channel {uid} no more")
            self.seen["channel given up"] += 1
            self._go_without(uid, record.last_epoch)

    def _go_without(self, uid: str, epoch: int) -> None:
        self.sent[uid].setdefault(epoch, ())
        self.gaps[uid] = epoch

    def _lose(self, record: CommitRecord) -> None:
        self.seen["epoch asked for again"] += bool(record.asks)
        for uid, state in (record.channels or {}).items():
            for epoch in state.lost:
                after = self.job.parts[self.job.shape.links[uid].after]
                read = max(Position.of(view.positions.get(uid)) for view in after.views.values())
                if read.newest >= epoch:
                    raise Violation(f"epoch {epoch} of channel {uid} is replaced, and was read up to {read}")
                files = self.sent[uid][epoch]
                # It may have been restored since that was looked at.
                self.seen["epoch replaced"] += any(file.object in self.spoiled for file in files)
                self.sent[uid][epoch] = ()
                self.lost[uid].add(epoch)

    def _check_retained(self, record: CommitRecord) -> None:
        """Where barriers come by themselves, the newest complete ones can be gone back to, unless a part had
        come to its end and begun again while they were on their way."""
        for ended in self.job.complete[-BARRIERS_RETAINED:] if self.job.interval else ():
            commit = ended.commits[self.part]
            carried = self.chain[commit - 1].barrier == ended.number
            if record.retained_from > commit and carried:
                raise Violation(
                    f"commit {record.number} gives up what is before {record.retained_from}, and barrier "
                    f"{ended.number} of the whole job is in commit {commit}"
                )

    def _check_channel(self, uid: str, view: CheckpointView) -> None:
        channel, known = view.channels[uid], self.sent[uid]
        gone = max(channel.released, self.gaps.get(uid, 0))
        wanted = [file.object for epoch in sorted(known) if epoch > gone for file in known[epoch]]
        found = [file.extent.object for file in channel.files]
        if found != wanted or channel.through != max(known, default=0):
            raise Violation(
                f"commit {view.number} has {found} in channel {uid} up to epoch {channel.through}, the first "
                f"commits of its epochs had {wanted}"
            )

    def _check_unread(self, uid: str, name: str) -> None:
        after, end = self.job.parts[self.job.shape.links[uid].after], Position(max(self.sent[uid], default=0))
        for at in after.kept_positions(uid):
            if name in [file.object for file in self._between(uid, at, end, self.gaps.get(uid, 0))]:
                raise Violation(f"{name} of channel {uid} is gone, and part {after.part} can go back to {at}")

    def _between(self, uid: str, start: Position, end: Position, gone: int = 0) -> list[Sent]:
        """What is in a channel between two positions, where the epochs up to `gone` were given up."""
        known = {epoch: files for epoch, files in self.sent[uid].items() if epoch > gone}
        found = [file for epoch in sorted(known) if start.epoch < epoch <= end.epoch for file in known[epoch]]
        found += known.get(end.epoch + 1, ())[: end.files]
        return found[start.files if start.newest > gone else 0 :]

    def _check_position(self, record: CommitRecord) -> None:
        state = self.line[-1]
        for uid in self.job.shape.inputs[self.part]:
            at, wanted = record.positions.get(uid), state.positions.get(uid)
            if len(self.line) != record.last_epoch + 1 or _plain(at) != _plain(wanted):
                raise Violation(f"commit {record.number} is at {record.positions}, its state at {state}")

    def _extend(self, record: CommitRecord, epoch: int, deltas: list[DeltaFile]) -> None:
        before, name = self.line[-1], names.plan(epoch, record.attempts[str(epoch)])
        plan = unseal("plan", PlanRecord, self.objects_in(name).get(name, b""), name)
        through, positions, read = dict(before.through), dict(before.positions), dict[str, Rows]()
        for uid, part in sorted(plan.slices.items()):
            read[uid] = self._rows_of(uid, part, through.get(uid, 0))
            through[uid], positions[uid] = read[uid][1], part.end
        if self.part in self.job.shape.windows:
            self._extend_windows(record, epoch, PartState(through, positions))
            return
        (delta,) = deltas
        content = Content.of(self.objects_in(delta.extent.object)[delta.extent.object])
        if content.through != through or delta.parent != before.version:
            raise Violation(f"epoch {epoch} leaves state {content.through}, its plan is {plan.slices}")
        given = tuple(sorted(read.items()))
        if epoch <= len(self.shown) and self.shown[epoch - 1] != given:
            raise Violation(f"epoch {epoch} has rows {given}, the sink shows {self.shown[epoch - 1]} for it")
        self.committed[epoch] = given
        self.line.append(PartState(through, positions, delta.version))
        self._note_sent(record, epoch, before, self.line[-1])

    def _extend_windows(self, record: CommitRecord, epoch: int, now: PartState) -> None:
        """Of a part that saves no state: the windows that an epoch closes are whole."""
        if record.deltas or record.snapshots:
            raise Violation(f"commit {record.number} names files of a state that is not to be saved")
        before, source, shape = self.line[-1], self.job.shape.inputs[self.part][0], self.job.shape
        first, last = (shape.closed(self.part, state.through.get(source, 0)) for state in (before, now))
        given = ((CLOSED, (first, last)),)
        if epoch <= len(self.shown) and self.shown[epoch - 1] != given:
            raise Violation(f"epoch {epoch} closes {given}, the sink shows {self.shown[epoch - 1]} for it")
        self.seen["epoch that closes windows"] += last > first
        self.seen["epoch whose rows are let go of"] += record.needs_from > 1
        self.committed[epoch] = given
        self.line.append(now)
        self._note_sent(record, epoch, before, now)

    def _note_sent(self, record: CommitRecord, epoch: int, before: PartState, now: PartState) -> None:
        source = self.job.shape.inputs[self.part][0]
        for uid, link in self.job.shape.leaving(self.part).items():
            if epoch in self.sent[uid] and epoch not in self.lost[uid]:
                self.seen["epoch computed again behind a channel"] += 1
                continue
            self.lost[uid].discard(epoch)
            if self.job.removes and uid not in (record.channels or {}):
                self._go_without(uid, epoch)
                continue
            named = sorted(
                (file for file in record.sent if (file.channel, file.epoch) == (uid, epoch)),
                key=lambda file: file.part,
            )
            files = [
                Sent(each.extent.object, Content.of(self.objects["data"][each.extent.object]).sent)
                for each in named
            ]
            at = link.handed_on(before.through.get(source, 0))
            for file in files:
                if file.rows[0] != at:
                    raise Violation(f"epoch {epoch} sends {files} into channel {uid}, which is at row {at}")
                at = file.rows[1]
            if at != link.handed_on(now.through.get(source, 0)):
                raise Violation(f"epoch {epoch} sends {files} into channel {uid}, and has read {now.through}")
            self.seen["epoch with nothing for a channel"] += not files
            self.sent[uid][epoch] = tuple(files)

    def _rows_of(self, uid: str, part: PlannedSlice, at: int) -> Rows:
        """The rows that a slice reads, after row `at`."""
        if uid == SOURCE:
            rows = (part.start or 0, part.end)
            if rows[0] != at:
                raise Violation(f"part {self.part} loses or doubles rows of its source: {rows} after {at}")
            return rows
        before = self.job.parts[self.job.shape.links[uid].before]
        start, end = Position.of(part.start), Position.of(part.end)
        if end.newest > max(before.sent[uid], default=0):
            raise Violation(f"part {self.part} reads channel {uid} up to {end}, which is not committed")
        wanted, found = before._between(uid, start, end), [file[0] for file in part.detail["files"]]
        if uid in before.gaps and found != [file.object for file in wanted]:
            # It was planned after the channel was there again.
            wanted = before._between(uid, start, end, before.gaps[uid])
        if found != [file.object for file in wanted]:
            raise Violation(f"part {self.part} reads {found} of channel {uid}, in it was {wanted}")
        if uid in before.gaps and not at and wanted:
            self.seen["part that begins behind a gap"] += 1
            at = wanted[0].rows[0]
        first = at
        for file in wanted:
            if file.rows[0] != at:
                raise Violation(f"part {self.part} loses or doubles rows of {uid}: {file} after {at}")
            at = file.rows[1]
        self.seen["part of an epoch read"] += start.files > 0 or end.files > 0
        return first, at

    def _note_ending(self) -> None:
        terms = [names.number_of(name) or 0 for name in self.objects["terms"]]
        over = bool(self.chain) and self.chain[-1].ended
        over = over and names.ended(max(terms, default=0)) in self.objects["ended"]
        last = self.endings[-1] if self.endings else None
        if last is not None and last[1] is None and not (over and last[2] == len(self.chain)):
            self.endings[-1] = (last[0], self.scheduler.steps, last[2])
            last = None
        if over and (last is None or last[1] is not None):
            self.endings.append((self.scheduler.steps, None, len(self.chain)))


@dataclass
class RootWorld(World):
    """What is above the checkpoints of the parts: barriers."""

    job: Any = None
    part: str = "root"

    def create(self, name: str, data: bytes) -> Put:
        beside = self.objects_in(name)
        if name in beside:
            return Put.EXISTS
        beside[name] = data
        if name.endswith("/ended"):
            ended = unseal("barrier", BarrierEndRecord, data, name)
            self.seen[f"barrier {ended.outcome}"] += 1
            if ended.outcome == "complete":
                self.job.check_cut(ended)
        return Put.CREATED


class JobWorld:
    """A job in parts: everything that exists of it, and everything that happened."""

    def __init__(
        self, shape: Shape, interval: float, scheduler: Scheduler, chance: random.Random, **chances: float
    ) -> None:
        """`interval`: of barriers that come by themselves, in seconds; 0: none do."""
        self.shape, self.interval, self.scheduler, self.chance = shape, interval, scheduler, chance
        self.complete: list[BarrierEndRecord] = []
        self.ghost_chance = 0.0
        self.is_calm, self.restarts = False, 0
        self.told_to_stop = False
        self.removes = False
        """Whether the job is without some of its channels now and then."""
        self.spoils = False
        """Whether files in channels are damaged now and then."""
        self.seen: Counter[str] = Counter()
        self.story: list[tuple[int, str, str, str]] = []
        shared: dict[str, Any] = {"seen": self.seen, "story": self.story, "job": self, **chances}
        self.parts = {
            name: PartWorld(scheduler, chance, part=name, members=shape.members.get(name, 1), **shared)
            for name in shape.parts
        }
        self.root = RootWorld(scheduler, chance, **shared)
        for name, world in self.parts.items():
            record = JobRecord(job=name, identity=name, key_groups=1, created_ms=0, written_by="sim")
            world.objects[names.JOB][names.JOB] = seal("job", record)

    @property
    def worlds(self) -> list[World]:
        return [*self.parts.values(), self.root]

    def storage(self, url: str) -> PartStorage:
        """What stands in for `open_storage`."""
        name = url.removeprefix("sim://").partition("/")[0]
        return PartStorage(self.parts.get(name, self.root), url)

    def told(self) -> list[str]:
        return self.root.told()

    def calm(self, scheduler: Scheduler) -> None:
        """Nothing fails any more, and what was on its way has arrived."""
        scheduler.steps = self.scheduler.steps
        self.scheduler, self.is_calm = scheduler, True
        self.start()
        self.story.append((scheduler.steps, "", "the storm is over", ""))
        for world in self.worlds:
            world.scheduler = scheduler
            world.fault_chance = world.linger_chance = 0.0
            for _, name, data in world.late:
                world.create(name, data)
            world.late = []

    def stop(self) -> None:
        """Tell the leaders of all parts, those who lead now and those who will."""
        self.told_to_stop = True

    def start(self) -> None:
        """Start what was stopped."""
        self.told_to_stop = False
        for world in self.parts.values():
            world.is_stopped = False

    def start_again(self, part: str, beside: Any) -> None:
        """A person starts a part that has ended, while the others go on."""
        self.restarts += 1
        name = f"{part}y{self.restarts}"
        self.scheduler.spawn(Process(name), type(beside)(self.parts[part], name, beside.parts, beside.habits))
        self.seen["part started again"] += 1
        self.scheduler.sleep(400)

    def check_stopped(self, commits: Mapping[str, int]) -> None:
        """The job was stopped with a savepoint of these commits."""
        for name, world in self.parts.items():
            saved, newest = world.views[commits[name]].last_epoch, world.views[len(world.chain)].last_epoch
            if max(newest, len(world.shown)) > saved:
                raise Violation(
                    f"the job was stopped with a savepoint, part {name} at epoch {saved}; it has gone on to "
                    f"epoch {newest}, and its sink shows epoch {len(world.shown)}"
                )
        self.seen["job stopped with a savepoint"] += 1

    def check_cut(self, ended: BarrierEndRecord) -> None:
        """The commits of a complete barrier."""
        for uid, link in self.shape.links.items():
            before, after = ended.commits[link.before], ended.commits[link.after]
            sent = self.parts[link.before].handed_on(uid, before)
            read = self.parts[link.after].lines[after][-1].through.get(uid, 0)
            if sent != read:
                raise Violation(
                    f"barrier {ended.number} is no consistent cut: part {link.before} had sent rows up to "
                    f"{sent} into {uid}, part {link.after} has read up to {read}"
                )
        self.complete.append(ended)
        self.seen["consistent cut with rows"] += any(
            world.lines[ended.commits[name]][-1].through for name, world in self.parts.items()
        )

    def check_end(self) -> None:
        """Everything has come through all parts."""
        for name, world in self.parts.items():
            for uid in self.shape.inputs[name]:
                read = world.line[-1].through.get(uid, 0)
                there = world.available
                if uid != SOURCE:
                    before = self.parts[self.shape.links[uid].before]
                    there = before.handed_on(uid, len(before.chain))
                if read != there:
                    raise Violation(f"part {name} has read {uid} up to row {read}, there are {there}")
            world.check_whole()
            world.check_deleted()


class PartStorage(SimStorage):
    """One process's way to the checkpoint of a part, or to the root of the job."""

    def put_new(self, name: str, data: bytes) -> Put:
        done, world = super().put_new(name, data), self.world
        taken = done is Put.EXISTS and name.startswith(names.COMMITS)
        if taken and world.chance.random() < world.job.ghost_chance:
            # As if the request had been sent several times, and some were still on their way.
            for delay in range(40, 400, 20):
                world.land_later(delay, name, data)
        return done

    def _call(self, verb: str, name: str) -> bool:
        return super()._call(f"{verb} {self.world.part}:", name)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
