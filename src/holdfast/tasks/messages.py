"""What crosses to a Spark worker and what comes back, as plain values.

Always true: everything here pickles without a session, a client or an open file; a task's result names files
that were durable before it was sent, or carries their bytes.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.checkpoint.chain.shard_lines import Line
from holdfast.checkpoint.store.records import Extent, SnapshotFile
from holdfast.state.contract import NextDue, Version
from holdfast.tasks.operators.result import EpochContext, EventTime

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.graph.job_graph import OnError
    from holdfast.graph.partials import Partials
    from holdfast.graph.uncoordinated import Uncoordinated
    from holdfast.state.encoding.layout import StateLayout
    from holdfast.state.files.schema_conversion import Lineage
    from holdfast.tasks.operators.two_inputs import SideOrder


@dataclass(frozen=True)
class Workspace:
    """Where the tasks of one job keep working state (`working_root`) and put files (`storage_url`)."""

    identity: str
    storage_url: str
    working_root: str | None
    backend: str
    owner: str = ""
    """The node whose working state it is, where nodes of a cluster may share a machine."""
    private_root: bool = False
    """`working_root` has a name that other users can guess: it must be this user's alone."""


@dataclass(frozen=True)
class EpochWork:
    """One attempt at an epoch by one run of the job: the same for all of its tasks."""

    workspace: Workspace
    epoch: int
    attempt: int
    run: str
    clock_ms: int
    replicated: bool = False
    """Other processes run the epoch too, and are to come to the same bytes, whatever order rows came in."""


@dataclass(frozen=True)
class StageTask:
    """Rows of a stream to be staged as they are."""

    work: EpochWork
    stream: str


@dataclass(frozen=True, kw_only=True)
class OperatorTask:
    """One operator in one epoch: every shard's task gets the same value and takes its own shard from it."""

    work: EpochWork
    uid: str
    function: Any
    on_error: OnError
    outputs: tuple[str, ...]
    saves_state: bool

    time: EventTime | None = None
    """None: no event time reaches the operator."""

    def context(self, shard: int) -> EpochContext:
        work = self.work
        return EpochContext(self.uid, work.epoch, work.clock_ms, shard, self.on_error, self.time)


@dataclass(frozen=True, kw_only=True)
class KeyedTask(OperatorTask):
    """An operator with state per key."""

    committed: int
    lineage: Lineage
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    input: pa.Schema
    """The columns of its rows, for a shard that has none."""
    shards: tuple[Line, ...]
    uncoordinated: Uncoordinated | None = None
    """Its keys are saved on their own: no delta is written."""
    upstream: bool = False
    """Its state is had again from its rows: no delta is written."""
    term: int = 0
    partials: Partials | None = None
    """Its rows come combined, by these."""
    sides: SideOrder | None = None
    """Of an operator with two inputs: how their rows are sorted."""
    broadcast: BroadcastLists | None = None
    """Of one with a broadcast input: what its rows, those of this epoch included, have made of the broadcast
    states. Every task of the epoch gets the same."""
    event_time: str | None = None
    """The column of its rows whose newest time is to be told, because Spark does not see them."""

    @property
    def layout(self) -> StateLayout:
        return self.lineage.layout

    def context(self, shard: int) -> EpochContext:
        return replace(super().context(shard), groups=self.shards[shard].groups)


@dataclass(frozen=True, kw_only=True)
class UnkeyedTask(OperatorTask):
    """An operator without keys."""

    layout: StateLayout
    lists: tuple[dict[str, HeldList], ...]
    """For each shard: state name -> its list; one that is not there is empty."""
    order_by: tuple[str, ...] = ()
    """The columns by which the rows of a shard are sorted; none: they come as they are read."""


@dataclass(frozen=True, slots=True)
class BroadcastLists:
    """The broadcast states of one version, for tasks that read them."""

    layout: StateLayout
    lists: dict[str, HeldList]
    """State name -> its entries; one that is not there is empty."""


class Payload(msgspec.Struct, frozen=True):
    """Bytes in storage (`extent`), or the bytes themselves with their checksum."""

    checksum: str
    length: int
    inline: bytes | None = None
    extent: Extent | None = None


class HeldList(msgspec.Struct, frozen=True):
    """A shard's list, packed (see state.cells.shard_list); its first `inherited` items came by union."""

    payload: Payload
    items: int
    inherited: int = 0


