"""What an epoch did, as its chosen results tell it. Durable, and not yet committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from holdfast.checkpoint.chain.plans import input_of
from holdfast.checkpoint.chain.shard_lines import Lines
from holdfast.checkpoint.store.records import (
    DeltaFile,
    PartitionTime,
    PlanRecord,
    SentFile,
    StagedFile,
    UncoordinatedShard,
)
from holdfast.connectors.contract import Arrived
from holdfast.runtime.epoch.combining import ShardLoad
from holdfast.runtime.epoch.list_state import TakenLists
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.set_aside import RowsAside
from holdfast.state.contract import NextDue, Version
from holdfast.tasks.messages import TaskResult, UncoordinatedResult


@dataclass
class EpochOutcome:
    """What an epoch did. Durable, and not yet committed."""

    plan: PlanRecord
    rows: int = 0
    seconds: float = 0.0
    deltas: list[DeltaFile] = field(default_factory=list)
    staged: list[StagedFile] = field(default_factory=list)
    sent: list[SentFile] = field(default_factory=list)
    versions: dict[tuple[str, int], Version] = field(default_factory=dict)
    state_bytes: dict[tuple[str, int], int] = field(default_factory=dict)
    executors: dict[tuple[str, int], str] = field(default_factory=dict)
    timings_ms: dict[str, float] = field(default_factory=dict)
    arrivals: dict[str, int] = field(default_factory=dict)
    loads: dict[str, list[ShardLoad]] = field(default_factory=dict)
    """Operator -> what its shards had, those that had rows."""
    lists: TakenLists = field(default_factory=TakenLists)
    uncoordinated: dict[tuple[str, int], UncoordinatedResult] = field(default_factory=dict)
    uncoordinated_shards: list[UncoordinatedShard] = field(default_factory=list)
    """How shards stand whose keys are saved on their own, for the commit."""
    next_due: dict[tuple[str, int], NextDue | None] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    """Operator uid -> rows whose windows were closed."""
    times: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Source uid -> partition -> the newest event time that was read."""
    silent: dict[str, list[str]] = field(default_factory=dict)
    """Source uid -> its partitions of which no rows were read."""
    event_times: dict[str, dict[str, PartitionTime]] = field(default_factory=dict)
    """How far the event time of every source is after the epoch, for the commit."""
    expires_us: int | None = None
    """When the last thing is let go of that its rows were put into; None: they were put into nothing."""
    needs_from: int = 0
    """After the epoch, the first whose rows are needed for state that is in no file. 0: it is in files."""
    arrived: list[Arrived] = field(default_factory=list)
    """When its rows arrived at their sources, as far as these know it: shares are rows."""
    set_aside: dict[str, RowsAside] = field(default_factory=dict)
    """Source uid -> rows of the epoch that it could not parse."""

    @cached_property
    def input(self) -> str:
        """Names the rows that the epoch read."""
        return input_of(self.plan)


def take_state(
    outcome: EpochOutcome,
    uid: str,
    result: TaskResult,
    lines: Lines,
    bundle: Bundle,
    late_is_read: bool = False,
) -> None:
    """Take a chosen result's state changes, and what it says of itself. `late_is_read`: something reads the
    late rows of the operator."""
    key = (uid, result.shard)
    outcome.executors[key] = f"{result.host}:{result.executor}"
    for name, spent in result.timings_ms.items():
        outcome.timings_ms[name] = max(outcome.timings_ms.get(name, 0.0), spent)
    if result.arrival:
        outcome.arrivals[result.arrival] = outcome.arrivals.get(result.arrival, 0) + 1
    if result.version is None:
        return
    late = result.late if late_is_read else 0
    outcome.loads.setdefault(uid, []).append(ShardLoad(result.rows, result.partial_rows, late))
    outcome.versions[key] = result.version
    outcome.next_due[key] = result.next_due
    if result.late:
        outcome.late[uid] = outcome.late.get(uid, 0) + result.late
    outcome.state_bytes[key] = result.state_bytes
    if result.expires_us is not None:
        known = (result.expires_us, outcome.expires_us)
        outcome.expires_us = max(at_us for at_us in known if at_us is not None)
    if result.uncoordinated is not None:
        outcome.uncoordinated[key] = result.uncoordinated
    if result.delta is not None:
        line = lines[key]
        outcome.deltas.append(
            DeltaFile(
                operator=uid,
                first_group=line.groups.first,
                end_group=line.groups.end,
                version=result.version,
                parent=line.version,
                extent=bundle.place(result.delta),
                entries=result.entries,
                next_due=result.next_due,
            )
        )
