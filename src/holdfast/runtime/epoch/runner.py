"""Runs one epoch as Spark work: a job per stage, and the driver's choice of which results count.

Always true: results are taken only from a job that Spark reported successful, one per shard.
Never here: planning, committing, publishing (see planner, committer, publisher).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.checkpoint.chain.channels import Channels
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.shard_lines import Lines
from holdfast.checkpoint.store.records import PlannedWatermark, PlanRecord, SentFile, StagedFile
from holdfast.connectors.contract import (
    MALFORMED,
    SourceReader,
    VerifyingReader,
)
from holdfast.errors import (
    CorruptionError,
    EpochFailed,
    EpochInterrupted,
    HoldfastError,
    InputVanished,
    MachineError,
    MalformedInput,
    ObjectMissing,
)
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.functions import CoFunction
from holdfast.graph.job_graph import (
    LATE_ROWS,
    BroadcastConnectNode,
    BroadcastNode,
    ConnectNode,
    OperatorNode,
    OutputNode,
    SourceNode,
    StreamNode,
    UnkeyedNode,
)
from holdfast.runtime.epoch.combining import combined
from holdfast.runtime.epoch.epoch_frames import (
    Awaited,
    EpochFrames,
    SparkColumns,
    Untold,
    slice_of,
)
from holdfast.runtime.epoch.list_state import Lists, broadcast_lists, take_lists
from holdfast.runtime.epoch.outcome import EpochOutcome, take_state
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.program import Program, Stage
from holdfast.runtime.epoch.rows_read import RowsRead
from holdfast.runtime.epoch.set_aside import malformed_input, rows_aside
from holdfast.runtime.latency import arrived_rows
from holdfast.runtime.parts.damaged_epochs import damaged_epoch
from holdfast.runtime.placement import Placement, shard_expression
from holdfast.runtime.spark_failures import explained, raised_by_task
from holdfast.runtime.spark_session import describe_jobs
from holdfast.state.encoding.keys import GROUP_COLUMN
from holdfast.state.encoding.routing import quoted
from holdfast.steps import Step, reached
from holdfast.storage.contract import Storage
from holdfast.tasks.keyed import (
    run_operator,
    run_operator_grouped,
    run_operator_on_few,
    run_operator_on_packed,
    run_stage,
    run_stage_of_pieces,
)
from holdfast.tasks.messages import (
    RESULT_SCHEMA,
    BroadcastLists,
    EpochWork,
    KeyedTask,
    StageTask,
    TaskResult,
    UnkeyedTask,
    Workspace,
    decode_result,
)
from holdfast.tasks.operators.partial_rows import Combined
from holdfast.tasks.operators.result import EventTime
from holdfast.tasks.operators.two_inputs import SideOrder
from holdfast.tasks.routed_rows import PACKED, SHARD_COLUMN, UNREADABLE, RoutedRows, unpacked
from holdfast.tasks.unkeyed import run_unkeyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_ROWS = 5_000
"""Up to so many rows every shard's task reads all, and takes its own: less work than a shuffle."""
UNLIKE_TASKS = (
    # Texts have other types then.
    "spark.sql.execution.arrow.useLargeVarTypes",
    # What a task says of its failure does not come to the driver.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled",
)
"""Settings of a session, not usually true, under which rows are read by Spark."""
DAMAGE = (CorruptionError.__name__, ObjectMissing.__name__)
"""How the tasks of an epoch tell of files that are damaged or missing."""


@dataclass(frozen=True)
class EpochStart:
    """What an epoch starts from: its plan, state as the epochs before it left it, and the newest commit's
    epoch."""

    plan: PlanRecord
    lines: Lines
    lists: Lists
    committed: int


