"""Making a standby ready: what a takeover would otherwise wait for is done beforehand.

Spark is started, the job is compiled, and its plans are run on an epoch without rows, so that classes are
loaded, code is generated and Python workers have imported what they need. Spark ends workers that were idle
for a minute, so a standby warms up again and again.
Always true: nothing of the job's data is read or written; no source and no sink is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.shard_lines import Line, Lines
from holdfast.checkpoint.store.records import PlannedSlice, PlanRecord, TableCopy
from holdfast.connectors.contract import Json, MalformedRow, Sifted, Slice
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.list_state import OperatorLists, shards_of
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.epoch.runner import EpochRunner, EpochStart
from holdfast.runtime.placement import Placement, workspace_of
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import default_parallelism
from holdfast.state.contract import EMPTY_VERSION, NextDue
from holdfast.state.encoding.types import frame_ddl, parse_schema, schema_ddl
from holdfast.state.local.backends import backend_named
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = "warm-up"
_MALFORMED = "file string, line long, row string, reason string"
WORKERS_PER_CORE = 2
"""Tasks per core of the job that warms workers up, so that every one of them gets some."""


def warm_up(spark: SparkSession, program: Program, settings: RunSettings, shards: int, rounds: int) -> None:
    """Run the job's plans on an epoch without rows, `rounds` times."""
    storage = open_storage(settings.checkpoint)
    tasks = WORKERS_PER_CORE * default_parallelism(spark)
    spark.range(0, tasks, 1, tasks).mapInArrow(partial(_import_all, settings.backend), "id long").collect()
    runner = EpochRunner(
        spark=spark,
        program=program,
        workspace=workspace_of(spark, settings, WARM_UP, storage, WARM_UP),
        placement=Placement(spark),
        storage=storage,
        readers={
            node.uid: _NoRows(frame_ddl(parse_schema(node.source.schema))) for node in program.graph.sources
        },
        key_groups=settings.key_groups,
        saves_state=True,
        run_name=WARM_UP,
    )
    lists = {uid: OperatorLists(({},) * shards_of(node, shards)) for uid, node in program.unkeyed.items()}
    for _ in range(rounds):
        plan, lines = _empty_plan(program, shards), _no_lines(program, settings, shards)
        runner.run(EpochStart(plan, lines, lists, committed=0))


def _empty_plan(program: Program, shards: int) -> PlanRecord:
    nothing = PlannedSlice(start=None, end=None, rows=0)
    return PlanRecord(
        epoch=0, attempt=0, term=0, run=WARM_UP, parent=0, fingerprint="", parallelism=shards, clock_ms=0,
        slices={node.uid: nothing for node in program.graph.sources},
        tables={
            uid: TableCopy(epoch=0, read_ms=0, columns=schema_ddl(columns), rows=0)
            for uid, columns in program.tables.items()
        },
    )  # fmt: skip


def _no_lines(program: Program, settings: RunSettings, shards: int) -> Lines:
    ranges = enumerate(shard_ranges(settings.key_groups, shards))
    return {
        (uid, shard): Line(groups, EMPTY_VERSION, next_due=NextDue())
        for shard, groups in ranges
        for uid in program.keyed_uids
    }


@dataclass(frozen=True)
class _NoRows:
    """The reader of any source, a channel too, without rows: only its columns, in a plan that Spark cannot
    shorten."""

    ddl: str

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        return None

    def exhausted(self, after: Json | None) -> bool:
        return True

    def lag(self, after: Json | None) -> int | None:
        return 0

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return spark.range(0, 1, 1, 1).mapInArrow(_none, self.ddl)

    def partitions(self, slice: Slice) -> Mapping[str, bool]:
        return {}

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        return Sifted(self.frame(spark, slice), lambda: (0, 0))

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return spark.range(0, 1, 1, 1).mapInArrow(_none, _MALFORMED)

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        return None

    def time_after(self, slice: Slice) -> int | None:
        return None


def _none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def _import_all(backend: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import what the tasks of epochs import, late imports too."""
    import pyarrow.parquet  # noqa: F401

    import holdfast.tasks.unkeyed  # noqa: F401

    backend_named(backend)
    yield from batches
