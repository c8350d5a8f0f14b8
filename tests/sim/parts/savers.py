"""Who takes savepoints of the whole job: the engine's own way from a barrier to pinned commits, and a reader
of what is pinned. It may die between any two steps, and another begins again. Or the whole job is stopped
with them, and started again after each."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.chain.history import History
from holdfast.errors import CorruptionError, HoldfastError, ObjectMissing
from holdfast.runtime.parts import job_savepoint
from tests.sim.event_time import Violation
from tests.sim.parts.job_world import JobWorld
from tests.sim.parts.part_leaders import JobClock
from tests.sim.scheduler import Crashed, Process


class Saver:
    """One process after another, each of which takes one savepoint. `seconds`: how long a barrier may take;
    `once`: until one is taken. `stops`: the job is stopped with each."""

    def __init__(
        self,
        job: JobWorld,
        name: str,
        savepoints: int,
        seconds: float,
        once: bool = False,
        stops: bool = False,
    ) -> None:
        self.job, self.name, self.savepoints, self.seconds = job, name, savepoints, seconds
        self.once, self.stops = once, stops
        self.taken = 0

    def __call__(self) -> None:
        scheduler = self.job.scheduler
        for number in range(self.savepoints):
            if scheduler.over:
                return
            scheduler.reborn(Process(f"{self.name}{number}"))
            try:
                self._take(f"{self.name}{number}")
            except Crashed:
                self.job.seen["saver that died"] += 1
            except HoldfastError as failure:
                self.job.root.tell(str(failure))
                self.job.seen["savepoint that failed"] += 1
                scheduler.sleep(20)
            self.job.start()
            if self.once and self.taken:
                return

    def _take(self, name: str) -> None:
        root: Any = self.job.storage("sim://root")
        parts: Any = {part: self.job.storage(f"sim://{part}") for part in self.job.parts}
        clock, channels = JobClock(self.job), self.job.shape.channels
        stop = self.job.stop if self.stops else None
        taken = job_savepoint._barrier(root, parts, channels, clock, name, self.seconds, stop)
        with taken as (number, commits):
            self.job.root.tell(f"barrier {number} is complete: {commits}")
            if self.job.chance.random() < 0.5:
                self.job.scheduler.sleep(40)
            for part, commit in commits.items():
                try:
                    view = History(parts[part]).view_at(commit)
                    if view.last_epoch and not view.needs_from:
                        parts[part].get(view.live_deltas("rows")[-1].extent.object)
                except (CorruptionError, ObjectMissing) as missing:
                    raise Violation(f"commit {commit} of part {part} is pinned, but {missing}") from missing
            if self.stops:
                self.job.check_stopped(commits)
            self.taken += 1
            self.job.seen["savepoint of the whole job"] += 1
