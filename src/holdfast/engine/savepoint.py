"""Savepoints as Python objects: looked at, and made of DataFrames.

    Savepoint.write(url, job, {"totals": frame})       state for a job that has none yet
    Savepoint.open(url).edit(other, spark, {...})      the same with some operators' state changed
    Savepoint.open(url).convert(other, spark, ...)     the same in another number of key groups

Always true: a savepoint is never changed, each of these makes another one; what they write is canonical
(Parquet), in the key groups in which the operators will look for it. Mistakes in the columns are told all at
once, before anything is written; after any error nothing is left that could be taken for a savepoint.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from holdfast import errors
from holdfast.checkpoint import names
from holdfast.checkpoint.composing import WholeState, whole_state_delta
from holdfast.checkpoint.copying import copy_all, repacked
from holdfast.checkpoint.identity import written_by
from holdfast.checkpoint.records import (
    DeltaFile,
    Json,
    Manifest,
    OperatorSchema,
    Parent,
    SavepointRecord,
    UnfinishedRecord,
)
from holdfast.checkpoint.savepoints import dispose_savepoint, read_savepoint, remove_all, verify_savepoint
from holdfast.checkpoint.saving import begin_savepoint, seal_savepoint
from holdfast.clock import SystemClock
from holdfast.engine.program import compile_graph, frame_schema, schema_ddl
from holdfast.engine.reading import StoredState, open_stored, pieces
from holdfast.engine.schemas import record_of
from holdfast.engine.session import default_parallelism, open_session, register_data_sources
from holdfast.engine.state_tasks import ENTRY_SCHEMA, RegroupTask, WriteTask, decode_written
from holdfast.engine.work import RESULT_SCHEMA
from holdfast.errors import DefinitionError
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.ids import shard_ranges
from holdfast.state.conversion import Lineage
from holdfast.state.keys import KEY_GROUPS_MAX, group_expression
from holdfast.state.layout import StateLayout
from holdfast.state.rows import column_names, row_schema, schema_problems
from holdfast.state.types import type_ddl
from holdfast.storage.contract import Storage
from holdfast.storage.places import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Change = DataFrame | Callable[[DataFrame], DataFrame]

FIRST_EPOCH = 1
"""The epoch that state from nowhere is after: a job that starts with it goes on with the next."""


class Savepoint:
    """A finished savepoint."""

    def __init__(self, storage: Storage, record: SavepointRecord) -> None:
        self._storage, self._record = storage, record

    @classmethod
    def open(cls, url: str) -> Savepoint:
        """Look at a savepoint. RestoreError: there is none, or it is unfinished or half-copied."""
        storage = open_storage(str(url))
        return cls(storage, read_savepoint(storage))

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def record(self) -> SavepointRecord:
        """All that is written down about it."""
        return self._record

    @property
    def job(self) -> str:
        """The job that it was taken of, or made for."""
        return self._record.job

    @property
    def epoch(self) -> int:
        """The last epoch whose effects it holds."""
        return self._record.manifest.last_epoch

    @property
    def key_groups(self) -> int:
        return self._record.key_groups

    @property
    def positions(self) -> dict[str, Json]:
        """Source uid -> where a job that starts from it goes on reading."""
        return dict(self._record.manifest.positions)

    @property
    def operators(self) -> dict[str, str]:
        """Uid of each keyed operator with state -> the columns of that state as rows."""
        stored = self._stored()
        return {uid: schema_ddl(row_schema(line.layout)) for uid, line in stored.lineages.items()}

    def read(self, spark: SparkSession, uid: str) -> DataFrame:
        """An operator's state as a DataFrame, one row per key. Nothing is read until Spark runs it."""
        self._stored().lineage(uid)
        register_data_sources(spark)
        return spark.read.format("holdfast-state").option("savepoint", self.url).option("uid", uid).load()

    def verify(self) -> list[str]:
        """Read every byte of it; one line for each thing that is damaged or missing."""
        return verify_savepoint(self._storage)

    def dispose(self, *, force: bool = False) -> None:
        """Delete it. RestoreError, without `force`: a checkpoint has claimed it."""
        dispose_savepoint(self._storage, SystemClock().now_ms(), force=force)

    @classmethod
    def write(
        cls,
        url: str,
        job: Declaration,
        frames: Mapping[str, DataFrame],
        *,
        spark: SparkSession | None = None,
        positions: Mapping[str, Json] | None = None,
        key_groups: int = 128,
        parallelism: int | None = None,
    ) -> Savepoint:
        """Make a savepoint for `job` out of DataFrames: operator uid -> one row per key (`operators` of any
        savepoint of the job, or docs/how-to/write-state.md, say with which columns).

        Operators without a frame start with no state. `positions`: source uid -> where to go on reading, in
        the source's own words; others start at their beginning. `key_groups` must be that of the job's runs.
        """
        graph = job.graph()
        check(graph)
        session = spark or open_session(graph.name)
        forms = compile_graph(graph, session).forms
        _refuse_unknown("operator", frames, forms)
        _refuse_unknown("source", positions or {}, [node.uid for node in graph.sources])
        lineages = {uid: Lineage.begin(forms[uid].layout) for uid in frames}
        _refuse_columns({uid: (lineages[uid].layout, frame) for uid, frame in frames.items()})
        shards = _shards(session, key_groups, parallelism)
        draft = _draft(
            job=graph.name,
            key_groups=key_groups,
            positions=dict(positions or {}),
            parallelism=shards,
            operators=tuple(record_of(lineage) for lineage in lineages.values()),
        )
        target = open_storage(str(url))
        with _beginning(target, draft):
            deltas = []
            for uid, frame in frames.items():
                deltas += _written_rows(target, draft, lineages[uid].layout, frame, shards)
            return _finished(target, draft, deltas)

    def edit(
        self,
        url: str,
        spark: SparkSession,
        changes: Mapping[str, Change] | None = None,
        *,
        drop: Iterable[str] = (),
        positions: Mapping[str, Json] | None = None,
    ) -> Savepoint:
        """Make another savepoint in which some operators have other state; the rest is copied as it is.

        `changes`: uid -> the new rows, or a function from the old ones to the new ones. A null means nothing
        stored. `drop`: uids whose state is left out. `positions`: sources to go on elsewhere.
        """
        stored = self._stored()
        uids = [schema.uid for schema in stored.view.operators]
        _refuse_unknown("operator", [*(changes or {}), *drop], uids)
        frames = {
            uid: change(self.read(spark, uid)) if callable(change) else change
            for uid, change in (changes or {}).items()
        }
        _refuse_columns({uid: (stored.layout(uid), frame) for uid, frame in frames.items()})
        draft = _renewed(self._record)
        kept = _without(draft.manifest, frames.keys() | set(drop))
        operators = tuple(schema for schema in kept.operators if schema.uid not in set(drop))
        draft = replace(
            draft,
            manifest=replace(
                kept, operators=operators, positions={**kept.positions, **dict(positions or {})}
            ),
        )
        shards = _shards(spark, self.key_groups, None)
        target = open_storage(str(url))
        with _beginning(target, draft):
            files, copies = repacked(draft.manifest, draft.id)
            copy_all(self._storage, target, copies)
            deltas = []
            for uid, frame in frames.items():
                deltas += _written_rows(target, draft, stored.layout(uid), frame, shards)
            return _finished(target, replace(draft, manifest=files), deltas)

    def convert(
        self, url: str, spark: SparkSession, *, key_groups: int | None = None, parallelism: int | None = None
    ) -> Savepoint:
        """Make another savepoint of the same state, canonical, in `key_groups` key groups (as many as it has,
        if not given), cut for `parallelism` tasks.
        """
        stored = self._stored()
        groups = key_groups or self.key_groups
        shards = _shards(spark, groups, parallelism)
        uids = list(stored.lineages)
        kept = _without(self._record.manifest, set(uids))
        draft = replace(_renewed(self._record), key_groups=groups, manifest=replace(kept, parallelism=shards))
        target = open_storage(str(url))
        with _beginning(target, draft):
            files, copies = repacked(draft.manifest, draft.id)
            copy_all(self._storage, target, copies)
            deltas = []
            for uid in uids:
                deltas += _regrouped(target, draft, stored, uid, spark, shards)
            return _finished(target, replace(draft, manifest=files), deltas)

    def __repr__(self) -> str:
        return f"Savepoint({self.url!r}, job={self.job!r}, epoch={self.epoch})"

    def _stored(self) -> StoredState:
        return open_stored(self.url)