@dataclass(frozen=True, kw_only=True)
class EpochRunner:
    """Knows how this job's epochs run on this Spark session."""

    spark: SparkSession
    program: Program
    workspace: Workspace
    placement: Placement
    storage: Storage
    readers: Mapping[str, SourceReader]
    key_groups: int
    saves_state: bool
    run_name: str
    term: int = 0
    replicated: bool = False
    """Others run the same epochs: all are to come to the same bytes."""
    channels: Channels = field(default_factory=dict)
    """As they were when this run began: what was in them stays as it is, but for epochs that are lost."""
    settled: Settled = field(default_factory=Settled)
    """Up to where the rows for sinks were settled when this run began: they stay as they are."""
    shown_through: Mapping[str, int] = field(default_factory=dict)
    """Sink uid -> the newest epoch that it showed when this run began."""
    upstream: bool = False
    """State is had again from the rows, and in no file."""
    whole_after: int = 0
    """Up to this epoch state is in the making: nothing of what is computed goes anywhere."""
    awaited: Awaited = lambda uid, ask: ask()
    """Asks a source once its server is there."""
    _proved_empty: set[str] = field(default_factory=set, init=False)
    """Streams whose input Spark once proved empty: its tasks are kept from then on."""
    _read_by_spark: set[str] = field(default_factory=set, init=False)
    """Streams whose input tasks once could not read by themselves."""
    _untold: Untold = field(default_factory=Untold, init=False)
    _spark_columns: SparkColumns = field(default_factory=SparkColumns, init=False)

    def run(self, start: EpochStart) -> EpochOutcome:
        """Run the epoch. EpochFailed: Spark gave up. UserCodeError: the user's function did. InputVanished:
        what it read was changed meanwhile. MalformedInput: it has a row that does not fit. MachineError: the
        executors lack a part of the job's environment. ToldToStop: the run was, while the server of a source
        was waited for.
        """
        began, plan = time.perf_counter(), start.plan
        outcome, read = EpochOutcome(plan), RowsRead(plan.slices, self.program.streams)
        frames = EpochFrames(
            self.spark, self.program, self.readers, self.workspace.storage_url, plan, self._untold,
            self._spark_columns, self.awaited,
        )  # fmt: skip
        # Unique: after a rewind this very run may run a plan again, while older commits name the first.
        name = f"data/{plan.epoch:012d}/{self.run_name}-{plan.attempt}-bundle-{uuid.uuid4().hex}"
        bundle = Bundle(self.storage, name)
        for stage in self.program.stages:
            try:
                results = self._run_stage(stage, frames, start)
            except EpochFailed as failure:
                told = self._malformed(plan, failure) or self._damaged(plan, failure) or failure
                raise told from failure.__cause__
            frames.counts.ran(results)
            if isinstance(stage.node, OutputNode) and (
                aside := rows_aside(results, self._storage_url, self.readers[stage.node.parent.uid])
            ):
                outcome.set_aside[stage.node.parent.uid] = aside
            if isinstance(stage.node, UnkeyedNode):
                kept_in = bundle if self.saves_state else None
                take_lists(outcome.lists, stage.node.uid, results, start.lists, kept_in)
            if isinstance(stage.node, BroadcastNode):
                frames.broadcast[stage.node] = broadcast_lists(start.lists[stage.node.uid], results)
            for result in sorted(results, key=lambda result: result.shard):
                if isinstance(stage.node, OperatorNode):
                    late_is_read = LATE_ROWS in stage.outputs
                    take_state(outcome, stage.node.uid, result, start.lines, bundle, late_is_read)
                self._take_outputs(outcome, stage, result, frames, bundle)
            read.counted(frames.counts.rows_read())
            read.ran(stage.node, sum(result.rows for result in results))
            frames.observed.ran(gave_results=bool(results))
        reached(Step.RESULTS_CHOSEN)
        outcome.rows = read.total
        for uid, part in plan.slices.items():
            if not part.skipped:
                outcome.arrived += arrived_rows(self.readers[uid], slice_of(part), read.of(uid))
        outcome.times, outcome.silent = frames.newest_times()
        self.verify(plan)
        bundle.write()
        reached(Step.BUNDLE_WRITTEN)
        outcome.seconds = time.perf_counter() - began
        return outcome

    @property
    def _storage_url(self) -> str:
        return self.workspace.storage_url

    def _malformed(self, plan: PlanRecord, failure: EpochFailed) -> MalformedInput | None:
        if MALFORMED not in str(failure):
            return None
        slices = {uid: slice_of(part) for uid, part in plan.slices.items() if not part.skipped}
        return malformed_input(self.spark, plan.epoch, slices, self.readers)

    def _damaged(self, plan: PlanRecord, failure: EpochFailed) -> HoldfastError | None:
        """What is damaged of the channels that an epoch reads, where its tasks say that something is."""
        # Other members of a set may have read it, and are about to commit that.
        if self.replicated or not any(kind in str(failure) for kind in DAMAGE):
            return None
        return damaged_epoch(plan, self.readers)

    def verify(self, plan: PlanRecord) -> None:
        """See that what the epoch reads is what was planned. InputVanished: it is not."""
        for uid, part in plan.slices.items():
            reader = self.readers[uid]
            if not part.skipped and isinstance(reader, VerifyingReader):
                self.awaited(uid, partial(reader.verify, slice_of(part)))

    def _run_stage(self, stage: Stage, frames: EpochFrames, start: EpochStart) -> list[TaskResult]:
        plan = start.plan
        what = f"epoch {plan.epoch} of {self.program.graph.name}: {stage.stream}"
        describe_jobs(self.spark, f"holdfast {what}")
        node = stage.node
        if isinstance(node, OutputNode) and frames.all_fit(node.parent.uid):
            return []
        if not isinstance(node, OperatorNode):
            results = self._staged_by_tasks(stage, frames, plan, what)
            if results is not None:
                return results
            body = partial(run_stage, StageTask(self._work(plan), stage.stream))
            rows = partial(self._in_place, node, frames, plan.parallelism)
            return chosen_results(lambda: rows().mapInArrow(body, RESULT_SCHEMA), what)
        shards = plan.parallelism
        if isinstance(node, BroadcastNode):
            if frames.surely_empty(node.parent):
                return []
            shards = 1
        if isinstance(node, UnkeyedNode):
            unkeyed = partial(run_unkeyed, self._unkeyed_task(stage, node, start))
            job = partial(_unkeyed_job, unkeyed, None if isinstance(node, BroadcastNode) else shards)
        else:
            keyed = self._keyed_task(stage, node, start, frames)
            results = self._read_by_tasks(stage, node, keyed, frames, what)
            if results is not None:
                return results
            if keyed.partials is not None:
                results = self._combined(stage, node, keyed, frames, what)
                if results is not None:
                    return results
                keyed = replace(keyed, partials=None)
            job = partial(self._operator_job, node, keyed, shards)
        return self._one_per_shard(stage, job, lambda: frames.input(node), shards, what)

    def _in_place(self, node: StreamNode, frames: EpochFrames, shards: int) -> DataFrame:
        """The rows of a stream; of a replicated part each in the same place for all that run the epoch,
        whatever cores they have."""
        from pyspark.sql.functions import expr

        frame = frames.computed(node)
        if not self.replicated:
            return frame
        columns = ", ".join(map(quoted, frame.columns))
        # Spark hashes no maps.
        hashed = f"to_json(struct({columns}))" if "map<" in frame.schema.simpleString() else columns
        return frame.repartitionById(shards, expr(f"cast(pmod(xxhash64({hashed}), {shards}) as int)"))

    def _combined(
        self, stage: Stage, node: OperatorNode, task: KeyedTask, frames: EpochFrames, what: str
    ) -> list[TaskResult] | None:
        """The results of an operator's job over combined rows. None: some are late and wanted as they are, so
        that nothing of the job counts."""
        partials, shards = task.partials, len(task.shards)
        assert partials is not None
        job = partial(self._operator_job, node, task, shards)
        results = self._one_per_shard(
            stage, job, lambda: combined(frames.frame(node.parent), node.key, partials), shards, what
        )
        late = any(result.late for result in results)
        return None if late and LATE_ROWS in stage.outputs else results

    def _one_per_shard(
        self,
        stage: Stage,
        job: Callable[[DataFrame], DataFrame],
        frame: Callable[[], DataFrame],
        shards: int,
        what: str,
    ) -> list[TaskResult]:
        """The results of an operator's job over the rows of `frame`, one per shard, also without any rows.

        Where Spark proves the frame empty it leaves the tasks out with it, and the job gives no results. That
        they are missing proves nothing: the job runs again over a frame that Spark can prove nothing of.
        """
        if stage.stream not in self._proved_empty:
            results = chosen_results(lambda: job(frame()), what)
            if not results:
                self._proved_empty.add(stage.stream)
        if stage.stream in self._proved_empty:
            results = chosen_results(lambda: job(_unprovable(frame())), what)
        if len(results) != shards:
            raise EpochFailed(f"{what} gave {len(results)} results for {shards} shards; try again")
        return results

    def _work(self, plan: PlanRecord) -> EpochWork:
        return EpochWork(
            self.workspace, plan.epoch, plan.attempt, self.run_name, plan.clock_ms, self.replicated
        )

    def _unkeyed_task(self, stage: Stage, node: UnkeyedNode, start: EpochStart) -> UnkeyedTask:
        return UnkeyedTask(
            work=self._work(start.plan),
            uid=node.uid,
            function=node.function,
            on_error=node.on_error,
            outputs=tuple(stage.outputs),
            saves_state=self.saves_state,
            layout=self.program.forms[node.uid].layout,
            lists=start.lists[node.uid].shards,
            order_by=node.order_by,
        )

    def _keyed_task(
        self, stage: Stage, node: OperatorNode, start: EpochStart, frames: EpochFrames
    ) -> KeyedTask:
        form = self.program.forms[node.uid]
        return KeyedTask(
            work=self._work(start.plan),
            uid=node.uid,
            function=node.function,
            on_error=node.on_error,
            outputs=tuple(stage.outputs),
            saves_state=self.saves_state,
            committed=start.committed,
            lineage=form.lineage,
            key=node.key,
            order_by=() if isinstance(node, ConnectNode) else node.order_by,
            sides=_side_order(node),
            input=self.program.forms[node.uid].input,
            shards=tuple(start.lines[node.uid, shard] for shard in range(start.plan.parallelism)),
            uncoordinated=node.uncoordinated,
            upstream=self.upstream,
            term=self.term,
            time=self._time(node, start.plan),
            partials=form.partials if self._combines(stage, node, start.plan) else None,
            broadcast=self._broadcast(node, frames),
        )

    def _broadcast(self, node: OperatorNode, frames: EpochFrames) -> BroadcastLists | None:
        if not isinstance(node, BroadcastConnectNode):
            return None
        layout = self.program.forms[node.broadcast.uid].layout
        return BroadcastLists(layout, frames.broadcast[node.broadcast])

    def _combines(self, stage: Stage, node: OperatorNode, plan: PlanRecord) -> bool:
        partials = self.program.forms[node.uid].partials
        if self.replicated and partials is not None and not partials.exact:
            # The plan may be of a leader that was alone: replicas have to come to the same.
            return False
        # Late rows may make an epoch run its job twice: state that is not saved cannot be taken back.
        return node.uid in plan.combined and (self.saves_state or LATE_ROWS not in stage.outputs)

    def _time(self, node: OperatorNode, plan: PlanRecord) -> EventTime | None:
        naive = self.program.forms[node.uid].naive_time
        if naive is None:
            return None
        mark = plan.watermarks.get(node.uid, PlannedWatermark())
        return EventTime(mark.before_us, mark.now_us, plan.closing, plan.closed_through, naive)

    def _operator_job(self, node: OperatorNode, task: KeyedTask, shards: int, frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr

        routing = self.program.forms[node.uid].routing
        grouped = frame.selectExpr("*", f"cast(pmod({routing}, {self.key_groups}) as int) as {GROUP_COLUMN}")
        shard = shard_expression(GROUP_COLUMN, shards, self.key_groups)
        if self.placement.single_executor:
            placed = grouped.repartitionById(shards, expr(shard))
            return placed.mapInArrow(partial(run_operator, task), RESULT_SCHEMA)
        placed = grouped.selectExpr("*", f"{shard} as {SHARD_COLUMN}").repartitionById(shards, SHARD_COLUMN)
        return self.placement.run(placed, SHARD_COLUMN, shards, _grouped(task), RESULT_SCHEMA)

    def _read_by_tasks(
        self, stage: Stage, node: OperatorNode, task: KeyedTask, frames: EpochFrames, what: str
    ) -> list[TaskResult] | None:
        """The results of an operator's job whose tasks read the rows without Spark. None: they cannot."""
        if isinstance(node, ConnectNode) or not self._tasks_may_read(stage):
            return None
        if not self.saves_state:
            # Spark may have to read after all, and state that is not saved cannot be taken back.
            return None
        task, partials = replace(task, event_time=frames.time_column(node.parent)), task.partials
        if partials is not None and (partials.pane is not None or task.event_time is not None):
            return None
        pieces = frames.pieces(node.parent)
        if pieces is None:
            return None
        few = pieces.rows is not None and pieces.rows <= FEW_ROWS and self.placement.single_executor
        # Partial rows come in another order: members of a set of replicas have to take the same.
        few = few and partials is None
        routed = RoutedRows(pieces, node.key, self.key_groups, len(task.shards), _combining(task))
        results = self._by_tasks(stage, lambda: self._routed_job(task, routed, few), what)
        if results is None or len(results) != len(task.shards):
            return None
        frames.read_by_tasks(node.parent, results)
        return results

    def _staged_by_tasks(
        self, stage: Stage, frames: EpochFrames, plan: PlanRecord, what: str
    ) -> list[TaskResult] | None:
        """The results of staging the rows of a source that tasks read without Spark. None: they cannot."""
        # Replicas have to cut the rows in one way.
        if not isinstance(stage.node, SourceNode) or self.replicated or not self._tasks_may_read(stage):
            return None
        pieces = frames.source_pieces(stage.node)
        if pieces is None or not pieces.count:
            return None
        body = partial(run_stage_of_pieces, StageTask(self._work(plan), stage.stream), pieces)
        numbers = self.spark.range(0, pieces.count, 1, pieces.count)
        return self._by_tasks(stage, lambda: numbers.mapInArrow(body, RESULT_SCHEMA), what)

    def _tasks_may_read(self, stage: Stage) -> bool:
        """Whether tasks would read what Spark would, as far as the session tells."""
        settings = self.spark.conf
        return (
            stage.stream not in self._read_by_spark
            # Spark hands times to Python in the zone of its session.
            and str(settings.get("spark.sql.session.timeZone")) == "UTC"
            and not any(str(settings.get(name, "false")).lower() == "true" for name in UNLIKE_TASKS)
        )

    def _by_tasks(self, stage: Stage, job: Callable[[], DataFrame], what: str) -> list[TaskResult] | None:
        """The results of a job whose tasks read the rows. None: they cannot, and Spark does from now on. If
        it cannot, it says why."""
        try:
            return chosen_results(job, what)
        except EpochFailed as failure:
            if UNREADABLE not in str(failure):
                raise
            self._read_by_spark.add(stage.stream)
            return None

    def _routed_job(self, task: KeyedTask, routed: RoutedRows, few: bool) -> DataFrame:
        shards, count = routed.shards, routed.pieces.count
        if few:
            every = self.spark.range(0, shards, 1, shards)
            return every.mapInArrow(partial(run_operator_on_few, task, routed), RESULT_SCHEMA)
        numbers = self.spark.range(0, count, 1, max(1, count))
        packed = numbers.mapInArrow(routed.pack, f"{SHARD_COLUMN} int, {PACKED} binary")
        placed = packed.repartitionById(shards, SHARD_COLUMN)
        if self.placement.single_executor:
            return placed.mapInArrow(partial(run_operator_on_packed, task), RESULT_SCHEMA)
        body = _grouped(task, unpacked)
        return self.placement.run(placed, SHARD_COLUMN, shards, body, RESULT_SCHEMA)

    def _take_outputs(
        self, outcome: EpochOutcome, stage: Stage, result: TaskResult, frames: EpochFrames, bundle: Bundle
    ) -> None:
        """Take a chosen result's rows: for the stages that read them, and for the sinks."""
        # Sinks tell the parts of an epoch apart by their numbers: those of a broadcast half come last.
        part = result.shard + (outcome.plan.parallelism if isinstance(stage.node, BroadcastNode) else 0)
        for output in result.outputs:
            stream = stage.outputs[output.name] if isinstance(stage.node, OperatorNode) else stage.stream
            frames.add(stream, output.payload, output.rows)
            sinks = self._sinks_of(stream, outcome.plan.epoch)
            channels = self._channels_of(stream, outcome.plan.epoch)
            if not (sinks or channels):
                continue
            extent, epoch = bundle.place(output.payload), outcome.plan.epoch
            if sinks:
                outcome.staged.append(
                    StagedFile(
                        stream=stream,
                        epoch=epoch,
                        part=part,
                        extent=extent,
                        rows=output.rows,
                        sinks=sinks,
                        input=outcome.input,
                    )
                )
            outcome.sent += [
                SentFile(channel=uid, epoch=epoch, part=part, extent=extent, rows=output.rows)
                for uid in channels
            ]

    def _sinks_of(self, stream: str, epoch: int) -> tuple[str, ...]:
        """The sinks that the rows of an epoch are staged for: not those that show it, nor those for which a
        commit has named its rows before a rewind."""
        return tuple(
            uid
            for uid in self.program.sinks_of(stream)
            if epoch > max(self.whole_after, self.shown_through.get(uid, 0))
            and not self.settled.covers(uid, epoch)
        )

    def _channels_of(self, stream: str, epoch: int) -> list[str]:
        """The channels that the rows of an epoch go into: not again, where a rewind computes them again."""
        known = self.channels
        return [
            uid
            for uid in self.program.channels_of(stream)
            if epoch > self.whole_after and (uid not in known or not known[uid].covers(epoch))
        ]


def _unkeyed_job(
    body: Callable[..., Iterator[pa.RecordBatch]], shards: int | None, frame: DataFrame
) -> DataFrame:
    """`shards`: None: one, with the rows in the order in which they are read."""
    if shards is None:
        # No shuffle, which would bring the parts in any order.
        return frame.coalesce(1).mapInArrow(body, RESULT_SCHEMA)
    # Any row may go to any shard. Spark sorts before it deals rows out in turn, so that a part of a shuffle
    # that is computed again deals them out the same way.
    return frame.repartition(shards).mapInArrow(body, RESULT_SCHEMA)


def _unprovable(frame: DataFrame) -> DataFrame:
    """The same rows. Spark's optimiser passes no proof of emptiness through rows that are counted, neither
    before the job nor while it runs.
    """
    from pyspark.sql.functions import count, lit

    return frame.observe("holdfast", count(lit(1)))


def _side_order(node: OperatorNode) -> SideOrder | None:
    if isinstance(node, ConnectNode) and isinstance(node.function, CoFunction):
        return SideOrder(node.order_by, node.right_order_by)
    return None


def _combining(task: KeyedTask) -> Combined | None:
    """How tasks that read an operator's rows combine them."""
    if task.partials is None:
        return None
    assert isinstance(task.function, Aggregation), "panes are combined by Spark"
    return Combined(task.function, task.partials, task.key, task.layout.key, task.order_by)


def _grouped(
    task: KeyedTask, rows_of: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]] = list
) -> Callable[..., pa.Table]:
    def body(key: tuple[pa.Scalar, ...], rows: pa.Table, placement: pa.Table) -> pa.Table:
        batches = rows_of(rows.drop_columns([SHARD_COLUMN]).to_batches())
        return run_operator_grouped(task, key, batches)

    return body


def chosen_results(job: Callable[[], DataFrame], what: str) -> list[TaskResult]:
    """The results of a job that Spark reported successful: of each shard exactly the one that Spark kept."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows = job().collect()
    except (PySparkException, Py4JError, ConnectionError, EOFError) as cause:
        found = explained(cause)
        if found.vanished:
            raise InputVanished(found.vanished) from cause
        if found.lacking:
            raise MachineError(f"{what} failed in Spark: {found.reason}") from cause
        kind = EpochInterrupted if found.outside else EpochFailed
        raise kind(f"{what} failed in Spark: {found.reason}; nothing of it became visible") from cause
    results = [decode_result(bytes(row[0])) for row in rows]
    for result in results:
        if result.failure is not None:
            raise raised_by_task(result.failure)
    shards = [result.shard for result in results]
    if len(set(shards)) != len(shards):
        raise EpochFailed(
            f"{what} gave two results for one shard ({sorted(shards)}); nothing of it became visible"
        )
    return results
