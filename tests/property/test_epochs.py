"""However the rows are cut into epochs, whatever crashes, whatever the parallelism and the backend: the
same state.

The tasks, working state, deltas, snapshots, commit records and the choice of files to restore from are the
real ones; in Spark's place the rows are dealt out here. The reference is one big epoch on one shard.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.store.records import (
    CommitRecord,
    ListFile,
    OperatorSchema,
    PlanRecord,
    SnapshotFile,
)
from holdfast.checkpoint.store.schemas import file_schema, record_of
from holdfast.graph.column_types import state_layout
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.outcome import EpochOutcome, take_state
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.state.encoding.keys import GROUP_COLUMN, key_groups_of, routing_hash
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.checksums import read_extent
from holdfast.storage.urls import open_storage
from holdfast.tasks.keyed import operator_result
from holdfast.tasks.messages import BroadcastLists, EpochWork, KeyedTask, TaskResult, Workspace, decode_result
from holdfast.tasks.operators.result import EventTime
from holdfast.tasks.task_output import unpack_rows
from holdfast.tasks.working_state import Kept, open_shard, snapshot_shard

EXAMPLES = int(os.environ.get("HOLDFAST_EPOCH_EXAMPLES", "25"))
GROUPS, SHARDS_MAX, KEYS = 16, 5, 9
BACKENDS = ("lmdb", "memory", "rocksdb")
ROWS = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("value", pa.int64())])

Event = tuple[int, int, int]


class Remembering(hf.KeyedFunction):
    """Every kind of state, in the order of `at`."""

    output = "key long, at long, total long, seen long"
    total = hf.ValueState("long", default=0)
    all = hf.ListState("long")
    by_value = hf.MapState("long", "long")
    top = hf.ReducingState("long", max)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, int, int]]:
        self.total.value += row.value
        self.all.append(row.at)
        if row.value % 7 == 0:
            self.all.clear()
        self.by_value[row.value] = self.by_value.get(row.value, 0) + 1
        if row.value % 5 == 0 and row.value - 1 in self.by_value:
            del self.by_value[row.value - 1]
        self.top.add(row.value)
        yield row.key, row.at, self.total.value, len(self.all)


@dataclass(frozen=True)
class Life:
    """A leader: its parallelism and backend, the sizes of its epochs, and which shards had run when it died
    in the last one (None: it did not). `snapshots`: how many shards it snapshots. `lost`: with its machine.
    """

    shards: int
    backend: str
    epochs: tuple[int, ...]
    died_after: int | None
    snapshots: int
    lost: bool


lives = st.builds(
    Life,
    shards=st.integers(1, SHARDS_MAX),
    backend=st.sampled_from(BACKENDS),
    epochs=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    died_after=st.none() | st.integers(0, SHARDS_MAX),
    snapshots=st.integers(0, SHARDS_MAX),
    lost=st.booleans(),
)
events = st.lists(st.tuples(st.integers(0, KEYS), st.integers(0, 30)), min_size=1, max_size=60)


class World:
    """A checkpoint, a machine's working state, and the rows that sinks would show."""

    def __init__(self, root: Path, function: Any, order_by: tuple[str, ...], input: pa.Schema = ROWS) -> None:
        self._root, self._function, self._order_by, self._input = root, function, order_by, input
        self._lineage = Lineage.begin(state_layout("op", function, input, ("key",)))
        self._schema = record_of(self._lineage)
        self._storage = open_storage(str(root / "ck"))
        self._chain = Chain(self._storage, retain=4, manifest_every=3)
        self.view = EMPTY
        self.shown: list[dict[str, Any]] = []
        self.clock_ms = 0
        self._attempts = 0

    def live(self, life: Life, rows: list[Any]) -> list[Any]:
        """Lead over as many of the rows as the life allows; gives those that are left."""
        workspace = self._workspace(life.backend)
        ranges = shard_ranges(GROUPS, life.shards)
        lines = {("op", shard): line_of(self.view, "op", groups) for shard, groups in enumerate(ranges)}
        for turn, size in enumerate(life.epochs):
            if not rows:
                break
            dies = life.died_after if turn == len(life.epochs) - 1 else None
            results = self._run(workspace, lines, rows[:size], life.shards, dies)
            if dies is not None and dies < life.shards:
                break
            snapshots = [] if turn else self._snapshots(workspace, lines, life.snapshots)
            self._commit(results, lines, snapshots, life.shards)
            self.committed(rows[:size])
            rows = rows[size:]
        if life.lost:
            for backend in BACKENDS:
                shutil.rmtree(self._workspace(backend).working_root or "", ignore_errors=True)
        return rows

    def committed(self, rows: list[Any]) -> None:
        """The epoch of these rows was committed."""

    def time(self) -> EventTime | None:
        """How far event time is in the next epoch."""
        return None

    def schemas(self) -> tuple[OperatorSchema, ...]:
        """The schemas that the commit of an epoch names."""
        return (self._schema,)

    def broadcast(self, work: EpochWork, rows: list[Any]) -> BroadcastLists | None:
        """What the broadcast rows of an epoch make of broadcast states."""
        return None

    def lists(self, bundle: Bundle) -> tuple[ListFile, ...]:
        """The lists that the commit of the epoch names."""
        return ()

    def table(self, rows: list[Any]) -> pa.Table:
        """Rows as the operator gets them."""
        columns = [
            pa.array(list(column), field.type)
            for column, field in zip(zip(*rows, strict=True), ROWS, strict=bool(rows))
        ] or [pa.array([], field.type) for field in ROWS]
        return pa.Table.from_arrays(columns, schema=ROWS)

    def _workspace(self, backend: str) -> Workspace:
        return Workspace(self._root.name, self._storage.url, str(self._root / "working" / backend), backend)

    def _run(
        self, workspace: Workspace, lines: Any, rows: list[Any], shards: int, dies: int | None
    ) -> list[TaskResult]:
        self._attempts += 1
        work = EpochWork(workspace, self.view.last_epoch + 1, self._attempts, run="r", clock_ms=self.clock_ms)
        task = KeyedTask(
            work=work, uid="op", committed=self.view.last_epoch, function=self._function,
            lineage=self._lineage, key=("key",), order_by=self._order_by, input=self._input, on_error="fail",
            shards=tuple(lines["op", shard] for shard in range(shards)), outputs=("",), saves_state=True,
            time=self.time(), broadcast=self.broadcast(work, rows),
        )  # fmt: skip
        results = []
        for shard, table in enumerate(_dealt(self.table(rows), shards)):
            if shard == dies:
                break
            result = operator_result(task, shard, table.to_batches())
            assert result.failure is None, result.failure
            results.append(result)
        return results

    def _snapshots(self, workspace: Workspace, lines: Any, count: int) -> list[SnapshotFile]:
        """Snapshots of what the last committed epoch left, if the working state is still there."""
        found = []
        for shard in range(min(count, len(lines))):
            line = lines["op", shard]
            batch = snapshot_shard(
                workspace,
                self._lineage,
                file_schema(self._schema),
                shard,
                line.groups,
                self.view.last_epoch + 1,
            )
            snapshot = decode_result(batch.column(0)[0].as_py()).snapshot
            if snapshot is not None and snapshot.version == line.version:
                found.append(snapshot)
        return found

    def _commit(
        self, results: list[TaskResult], lines: Any, snapshots: list[SnapshotFile], shards: int
    ) -> None:
        epoch = self.view.last_epoch + 1
        bundle = Bundle(self._storage, f"data/{epoch:012d}/bundle-{uuid.uuid4().hex}")
        outcome = EpochOutcome(_plan(epoch, shards))
        for result in results:
            take_state(outcome, "op", result, lines, bundle)
            for output in result.outputs:
                data = output.payload.inline or read_extent(self._storage, output.payload.extent)
                self.shown += unpack_rows(data, "output").to_pylist()
        lists = self.lists(bundle)
        bundle.write()
        for delta in outcome.deltas:
            key = next(key for key, line in lines.items() if line.groups.first == delta.first_group)
            lines[key] = lines[key].extended(delta)
        record = CommitRecord(
            term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1},
            clock_ms=self.clock_ms, parallelism=shards, fingerprint="", positions={},
            deltas=tuple(outcome.deltas), snapshots=tuple(snapshots), lists=lists,
            operators=None if self.view.operators == self.schemas() else self.schemas(),
        )  # fmt: skip
        done = self._chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = self._chain.load()

    def state(self) -> dict[bytes, bytes]:
        """All entries, restored by a new machine with one shard."""
        workspace = Workspace("reader", self._storage.url, str(self._root / "reader"), "lmdb")
        line = line_of(self.view, "op", shard_ranges(GROUPS, 1)[0])
        state = open_shard(workspace, "op", self._lineage, line, self.view.last_epoch, Kept.IN_CHECKPOINT)
        state.verify_base()
        entries = dict(state.scan(b""))
        state.close()
        return entries