def _shards(spark: SparkSession, key_groups: int, parallelism: int | None) -> int:
    if not 1 <= key_groups <= KEY_GROUPS_MAX:
        raise DefinitionError(f"key_groups={key_groups} is out of range; choose 1 to {KEY_GROUPS_MAX}")
    if parallelism is None:
        return min(default_parallelism(spark), key_groups)
    if not 1 <= parallelism <= key_groups:
        raise DefinitionError(
            f"parallelism={parallelism} is out of range; choose a number from 1 to key_groups ({key_groups})"
        )
    return parallelism


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    choices = list(known)
    unknown = [name for name in given if name not in choices]
    if unknown:
        raise DefinitionError(
            f"there is no {what} {', '.join(map(repr, unknown))}; "
            f"there are: {', '.join(map(repr, choices)) or 'none'}"
        )


def _refuse_columns(frames: Mapping[str, tuple[StateLayout, DataFrame]]) -> None:
    """Every mistake in every frame's columns, at once."""
    problems = []
    for uid, (layout, frame) in frames.items():
        problems += [
            f"the rows for operator {uid!r}: {p}" for p in schema_problems(layout, frame_schema(frame))
        ]
    if problems:
        wanted = [f"{uid!r} has {schema_ddl(row_schema(layout))}" for uid, (layout, _) in frames.items()]
        raise DefinitionError("\n".join([*problems, f"columns wanted: {'; '.join(wanted)}"]))


