"""Saves of a shard's keys while no epoch runs: what runs inside the tasks of the driver's small job.

It begins the saves that are due and waits for them. A shard whose working state is elsewhere, or not at the
version that the driver names, is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState, Version
from holdfast.state.files.key_books import SHARD_KEY, ShardBook
from holdfast.tasks.messages import UncoordinatedResult, as_batch, result_here
from holdfast.tasks.uncoordinated.due_saves import ShardSaves
from holdfast.tasks.uncoordinated.durable_saves import AckLog
from holdfast.tasks.uncoordinated.saver import Flight, SavedOperator, saver_of
from holdfast.tasks.working_state import Kept, attach_shard, shard_directory

WAIT_SECONDS = 1.0
"""How long a pass waits for its saves: rows that come meanwhile wait with it. What takes longer goes on."""
LAST_WAIT_SECONDS = 10.0
"""At the end of a run, or before the number of shards changes: how long it waits for any of them to end."""


@dataclass(frozen=True)
class PassTask:
    """Shards of one operator whose keys are to be saved, by shard number."""

    operator: SavedOperator
    now_ms: int
    shards: dict[int, tuple[KeyGroupRange, Version]]
    everything: bool
    """Not only what is due: all that is dirty."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                yield as_batch(result_here(shard, uncoordinated=self._of_shard(*self.shards[shard])))

    def _of_shard(self, groups: KeyGroupRange, version: Version) -> UncoordinatedResult | None:
        workspace, uid, lineage = self.operator.workspace, self.operator.uid, self.operator.lineage
        state = attach_shard(workspace, uid, lineage, groups, Kept.UNCOORDINATED)
        if state is None:
            return None
        with contextlib.closing(state):
            log = AckLog(shard_directory(workspace, uid, groups))
            return self._saved(state, log) if state.version == version else None

    def _saved(self, state: ShardState, log: AckLog) -> UncoordinatedResult | None:
        stored = state.get(SHARD_KEY)
        if stored is None:
            return None
        shard, saver = ShardBook.unpack(stored), saver_of(self.operator)
        saver.go_on()
        saves, flight = ShardSaves(self.operator, saver, log, state), saver.flight(log)
        taken = saves.taken(shard, self.now_ms)
        if self.everything:
            # A key whose save is under way is left out below, with what it has seen since.
            self._settled(flight)
        # As often as it takes where there is more than the pools have room for.
        while saves.begin(taken, saves.acks(shard)[0], everything=self.everything):
            if not self._settled(flight) or saver.has_failed() or not self.everything:
                break
        self._settled(flight)
        return saves.standing(shard)

    def _settled(self, flight: Flight) -> bool:
        """Whether all saves that are under way ended in time."""
        left = len(flight.under_way())
        while not flight.wait(LAST_WAIT_SECONDS if self.everything else WAIT_SECONDS):
            before, left = left, len(flight.under_way())
            if not self.everything or left >= before:
                return False
        return True
