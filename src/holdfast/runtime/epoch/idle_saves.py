"""Saves of keys while no epoch runs: dirty keys come due also when no rows come.

An epoch's task begins the saves that are due when it starts. While there is no input, and when a run ends,
the driver starts a small job instead, which begins them and waits for them.
Always true: no epoch runs beside a pass, so working state stands where the driver thinks; a shard whose
working state is elsewhere, or is not at that version, is left alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.clock import Clock
from holdfast.graph.uncoordinated import Uncoordinated
from holdfast.ids import KeyGroupRange
from holdfast.runtime.epoch.program import Program, first_line
from holdfast.runtime.placement import Placement
from holdfast.runtime.spark_session import describe_jobs
from holdfast.state.contract import ShardState, Version, attach_state
from holdfast.state.files.conversion import Lineage
from holdfast.state.files.save_books import SHARD_KEY, ShardBook
from holdfast.tasks.messages import (
    RESULT_SCHEMA,
    TaskResult,
    UncoordinatedResult,
    Workspace,
    as_batch,
    decode_result,
)
from holdfast.tasks.uncoordinated.ack_log import AckLog
from holdfast.tasks.uncoordinated.due_saves import begin_saves, standing_of, taken_at, valid
from holdfast.tasks.uncoordinated.saver import Flight, saver_of
from holdfast.tasks.working_state import Kept, shard_directory, state_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASS_SECONDS = 1.0
"""Passes are at least this far apart; twice as far after each that saved nothing."""
PASS_SECONDS_MAX = 32.0
WAIT_SECONDS = 1.0
"""How long a pass waits for its saves: rows that come meanwhile wait with it. What takes longer goes on."""
LAST_WAIT_SECONDS = 10.0
"""At the end of a run, or before the number of shards changes: how long it waits for any of them to end."""

Lines = Mapping[tuple[str, int], Line]
Results = dict[tuple[str, int], UncoordinatedResult]


@dataclass(frozen=True)
class PassTask:
    """Shards of one operator whose keys are to be saved, by shard number."""

    workspace: Workspace
    uid: str
    run: str
    term: int
    now_ms: int
    function: Any
    lineage: Lineage
    settings: Uncoordinated
    shards: dict[int, tuple[KeyGroupRange, Version]]
    everything: bool
    """Not only what is due: all that is dirty."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                groups, version = self.shards[shard]
                own = self._of_shard(groups, version)
                host, executor = socket.gethostname(), os.getcwd()
                yield as_batch(TaskResult(shard=shard, host=host, executor=executor, uncoordinated=own))

    def _of_shard(self, groups: KeyGroupRange, version: Version) -> UncoordinatedResult | None:
        directory = shard_directory(self.workspace, self.uid, groups)
        identity = state_identity(self.workspace, self.uid, groups, self.lineage, Kept.UNCOORDINATED)
        state = attach_state(directory, identity, backend=self.workspace.backend)
        if state is None:
            return None
        with contextlib.closing(state):
            return self._saved(state, AckLog(directory)) if state.version == version else None

    def _saved(self, state: ShardState, log: AckLog) -> UncoordinatedResult | None:
        stored = state.get(SHARD_KEY)
        if stored is None:
            return None
        shard, layout = ShardBook.unpack(stored), self.lineage.layout
        saver = saver_of(self.workspace.identity, self.uid, self.run, self.settings, self.function, layout)
        saver.go_on()
        taken = taken_at(state, shard, self.term, self.now_ms, layout.generation)
        schedule, flight = self.settings.schedule, saver.flight(log)
        if self.everything:
            # A key whose save is under way is left out below, with what it has seen since.
            self._settled(flight)
        # As often as it takes where there is more than the pools have room for.
        while begin_saves(
            saver, log, taken, layout, schedule, state,
            valid(log.read(shard.incarnation)[0], state), self.everything,
        ):  # fmt: skip
            if not self._settled(flight) or saver.has_failed() or not self.everything:
                break
        self._settled(flight)
        return standing_of(shard, state, log, saver, schedule)

    def _settled(self, flight: Flight) -> bool:
        """Whether all saves that are under way ended in time."""
        left = len(flight.under_way())
        while not flight.wait(LAST_WAIT_SECONDS if self.everything else WAIT_SECONDS):
            before, left = left, len(flight.under_way())
            if not self.everything or left >= before:
                return False
        return True


class SavingPasses:
    """Starts passes for the operators that need them. One thread, the driver's own."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        workspace: Workspace,
        placement: Placement,
        shards: int,
        term: int,
        run: str,
        clock: Clock,
    ) -> None:
        self._spark, self._program, self._workspace, self._placement = spark, program, workspace, placement
        self._shards, self._term, self._run, self._clock = shards, term, run, clock
        self._last, self._apart = clock.monotonic(), PASS_SECONDS

    def step(
        self, lines: Lines, standing: Results, now_ms: int, say: Any, *, everything: bool = False
    ) -> Results:
        """Save what is due, or all, of the shards that have dirty keys; gives how these stand now.

        `now_ms` is on the plans' clock. Nothing depends on a pass: what fails is told, and tried again.
        """
        if not everything and self._clock.monotonic() - self._last < self._apart:
            return {}
        wanted = [key for key, own in standing.items() if own.unsaved if everything or own.due_ms <= now_ms]
        if not wanted:
            return {}
        found: Results = {}
        for uid in sorted({uid for uid, _ in wanted}):
            shards = [shard for operator, shard in wanted if operator == uid]
            try:
                found |= self._run_one(uid, shards, lines, now_ms, everything)
            except Exception as failure:
                say(f"keys of {uid!r} could not be saved and will be tried again: {first_line(failure)}")
        saved = any(own.counts.saved for own in found.values())
        self._last = self._clock.monotonic()
        self._apart = PASS_SECONDS if saved else min(PASS_SECONDS_MAX, 2 * self._apart)
        return found

    def _run_one(self, uid: str, shards: list[int], lines: Lines, now_ms: int, everything: bool) -> Results:
        node = self._program.uncoordinated[uid]
        assert node.uncoordinated is not None
        task = PassTask(
            workspace=self._workspace,
            uid=uid,
            run=self._run,
            term=self._term,
            now_ms=now_ms,
            function=node.function,
            lineage=self._program.forms[uid].lineage,
            settings=node.uncoordinated,
            shards={shard: (lines[uid, shard].groups, _version(lines[uid, shard])) for shard in shards},
            everything=everything,
        )
        describe_jobs(self._spark, f"holdfast saves of keys of {uid}")
        rows = self._placement.shard_rows(self._shards, shards)
        results = [
            decode_result(bytes(row[0])) for row in rows.mapInArrow(partial(task), RESULT_SCHEMA).collect()
        ]
        return {
            (uid, result.shard): result.uncoordinated
            for result in results
            if result.uncoordinated is not None
        }


def _version(line: Line) -> Version:
    return Version(line.version.epoch, line.version.attempt, line.version.result)