def _draft(
    *,
    job: str,
    key_groups: int,
    positions: dict[str, Any],
    parallelism: int,
    operators: tuple[OperatorSchema, ...],
) -> SavepointRecord:
    """A savepoint of state from nowhere, as if it were the first commit of the job."""
    id, now = uuid.uuid4().hex, SystemClock().now_ms()
    manifest = Manifest(
        number=2,
        parent=Parent(number=1, checksum=""),
        term=0,
        run="",
        positions=positions,
        notes={},
        last_epoch=FIRST_EPOCH,
        clock_ms=now,
        parallelism=parallelism,
        fingerprint="",
        rows=0,
        operators=operators,
        deltas=(),
        snapshots=(),
        staged=(),
        published_through={},
        retained_from=1,
    )
    return SavepointRecord(
        id=id,
        job=job,
        identity=id,
        key_groups=key_groups,
        commit=1,
        created_ms=now,
        written_by=written_by(),
        format="canonical",
        stopped=False,
        manifest=manifest,
    )


def _renewed(record: SavepointRecord) -> SavepointRecord:
    """The draft of a savepoint made from another. A changed one is not the job's own any more: whoever starts
    from it gets an identity of its own.
    """
    return replace(
        record,
        id=uuid.uuid4().hex,
        created_ms=SystemClock().now_ms(),
        written_by=written_by(),
        stopped=False,
        manifest=replace(record.manifest, last_epoch=max(record.manifest.last_epoch, FIRST_EPOCH)),
    )


def _without(manifest: Manifest, uids: Iterable[str]) -> Manifest:
    """A manifest without the files of some operators."""
    out = set(uids)
    return replace(
        manifest,
        deltas=tuple(file for file in manifest.deltas if file.operator not in out),
        snapshots=tuple(file for file in manifest.snapshots if file.operator not in out),
        lists=tuple(file for file in manifest.lists if file.operator not in out),
    )


