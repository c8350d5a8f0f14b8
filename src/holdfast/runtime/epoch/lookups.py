"""Which copy of its table each lookup uses, and how copies are made.

A plan names the copy that its epoch is joined with; every run of that epoch uses the same. The next plan
goes on with it until it is older than the lookup's `refresh`, by the time of the plans.
Always true: a copy is durable before the plan that names it is written. A table that cannot be read leaves
the copy in use where it is.
Never here: how long copies are kept (see checkpoint.chain.retention).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import PlanRecord, TableCopy
from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError, EpochFailed
from holdfast.graph.job_graph import LookupNode
from holdfast.runtime.epoch.chosen_results import chosen_results
from holdfast.runtime.epoch.looked_up import table_frame
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.program import frame_schema
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.placement import workspace_of
from holdfast.runtime.spark_session import describe_jobs
from holdfast.state.encoding.routing import quoted
from holdfast.state.encoding.types import schema_ddl, type_ddl
from holdfast.tasks.keyed import run_stage
from holdfast.tasks.messages import RESULT_SCHEMA, EpochWork, StageTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRY_AGAIN_MS = 60_000
"""How long after a table could not be read it is tried again, at most."""

MakeCopy = Callable[[str, int, int], TableCopy]
"""Of a lookup's uid, the epoch that is planned and its time: the copy of the table as it is now."""


@dataclass(frozen=True)
class DeclaredTable:
    """What the job says of a lookup's table: how long a copy is used, and the columns that it has."""

    refresh_ms: int
    columns: str

    @property
    def try_again_ms(self) -> int:
        return min(self.refresh_ms, TRY_AGAIN_MS)


class Tables:
    """The copies in use, from one plan to the next. One thread."""

    def __init__(
        self,
        declared: Mapping[str, DeclaredTable],
        in_use: Mapping[str, TableCopy],
        make: MakeCopy,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._declared, self._make, self._say = declared, make, say
        self._in_use = {uid: copy for uid, copy in in_use.items() if uid in declared}
        self._made: dict[str, TableCopy] = {}
        """Copies for an epoch that is being planned: another try at its plan takes them."""
        self._failed: dict[str, tuple[int, str]] = {}

    def for_plan(
        self, epoch: int, clock_ms: int, given: Mapping[str, TableCopy] | None = None
    ) -> dict[str, TableCopy]:
        """The copies that the plan of an epoch names. `given`: those that an earlier plan of it had, which
        hold again. EpochFailed or DefinitionError: a table has no copy yet, and none can be made."""
        given = given or {}
        return {
            uid: given[uid]
            if uid in given and given[uid].columns == table.columns
            else self._current(uid, table, epoch, clock_ms)
            for uid, table in self._declared.items()
        }

    def planned(self, plan: PlanRecord) -> None:
        """A plan is followed: the next ones go on with its copies."""
        self._in_use.update({uid: copy for uid, copy in plan.tables.items() if uid in self._declared})
        self._made = {}

    def shown(self) -> dict[str, dict[str, Any]]:
        """Lookup uid -> what is in use, for the status."""
        return {
            uid: {
                "rows": copy.rows,
                "read_ms": copy.read_ms,
                "error": self._failed[uid][1] if uid in self._failed else None,
            }
            for uid, copy in self._in_use.items()
        }

    def _current(self, uid: str, table: DeclaredTable, epoch: int, clock_ms: int) -> TableCopy:
        made = self._made.get(uid)
        if made is not None and made.epoch == epoch:
            return made
        copy = self._in_use.get(uid)
        usable = copy is not None and copy.columns == table.columns
        if copy is not None and usable:
            failed_ms = self._failed[uid][0] if uid in self._failed else None
            waits = failed_ms is not None and clock_ms - failed_ms < table.try_again_ms
            if clock_ms - copy.read_ms < table.refresh_ms or waits:
                return copy
        try:
            self._made[uid] = self._make(uid, epoch, clock_ms)
        except (EpochFailed, DefinitionError) as failure:
            if copy is None or not usable:
                raise
            if uid not in self._failed:
                self._say(
                    f"LOOKUP: {failure}; the copy of epoch {copy.epoch} stays in use, and it is tried again"
                )
            self._failed[uid] = (clock_ms, str(failure))
            return copy
        if self._failed.pop(uid, None):
            self._say(f"LOOKUP: the table of {uid!r} can be read again")
        return self._made[uid]


def declared_tables(
    lookups: tuple[LookupNode, ...], columns: Mapping[str, pa.Schema]
) -> dict[str, DeclaredTable]:
    """What a job says of its lookups. `columns`: those of each table, by the lookup's uid."""
    return {
        node.uid: DeclaredTable(duration_ms(node.refresh), schema_ddl(columns[node.uid])) for node in lookups
    }


def tables_of(context: LeaderContext, view: CheckpointView) -> Tables:
    """The tables of a run that goes on from `view`."""
    program = context.program
    declared = declared_tables(program.graph.lookups, program.tables)
    return Tables(declared, view.tables, _Copies(context), context.monitor.say)


class _Copies:
    """Makes copies, as Spark jobs: the rows go from the tasks that read them into checkpoint storage."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._nodes = {node.uid: node for node in context.program.graph.lookups}

    def __call__(self, uid: str, epoch: int, read_ms: int) -> TableCopy:
        context, storage = self._context, self._context.checkpoint.storage
        columns = context.program.tables[uid]
        frame = self._frame(self._nodes[uid], columns)
        workspace = workspace_of(
            context.spark, context.settings, context.checkpoint.job.identity, storage, context.owner
        )
        work = EpochWork(workspace, epoch, 0, context.run, read_ms)
        what = f"the copy of the table of lookup {uid!r}"
        describe_jobs(context.spark, f"holdfast {context.program.graph.name}: {what}")
        body = partial(run_stage, StageTask(work, uid))
        results = chosen_results(lambda: frame.mapInArrow(body, RESULT_SCHEMA), what)
        bundle = Bundle(storage, f"data/{epoch:012d}/{context.run}-table-{uid}-{uuid.uuid4().hex}")
        extents = tuple(
            bundle.place(output.payload)
            for result in sorted(results, key=lambda result: result.shard)
            for output in result.outputs
        )
        bundle.write()
        return TableCopy(
            epoch=epoch,
            read_ms=read_ms,
            columns=schema_ddl(columns),
            rows=sum(result.rows for result in results),
            extents=extents,
        )

    def _frame(self, node: LookupNode, columns: pa.Schema) -> DataFrame:
        """The table as it is now, with the columns that the job began with."""
        frame = table_frame(node, self._context.spark)
        now = frame_schema(frame)
        for column in columns:
            wanted = type_ddl(column.type)
            has = type_ddl(now.field(column.name).type) if column.name in now.names else "missing"
            if has != wanted:
                raise DefinitionError(
                    f"the table of lookup {node.uid!r} had a column {column.name!r} of {wanted} when the job "
                    f"began, which is {has} now; give it that column again, or start the job again"
                )
        return frame.select(*(quoted(name) for name in columns.names))