class Output(msgspec.Struct, frozen=True):
    """Rows that a task staged for one named output."""

    name: str
    rows: int
    payload: Payload


class Failure(msgspec.Struct, frozen=True):
    """A HoldfastError on its way from a task to the driver: class name and arguments."""

    kind: str
    args: tuple[Any, ...]


class SaveCounts(msgspec.Struct, frozen=True):
    """What was done about keys that are saved on their own. Keys, but for `error`."""

    saved: int = 0
    failed: int = 0
    """The storage failed to take them. They stay dirty and are tried again, as are all but `saved`."""
    rejected: int = 0
    """The pools had no room."""
    superseded: int = 0
    """The storage holds later saves: another leader's, or another checkpoint's."""
    held_back: int = 0
    """Not saved because it is not known whether a save exists."""
    fetched: int = 0
    absent: int = 0
    unanswered: int = 0
    """A fetch failed or was not answered in time: the key went on from nothing, and is held back."""
    bypassed: int = 0
    """As `unanswered`, without asking."""
    repeated: int = 0
    """Fetched with rows of an epoch that is run again: these count twice."""
    evicted: int = 0
    error: str = ""
    """What the storage said last."""

    def plus(self, other: SaveCounts) -> SaveCounts:
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTED}
        return SaveCounts(**sums, error=other.error or self.error)


COUNTED = tuple(name for name in SaveCounts.__struct_fields__ if name != "error")


class UncoordinatedResult(msgspec.Struct, frozen=True):
    """How a shard stands whose keys are saved on their own."""

    incarnation: str
    unsaved: int
    """Events that are in no durable save that is known of."""
    discarded: int
    """Events thrown away in this copy because a save was found late."""
    due_ms: int
    """When the first of its dirty keys is due that has no save yet."""
    counts: SaveCounts = SaveCounts()


class TaskResult(msgspec.Struct, frozen=True):
    """What one task did. It decides nothing: the driver chooses results once Spark says the job succeeded."""

    shard: int
    host: str
    executor: str
    rows: int = 0
    """How many it was given, before they were combined."""
    partial_rows: int = 0
    """How many partial rows the rows make, if they are combined: one for each key, or key and pane."""
    version: Version | None = None
    outputs: tuple[Output, ...] = ()
    delta: Payload | None = None
    entries: int = 0
    state_bytes: int = 0
    snapshot: SnapshotFile | None = None
    timings_ms: dict[str, float] = {}
    arrival: str = ""
    """How the shard's working state came to its version, as state.contract.Arrival names it."""
    failure: Failure | None = None
    lists: dict[str, HeldList] = {}
    """Of an operator without keys: the lists that changed, by state."""
    uncoordinated: UncoordinatedResult | None = None
    late: int = 0
    """Rows whose windows were closed, or that had no time."""
    next_due: NextDue | None = None
    """Of an operator that keeps times: when the shard has something to do next."""
    expires_us: int | None = None
    """Of an operator over windows of time, or a join by time: the event time at which the last thing is let
    go of that its rows have a part in. None: they have a part in nothing."""
    newest_us: int | None = None
    """The newest time in the column that was asked for; None: there is none."""


class StopWatch:
    """Where a task's time went."""

    def __init__(self) -> None:
        self.laps_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_ms[name] = (now - self._last) * 1_000
        self._last = now


def this_partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "not inside a Spark task"
    return context.partitionId()


def result_here(shard: int, **told: Any) -> TaskResult:
    """A result of this process."""
    return TaskResult(shard, socket.gethostname(), os.getcwd(), **told)


def failed_here(shard: int, error: HoldfastError) -> TaskResult:
    """An error that the driver should see whole, as a result: Spark would keep only its text."""
    return result_here(shard, failure=Failure(type(error).__name__, error.args))


RESULT_SCHEMA = "result binary"
_decoder = msgspec.msgpack.Decoder(TaskResult)


def encode_result(result: TaskResult) -> bytes:
    return msgspec.msgpack.encode(result)


def decode_result(data: bytes) -> TaskResult:
    return _decoder.decode(data)


def as_batch(result: TaskResult) -> pa.RecordBatch:
    """A result on its way from a task to the driver."""
    return pa.RecordBatch.from_arrays([pa.array([encode_result(result)], pa.binary())], ["result"])