def _plan(epoch: int, shards: int) -> PlanRecord:
    return PlanRecord(
        epoch=epoch,
        attempt=1,
        term=1,
        run="r",
        parent=0,
        fingerprint="",
        parallelism=shards,
        clock_ms=0,
        slices={},
    )


def _dealt(rows: pa.Table, shards: int) -> list[pa.Table]:
    """The rows of each shard, as the shuffle would give them."""
    groups = key_groups_of(routing_hash([rows["key"].combine_chunks()]), GROUPS)
    table = rows.append_column(GROUP_COLUMN, pa.array(groups, pa.int32()))
    ranges = shard_ranges(GROUPS, shards)
    shares = [[r.first <= g < r.end for g in groups.tolist()] for r in ranges]
    return [table.filter(pa.array(share, pa.bool_())) for share in shares]


def _through(
    root: Path, function: Any, order_by: tuple[str, ...], rows: list[Event], plan: list[Life]
) -> World:
    """Run all rows through these lives; those left over in one last epoch."""
    world = World(root, function, order_by)
    for life in plan:
        rows = world.live(life, rows)
    if rows:
        world.live(Life(1, "lmdb", (len(rows),), None, 0, False), rows)
    return world


def _compared(
    function: Any, order_by: tuple[str, ...], found: list[tuple[int, int]], plan: list[Life]
) -> tuple[World, World]:
    rows = [(key, at, value) for at, (key, value) in enumerate(found)]
    # What is left behind a lazy restore may still be copying there.
    with tempfile.TemporaryDirectory(prefix="hf-epochs-", ignore_cleanup_errors=True) as root:
        world = _through(Path(root) / "cut", function, order_by, rows, plan)
        whole = _through(Path(root) / "whole", function, order_by, rows, [])
        assert world.state() == whole.state()
        return world, whole


checked = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@checked
@given(events, st.lists(lives, max_size=5))
def test_a_function_gives_the_same_state_and_the_same_rows(
    found: list[tuple[int, int]], plan: list[Life]
) -> None:
    world, whole = _compared(Remembering(), ("at",), found, plan)
    assert Counter(map(_frozen, world.shown)) == Counter(map(_frozen, whole.shown))


@checked
@given(events, st.lists(lives, max_size=5))
def test_an_aggregate_gives_the_same_state_and_the_same_last_row_of_each_key(
    found: list[tuple[int, int]], plan: list[Life]
) -> None:
    world, whole = _compared(_aggregation(), (), found, plan)
    assert {row["key"]: row for row in world.shown} == {row["key"]: row for row in whole.shown}


def _aggregation() -> Any:
    job = hf.Job("aggregating")
    source = job.source(hf.MemorySource([(1, 2, 3)], schema="key long, at long, value long"), uid="rows")
    kinds = {"total": hf.sum("value"), "n": hf.count(), "low": hf.min("value"), "high": hf.max("value")}
    source.key_by("key").aggregate(uid="op", **kinds)
    return next(node.function for node in job.graph().operators)


def _frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))
