"""The operator of the simulated job, in one shard or in two: what Spark and its tasks would do.

Its state is the last row and the rows whose timers are open. Lines, deltas and the times that are due next
are the engine's own; what is in the files is the simulation's.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.checkpoint.chain.plans import input_of
from holdfast.checkpoint.chain.shard_lines import Line, extended, lines_of, rebased
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    Extent,
    PlanRecord,
    SnapshotFile,
    StagedFile,
)
from holdfast.errors import RetryableError
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.state.contract import NextDue, Version
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage
from tests.sim.event_time import (
    GROUP_COUNT,
    OPERATOR,
    SINK,
    SOURCE,
    Content,
    Violation,
    due,
    groups_of,
    mark_of,
    newest_of,
    next_due,
    read,
    rows_in,
)
from tests.sim.habits import Habits
from tests.sim.scheduler import Executor
from tests.sim.world import World


class Operator:
    """From one load of the checkpoint to the next."""

    def __init__(
        self, world: World, habits: Habits, storage: Storage, view: CheckpointView, shards: int, run: str
    ) -> None:
        self.world, self.habits, self.storage, self.run_name = world, habits, storage, run
        self.files, self.settled = 0, view.settled
        self.lines = lines_of(view, [OPERATOR], shard_ranges(GROUP_COUNT, shards))
        self.open: set[int] = set()
        self.through = self._restored(view)
        self.snapshots = Executor(world.scheduler, 1)
        self.snapshot: Any = None

    def close(self) -> None:
        self.snapshots.shutdown(wait=True, cancel_futures=True)

    def open_times(self) -> NextDue | None:
        """When there is something to do next, of all shards; None: not known."""
        each = [line.next_due for line in self.lines.values()]
        known = [due.event_us for due in each if due is not None and due.event_us is not None]
        return None if None in each else NextDue(event_us=min(known, default=None))

    def run(self, plan: PlanRecord, fresh: bool) -> EpochOutcome:
        """An epoch, as Spark would run it. `fresh`: see Content."""
        part = plan.slices.get(SOURCE)
        if part is not None and (part.start or 0) != self.through:
            raise Violation(f"{self.run_name} is at row {self.through}, its plan reads on from {part.start}")
        rows = self.through, self.through if part is None else part.end
        outcome = EpochOutcome(plan)
        newest = newest_of(rows) if self.world.chance.random() >= self.habits.unreported_chance else None
        done = Content(rows, newest_us=newest, fresh=fresh)
        for (_, shard), line in self.lines.items():
            # What is not known counts as due; what is not due is not looked at.
            looks = part is not None or line.next_due is None or self._is_due(line.next_due, plan)
            self._run_shard(outcome, shard, line, done, looks)
        self.through = rows[1]
        if part is not None and newest is not None:
            outcome.times = {SOURCE: {"": newest}}
        lines = extended(self.lines, outcome.deltas)
        assert lines is not None
        self.lines = lines
        return outcome

    def take_snapshots(self, epoch: int) -> list[SnapshotFile]:
        """Begin one, or take what is ready."""
        chance = self.world.chance
        if self.snapshot is None and chance.random() < self.habits.snapshot_chance:
            line = chance.choice(list(self.lines.values()))
            content = Content((0, self.through), open=rows_in(self.open, groups_of(line.groups)))
            self.snapshot = self.snapshots.submit(self._write_snapshot, epoch, line, content.encoded())
        elif self.snapshot is not None and self.snapshot.done() and chance.random() < 0.5:
            done, self.snapshot = self.snapshot, None
            try:
                file = done.result()
            except RetryableError:
                return []
            self.lines, used = rebased(self.lines, [file])
            return used
        return []

    def _restored(self, view: CheckpointView) -> int:
        """The state that the checkpoint names, read as tasks would."""
        for line in self.lines.values():
            for group in groups_of(line.groups):
                through = self._restored_group(line, group)
                if through != (view.positions.get(SOURCE) or 0):
                    raise Violation(f"key group {group} is at row {through}, the source at {view.positions}")
        return view.positions.get(SOURCE) or 0

    def _restored_group(self, line: Line, group: int) -> int:
        through, left = 0, set[int]()
        for snapshot in line.snapshots:
            if snapshot.first_group <= group < snapshot.end_group:
                held = Content.of(self.storage.get(snapshot.object))
                through, left = held.rows[1], set(rows_in(held.open, [group]))
        for delta in line.deltas:
            if delta.first_group <= group < delta.end_group:
                content = Content.of(read_extent(self.storage, delta.extent))
                if content.rows[0] != through:
                    raise Violation(f"state is at row {through}, the next delta begins at {content.rows[0]}")
                left = (left | set(rows_in(read(content.rows), [group]))) - set(content.fired)
                through = content.rows[1]
        self.open |= left
        return through

    def _is_due(self, known: NextDue, plan: PlanRecord) -> bool:
        now = mark_of(plan).now_us
        return known.event_us is not None and (plan.closing or (now is not None and known.event_us <= now))

    def _run_shard(self, outcome: EpochOutcome, shard: int, line: Line, done: Content, looks: bool) -> None:
        """One task: rows first, then what is due; a delta, and rows for the sink."""
        plan, groups = outcome.plan, groups_of(line.groups)
        fired: set[int] = set()
        if looks:
            own = set(rows_in({*self.open, *read(done.rows)}, groups))
            fired = due(own, plan)
            self.open = (self.open | own) - fired
        elif shard:
            return
        content = self._told(plan, replace(done, fired=tuple(sorted(fired)))).encoded()
        name = self._name(names.data_of(plan.epoch))
        self.storage.put(name, content)
        extent = Extent(object=name, offset=0, length=len(content), checksum=checksum(content))
        if looks:
            left = rows_in(self.open, groups)
            outcome.deltas.append(
                DeltaFile(
                    operator=OPERATOR, first_group=line.groups.first, end_group=line.groups.end,
                    version=Version(
                        epoch=plan.epoch, attempt=plan.attempt, result=self._result(line, extent)
                    ),
                    parent=line.version, extent=extent, entries=1, next_due=next_due(left),
                )
            )  # fmt: skip
        if self.settled.covers(SINK, plan.epoch):
            return
        outcome.staged.append(
            StagedFile(
                stream=SINK, epoch=plan.epoch, part=shard, extent=extent, rows=1, sinks=(SINK,),
                input=input_of(plan),
            )
        )  # fmt: skip

    def _told(self, plan: PlanRecord, content: Content) -> Content:
        """What a task leaves, in the end."""
        return content

    def _result(self, line: Line, extent: Extent) -> str:
        """Names what came of the state of a line."""
        return extent.object

    def _write_snapshot(self, epoch: int, line: Line, content: bytes) -> SnapshotFile:
        token, groups = self._name("").replace("-", "."), line.groups
        name = names.snapshot(epoch, OPERATOR, groups.first, groups.end, token, "sim")
        self.storage.put(name, content)
        return SnapshotFile(
            operator=OPERATOR, first_group=line.groups.first, end_group=line.groups.end, version=line.version,
            object=name, length=len(content), chunk_bytes=len(content), chunks=(checksum(content),),
            backend="sim",
        )  # fmt: skip

    def _name(self, directory: str) -> str:
        self.files += 1
        return f"{directory}{self.run_name}-{self.world.scheduler.steps}-{self.files}"
