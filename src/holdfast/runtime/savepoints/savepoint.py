"""Savepoints as Python objects: looked at, and made of DataFrames.

    Savepoint.write(url, job, {"totals": frame})       state for a job that has none yet
    Savepoint.open(url).edit(other, spark, {...})      the same with some operators' state changed
    Savepoint.open(url).convert(other, spark, ...)     the same in another number of key groups

Always true: a savepoint is never changed, each of these makes another one; what they write is canonical
(Parquet), in the key groups in which the operators will look for it. Mistakes in the columns are told all at
once, before anything is written; after any error nothing is left that could be taken for a savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.checkpoint.savepoints.stored_savepoint import (
    dispose_savepoint,
    read_savepoint,
    verify_savepoint,
)
from holdfast.checkpoint.store.records import Json
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.checkpoint.store.schemas import record_of
from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.inspect.stored_state import StoredState, open_stored
from holdfast.runtime.epoch.program import compile_graph
from holdfast.runtime.epoch.schemas_in_force import declaration
from holdfast.runtime.savepoints.draft import drafted, make_savepoint, reading_from, renewed, without
from holdfast.runtime.savepoints.state_writer import StateWriter, refuse_columns
from holdfast.runtime.spark_session import default_parallelism, open_session, register_data_sources
from holdfast.state.encoding.keys import KEY_GROUPS_MAX
from holdfast.state.encoding.types import frame_ddl
from holdfast.state.files.rows import row_schema
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Change = DataFrame | Callable[[DataFrame], DataFrame]


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
        return {uid: frame_ddl(row_schema(line.layout)) for uid, line in stored.lineages.items()}

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
        nodes = {node.uid: node for node in graph.operators}
        lineages = {uid: declaration(nodes[uid], forms[uid].layout).begun for uid in frames}
        refuse_columns({uid: (lineages[uid].layout, frame) for uid, frame in frames.items()})
        shards = _shards(session, key_groups, parallelism)
        draft = drafted(
            job=graph.name,
            key_groups=key_groups,
            positions=dict(positions or {}),
            parallelism=shards,
            operators=tuple(record_of(lineage) for lineage in lineages.values()),
        )
        target = open_storage(str(url))
        write_rows = StateWriter(target, draft, shards).write_rows
        written = (write_rows(lineages[uid].layout, frame) for uid, frame in frames.items())
        return Savepoint(target, make_savepoint(target, draft, None, written))

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
        stored. `drop`: uids whose state is left out. `positions`: sources to go on elsewhere, with event time
        not known until they have been read.
        """
        stored = self._stored()
        uids = [schema.uid for schema in stored.view.operators]
        _refuse_unknown("operator", [*(changes or {}), *drop], uids)
        frames = {
            uid: change(self.read(spark, uid)) if callable(change) else change
            for uid, change in (changes or {}).items()
        }
        refuse_columns({uid: (stored.layout(uid), frame) for uid, frame in frames.items()})
        draft = renewed(self._record)
        kept = without(draft.manifest, frames.keys() | set(drop))
        operators = tuple(schema for schema in kept.operators if schema.uid not in set(drop))
        draft = replace(draft, manifest=reading_from(replace(kept, operators=operators), positions or {}))
        target = open_storage(str(url))
        write_rows = StateWriter(target, draft, _shards(spark, self.key_groups, None)).write_rows
        written = (write_rows(stored.layout(uid), frame) for uid, frame in frames.items())
        return Savepoint(target, make_savepoint(target, draft, self._storage, written))

    def convert(
        self, url: str, spark: SparkSession, *, key_groups: int | None = None, parallelism: int | None = None
    ) -> Savepoint:
        """Make another savepoint of the same state, canonical, in `key_groups` key groups (as many as it has,
        if not given), cut for `parallelism` tasks.
        """
        stored = self._stored()
        groups = key_groups or self.key_groups
        shards = _shards(spark, groups, parallelism)
        draft = renewed(self._record)
        kept = replace(without(draft.manifest, stored.lineages), parallelism=shards)
        draft = replace(draft, key_groups=groups, manifest=kept)
        target = open_storage(str(url))
        writer = StateWriter(target, draft, shards)
        written = (writer.regroup(spark, stored, uid) for uid in stored.lineages)
        return Savepoint(target, make_savepoint(target, draft, self._storage, written))

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
