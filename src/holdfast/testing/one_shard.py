"""The state of one shard in a test: what the operators of tasks run on, checkpointed as a job's is.

Keyed state is real working state in a directory of its own, and every run leaves a delta; lists of a function
without keys are packed after every run. A restore starts from these bytes alone.
Always true: a run that raises has changed nothing.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.column_types import state_layout
from holdfast.graph.functions import OperatorFunction
from holdfast.graph.job_graph import ConnectNode, OperatorNode
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.inspect.point_query import key_columns
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import pack_list, unpack_list
from holdfast.state.cells.timers import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state.contract import (
    EMPTY_VERSION,
    DeltaStep,
    Entries,
    ShardState,
    StateTarget,
    Version,
)
from holdfast.state.encoding.arrow_values import objects_of
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.ttl import NO_INSTANTS, Instants
from holdfast.state.files.changes import Changes
from holdfast.state.files.delta import read_delta, to_entries, write_delta
from holdfast.state.files.rows import changes_from, live_items, rows_of
from holdfast.state.local.backends import open_state, remove_others
from holdfast.tasks.operators.broadcast import BroadcastEntries
from holdfast.tasks.operators.dispatch import KeyedOperator, keeps_times, next_due, run_function
from holdfast.tasks.operators.result import EpochContext, EventTime
from holdfast.tasks.operators.row_function import run_unkeyed_rows
from holdfast.tasks.operators.shard_rows import cut

KEY_GROUPS = 128
ALL_GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(KEY_GROUPS))
TIMER_STATES = {"event": EVENT_TIMERS, "processing": PROCESSING_TIMERS}
_RESTORED = "what the harness keeps"


class Shard(Protocol):
    """One shard of an operator."""

    def run(self, rows: pa.Table, ctx: EpochContext) -> dict[str, pa.Table]:
        """Run the operator over some rows and keep what it changed; gives its outputs by name."""

    def checkpoint(self) -> None:
        """From here on `restore` comes back to what is now."""

    def restore(self) -> None:
        """Throw the state away and make it again from the last checkpoint."""

    def state(self, key: Any) -> dict[str, Any]:
        """What is stored of a key, by state; a state of which nothing is stored is not there."""

    def keys(self) -> list[Any]:
        """The keys of which anything is stored, in no particular order."""

    def timers(self, key: Any) -> dict[str, list[int]]:
        """The timers of a key in µs since 1970, by their clock; a clock without any is not there."""

    def is_due(self, time: EventTime | None, clock_ms: int) -> bool:
        """Whether there is something to do without rows."""


def shard_of(node: OperatorNode, rows: pa.Schema) -> Shard:
    """An empty shard of an operator over rows of this schema."""
    layout = state_layout(node.uid, node.function, rows, node.key)
    if isinstance(node.function, OperatorFunction):
        return UnkeyedShard(node.function, layout)
    assert not isinstance(node.function, BroadcastSide), f"{node.uid} is one half of an operator"
    # The rows of two streams come arranged.
    order_by = () if isinstance(node, ConnectNode) else node.order_by
    return KeyedShard(node.function, node.key, order_by, layout)


class KeyedShard:
    """All key groups of an operator with state per key."""

    def __init__(
        self,
        function: KeyedOperator,
        key: tuple[str, ...],
        order_by: tuple[str, ...],
        layout: StateLayout,
    ) -> None:
        self._function, self._key, self._order_by, self._layout = function, key, order_by, layout
        self._deltas: list[tuple[Version, bytes]] = []
        """What each run changed, and the version that it came to."""
        self._checkpointed = self._lives = 0
        self._now = NO_INSTANTS
        self._root = Path(tempfile.mkdtemp(prefix="holdfast-harness-")).absolute()
        weakref.finalize(self, _remove, self._root)
        self._state = self._opened()
        self.broadcast_entries: BroadcastEntries = {}
        """Of a BroadcastFunction: what it reads of its broadcast states."""

    def run(self, rows: pa.Table, ctx: EpochContext) -> dict[str, pa.Table]:
        if not rows.num_rows and not keeps_times(self._layout):
            # As in a job: a shard that got no rows is not run, unless it keeps times.
            return {}
        groups = key_groups_of(
            routing_hash([rows.column(name).combine_chunks() for name in self._key]), KEY_GROUPS
        )
        keyed = cut(self._layout, rows, groups, self._key, self._order_by)
        context = replace(ctx, groups=ALL_GROUPS)
        self._now = context.instants
        done = run_function(
            self._function, self._layout, keyed, self._state, context, broadcast=self.broadcast_entries
        )
        delta = write_delta(self._layout, done.changes)
        version = Version(ctx.epoch, self._lives, "")
        self._state.apply(self._version, version, done.entries(self._layout), committed=self._committed)
        self._deltas.append((version, delta))
        return done.outputs

    def checkpoint(self) -> None:
        self._checkpointed = len(self._deltas)

    def restore(self) -> None:
        del self._deltas[self._checkpointed :]
        self._state.close()
        self._state = self._opened()

    def state(self, key: Any) -> dict[str, Any]:
        stored = self._stored_of(key)
        found = ((field.name, _stored(field, stored)) for field in self._layout.fields)
        return {name: values[0] for name, values in found if values}

    def keys(self) -> list[Any]:
        rows = rows_of(self._layout, live_items(self._layout, self._state.scan(b""), self._now))
        columns = [objects_of(rows.column(number)) for number in range(len(self._layout.key))]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def timers(self, key: Any) -> dict[str, list[int]]:
        if not keeps_times(self._layout):
            return {}
        entries = self._stored_of(key).entries
        return {
            clock: sorted(entries[name].entry.cast(pa.int64()).to_pylist())
            for clock, name in TIMER_STATES.items()
            if name in entries
        }

    def is_due(self, time: EventTime | None, clock_ms: int) -> bool:
        self._now = Instants(clock_ms * 1_000, None if time is None else time.now_us)
        due = next_due(self._function, self._layout, ALL_GROUPS, self._state, time)
        if due is None:
            return False
        until_us = None if time is None else time.now_us
        return (due.event_us is not None and until_us is not None and due.event_us <= until_us) or (
            due.processing_us is not None and due.processing_us <= clock_ms * 1_000
        )

    def _stored_of(self, key: Any) -> Changes:
        names = self._layout.key.names
        if isinstance(key, tuple) and len(key) == len(names) > 1:
            key = dict(zip(names, key, strict=True))
        columns = key_columns(self._layout, key)
        groups = key_groups_of(routing_hash(columns), KEY_GROUPS)
        (base,) = self._layout.keys.encode(columns, groups)
        return changes_from(self._layout, live_items(self._layout, self._state.scan(base), self._now))

    @property
    def _version(self) -> Version:
        return self._deltas[-1][0] if self._deltas else EMPTY_VERSION

    @property
    def _committed(self) -> int:
        return self._deltas[self._checkpointed - 1][0].epoch if self._checkpointed else 0

    def _opened(self) -> ShardState:
        """Working state in a new directory: nothing but the deltas leads there."""
        self._lives += 1
        name = str(self._lives)
        remove_others(self._root, (name,))
        parents = [EMPTY_VERSION, *(version for version, _ in self._deltas)]
        steps = [
            DeltaStep(version, parent, partial(_loaded, self._layout, data))
            for (version, data), parent in zip(self._deltas, parents, strict=False)
        ]
        target = StateTarget(self._version, 0, KEY_GROUPS, deltas=tuple(steps), committed=self._committed)
        return open_state(self._root / name, "harness", target)


def _loaded(layout: StateLayout, data: bytes) -> Entries:
    return to_entries(layout, read_delta(layout, data, _RESTORED))


def _stored(field: StateField, of_key: Changes) -> list[Any]:
    """The one value that is stored of a state, or none. Timers are no state to the user."""
    if field.name in TIMER_STATES.values() and field.kind is StateKind.TIMED:
        return []
    if field.kind is StateKind.VALUE:
        return objects_of(of_key.values[field.name].values) if field.name in of_key.values else []
    entries = of_key.entries.get(field.name)
    if entries is None:
        return [[]] if field.name in of_key.headers else []
    values = objects_of(entries.values)
    if field.kind is StateKind.LIST:
        return [values]
    return [dict(zip(objects_of(entries.entry), values, strict=True))]


def _remove(root: Path) -> None:
    remove_others(root, ())
    shutil.rmtree(root, ignore_errors=True)


class UnkeyedShard:
    """The only shard of an operator without keys."""

    def __init__(self, function: OperatorFunction, layout: StateLayout) -> None:
        self._function, self._layout = function, layout
        self._packed: Mapping[str, bytes] = {}
        self._checkpointed: Mapping[str, bytes] = {}

    def run(self, rows: pa.Table, ctx: EpochContext) -> dict[str, pa.Table]:
        if not rows.num_rows:
            return {}
        lists = {name: ShardList(items) for name, items in self.state(None).items()}
        done = run_unkeyed_rows(self._function, self._layout.fields, rows, lists, 1, ctx)
        self._packed = {
            **self._packed,
            **{
                name: pack_list(self._layout.operator, self._layout.field(name), held.items)
                for name, held in done.lists.items()
            },
        }
        return done.outputs

    def checkpoint(self) -> None:
        self._checkpointed = self._packed

    def restore(self) -> None:
        self._packed = self._checkpointed

    def state(self, key: Any) -> dict[str, Any]:
        if key is not None:
            raise DefinitionError(f"a function without keys has no state of {key!r}; ask for state()")
        return {
            name: unpack_list(data, self._layout.field(name), _RESTORED)
            for name, data in self._packed.items()
        }

    def keys(self) -> list[Any]:
        return []

    def timers(self, key: Any) -> dict[str, list[int]]:
        return {}

    def is_due(self, time: EventTime | None, clock_ms: int) -> bool:
        return False