@contextlib.contextmanager
def _beginning(target: Storage, draft: SavepointRecord) -> Iterator[None]:
    """Take the place; on failure remove what was put there."""
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    begin_savepoint(
        target, UnfinishedRecord(id=draft.id, job=draft.job, holder=holder, since_ms=draft.created_ms)
    )
    try:
        yield
    except BaseException:
        with contextlib.suppress(errors.HoldfastError):
            remove_all(target, [e.name for e in target.list("")], draft.id, SystemClock().now_ms())
        raise


def _finished(target: Storage, draft: SavepointRecord, deltas: list[DeltaFile]) -> Savepoint:
    manifest = replace(draft.manifest, deltas=(*draft.manifest.deltas, *deltas))
    form: Literal["native", "canonical"] = "native" if manifest.snapshots else "canonical"
    named = {file.object for file in manifest.snapshots}
    named |= {delta.extent.object for delta in manifest.deltas}
    named |= {held.extent.object for held in manifest.lists}
    left = [entry.name for entry in target.list(names.DATA) if entry.name not in named]
    # Of tasks that Spark ran more than once.
    target.delete(left)
    record = seal_savepoint(target, replace(draft, format=form, manifest=manifest))
    return Savepoint(target, record)


def _written_rows(
    target: Storage, draft: SavepointRecord, layout: StateLayout, frame: DataFrame, shards: int
) -> list[DeltaFile]:
    """Put every row into its key group, as the operators do, and write the groups of each shard."""
    states, group = column_names(layout)
    wanted = row_schema(layout)
    columns = [
        f"cast({_quoted(name)} as {type_ddl(wanted.field(name).type)}) as {_quoted(name)}"
        for name in (*layout.key.names, *states)
    ]
    routed = frame.selectExpr(*columns).selectExpr(
        "*", f"{group_expression(layout.key, layout.key.names, draft.key_groups)} as {_quoted(group)}"
    )
    return _written(target, draft, layout, routed, "rows", group, shards)


def _regrouped(
    target: Storage,
    draft: SavepointRecord,
    stored: StoredState,
    uid: str,
    spark: SparkSession,
    shards: int,
) -> list[DeltaFile]:
    cuts = tuple((int(cut.first), int(cut.end)) for cut in pieces(stored.view, uid, stored.whole))
    task = RegroupTask(stored.storage.url, uid, cuts, draft.key_groups)
    entries = spark.range(0, len(cuts), 1, len(cuts)).mapInArrow(task, ENTRY_SCHEMA)
    return _written(target, draft, stored.layout(uid), entries, "entries", "key_group", shards)


def _written(
    target: Storage,
    draft: SavepointRecord,
    layout: StateLayout,
    frame: DataFrame,
    form: Literal["rows", "entries"],
    group: str,
    shards: int,
) -> list[DeltaFile]:
    from pyspark.sql.functions import expr

    epoch = draft.manifest.last_epoch
    ranges = shard_ranges(draft.key_groups, shards)
    task = WriteTask(target.url, layout, form, group, ranges, epoch)
    shard = f"cast((({_quoted(group)} + 1) * {shards} - 1) div {draft.key_groups} as int)"
    order = [_quoted(group), "`key`"] if form == "entries" else [_quoted(group)]
    placed = frame.repartitionById(shards, expr(shard)).sortWithinPartitions(*order)
    results = [decode_written(bytes(row[0])) for row in placed.mapInArrow(task, RESULT_SCHEMA).collect()]
    deltas = []
    for result in sorted(results, key=lambda result: result.first_group):
        if result.failure is not None:
            raise getattr(errors, result.failure.kind)(*result.failure.args)
        assert result.extent is not None
        state = WholeState(layout.operator, result.first_group, result.end_group, result.entries)
        deltas.append(whole_state_delta(draft, state, result.extent))
    return deltas


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
