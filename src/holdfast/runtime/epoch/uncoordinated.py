"""The driver's side of keys that are saved on their own: where shards stand, what was lost, saves while idle.

A shard's working copy has a name of its own (its incarnation). When another one is found where it was, the
copy is gone, and with it the events that were in no save: they are lost, and counted here.
An epoch's task begins the saves that are due when it starts. While there is no input, and when a run ends,
the driver starts a small job instead (see tasks.uncoordinated.saving_pass).
Always true: `lost` never shrinks, and is an upper bound: it is not known which saves became durable after the
copy was last heard of. No epoch runs beside a pass, so working state stands where the driver thinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace

from holdfast.checkpoint.chain.shard_lines import Lines
from holdfast.checkpoint.store.records import UncoordinatedShard
from holdfast.clock import Clock
from holdfast.errors import first_line
from holdfast.ids import KeyGroupRange
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.placement import Placement
from holdfast.runtime.spark_session import describe_jobs
from holdfast.state.contract import Version
from holdfast.storage.typed_json import learn
from holdfast.tasks.messages import (
    COUNTED,
    RESULT_SCHEMA,
    SaveCounts,
    UncoordinatedResult,
    Workspace,
    decode_result,
)
from holdfast.tasks.uncoordinated.saver import SavedOperator
from holdfast.tasks.uncoordinated.saving_pass import PassTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASS_SECONDS = 1.0
"""Passes are at least this far apart; twice as far after each that saved nothing."""
PASS_SECONDS_MAX = 32.0

Shard = tuple[str, int]
"""Operator uid and shard number."""
Results = dict[Shard, UncoordinatedResult]


class Ledger:
    """Where the shards stand, from the records of the newest commit on."""

    def __init__(
        self,
        ranges: Mapping[Shard, KeyGroupRange],
        shards: int,
        stored: Iterable[UncoordinatedShard],
        shown: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """`stored`: what the newest commit says. `shown`: what was counted before, by other shards."""
        self._ranges, self._shards = dict(ranges), shards
        self.standing: dict[Shard, UncoordinatedResult] = {}
        self._records: dict[Shard, UncoordinatedShard] = {}
        self.counts = {
            uid: convert({name: numbers[name] for name in COUNTED}, learn(SaveCounts))
            for uid, numbers in (shown or {}).items()
        }
        self._moved: dict[str, int] = {}
        by_range = {(record.operator, record.first_group, record.end_group): record for record in stored}
        for key, groups in self._ranges.items():
            record = by_range.pop((key[0], groups.first, groups.end), None)
            if record is not None:
                self._records[key] = record
        for record in by_range.values():
            # The number of shards changed: their copies stay behind, and keys are fetched as they are seen.
            self._moved[record.operator] = self._moved.get(record.operator, 0) + record.lost + record.unsaved

    def version(self, key: Shard) -> Version | None:
        """The version that a shard's working copy was at, if that is known."""
        record = self._records.get(key)
        return record.version if record is not None else None

    def take(self, key: Shard, own: UncoordinatedResult, version: Version) -> UncoordinatedShard:
        """A chosen result: how the shard stands after it. Gives what the commit is to say."""
        before, groups = self._records.get(key), self._ranges[key]
        lost = before.lost if before is not None else 0
        discarded = own.discarded
        if before is not None and before.incarnation == own.incarnation:
            discarded -= before.discarded
        elif before is not None:
            lost += before.unsaved
        record = UncoordinatedShard(
            operator=key[0],
            shards=self._shards,
            first_group=groups.first,
            end_group=groups.end,
            version=version,
            incarnation=own.incarnation,
            unsaved=own.unsaved,
            discarded=own.discarded,
            lost=lost + max(0, discarded) + (self._moved.pop(key[0], 0)),
        )
        self._records[key] = record
        self.learn(key, own)
        return record

    def learn(self, key: Shard, own: UncoordinatedResult) -> UncoordinatedShard | None:
        """What a pass tells of a copy: counts, and how many events are in no save now. Gives what changed."""
        self.counts[key[0]] = self.counts.get(key[0], SaveCounts()).plus(own.counts)
        self.standing[key] = own
        record = self._records.get(key)
        if record is None or record.incarnation != own.incarnation or record.unsaved == own.unsaved:
            return None
        self._records[key] = record = replace(record, unsaved=own.unsaved)
        return record

    def unsaved(self, uid: str) -> int:
        """Events of an operator that are in no durable save that is known of."""
        return sum(record.unsaved for key, record in self._records.items() if key[0] == uid)

    def lost(self, uid: str) -> int:
        """Events of an operator that are lost, at most."""
        known = sum(record.lost for key, record in self._records.items() if key[0] == uid)
        return known + self._moved.get(uid, 0)

    def shown(self) -> dict[str, dict[str, int]]:
        """Everything for people and metrics, by operator."""
        uids = dict.fromkeys(uid for uid, _ in self._ranges)
        return {
            uid: {
                **{name: getattr(self.counts.get(uid, SaveCounts()), name) for name in COUNTED},
                "unsaved": self.unsaved(uid),
                "lost": self.lost(uid),
            }
            for uid in uids
        }


class SavingPasses:
    """Starts passes for the operators that need them. One thread, the driver's own."""

    def __init__(
        self,
        spark: SparkSession,
        operators: Mapping[str, SavedOperator],
        placement: Placement,
        shards: int,
        clock: Clock,
    ) -> None:
        self._spark, self._operators, self._placement = spark, operators, placement
        self._shards, self._clock = shards, clock
        self._last, self._apart = clock.monotonic(), PASS_SECONDS

    def step(
        self,
        lines: Lines,
        standing: Results,
        now_ms: int,
        say: Callable[[str], None],
        *,
        everything: bool = False,
    ) -> Results:
        """Save what is due, or all, of the shards that have dirty keys; gives how these stand now.

        `now_ms` is on the plans' clock. A pass that fails costs nothing: it is said, and tried again.
        """
        if not everything and self._clock.monotonic() - self._last < self._apart:
            return {}
        wanted = [key for key, own in standing.items() if own.unsaved if everything or own.due_ms <= now_ms]
        if not wanted:
            return {}
        found: Results = {}
        for uid in sorted({uid for uid, _ in wanted}):
            at = {
                shard: (lines[uid, shard].groups, lines[uid, shard].version)
                for operator, shard in wanted
                if operator == uid
            }
            try:
                found |= self._run_one(PassTask(self._operators[uid], now_ms, at, everything))
            except Exception as failure:
                say(f"keys of {uid!r} could not be saved and will be tried again: {first_line(failure)}")
        saved = any(own.counts.saved for own in found.values())
        self._last = self._clock.monotonic()
        self._apart = PASS_SECONDS if saved else min(PASS_SECONDS_MAX, 2 * self._apart)
        return found

    def _run_one(self, task: PassTask) -> Results:
        uid = task.operator.uid
        describe_jobs(self._spark, f"holdfast saves of keys of {uid}")
        rows = self._placement.shard_rows(self._shards, list(task.shards))
        results = [decode_result(bytes(row[0])) for row in rows.mapInArrow(task, RESULT_SCHEMA).collect()]
        return {(uid, each.shard): each.uncoordinated for each in results if each.uncoordinated is not None}


def saved_operators(program: Program, workspace: Workspace, run: str, term: int) -> dict[str, SavedOperator]:
    """The operators of a program whose keys are saved on their own, as tasks know them."""
    return {
        uid: SavedOperator(
            workspace, uid, run, term, node.function, program.forms[uid].lineage, node.uncoordinated
        )
        for uid, node in program.uncoordinated.items()
        if node.uncoordinated is not None
    }
