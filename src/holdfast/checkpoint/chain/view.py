"""What a checkpoint is after each commit: the fold of its records.

Always true: `fold` touches nothing, costs what the record holds and not what the state holds, and refuses
a record that does not follow. The views of neighbouring commits share almost everything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.chain.channels import Channels, fold_channels, from_states, to_states
from holdfast.checkpoint.chain.live_files import (
    DeltasByRange,
    SharedList,
    kept_snapshots,
    stamped,
    uncovered,
    unpublished,
    with_deltas,
    with_lists,
    with_uncoordinated,
)
from holdfast.checkpoint.chain.settled import Settled, kept, through_epoch, with_staged
from holdfast.checkpoint.store.records import (
    BarrierPlace,
    ChannelState,
    CommitRecord,
    DeltaFile,
    Json,
    ListFile,
    Manifest,
    OperatorSchema,
    Parent,
    PartitionTime,
    SnapshotFile,
    StagedFile,
    TableCopy,
    UncoordinatedShard,
)
from holdfast.errors import CorruptionError

LanesThrough = dict[str, dict[str, tuple[int, int]]]
"""Sink uid -> lane -> the newest epoch with rows that the lane has shown, and how many rows."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain: what the next record must name as its parent, and what it may not take back."""

    number: int
    checksum: str
    term: int
    run: str
    clock_ms: int
    retained_from: int
    published_through: dict[str, int]
    rows_through: dict[str, int]
    channels: Channels = field(default_factory=dict)
    barriers: tuple[BarrierPlace, ...] = ()
    staged: SharedList[StagedFile] = field(default_factory=SharedList)
    settled: Settled = field(default_factory=Settled)
    asked: dict[str, tuple[int, int]] = field(default_factory=dict)
    lanes_through: LanesThrough = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """The whole checkpoint after commit `number`. Its dicts are never changed."""

    number: int = 0
    checksum: str = ""
    """Of the stored bytes of record `number`."""
    term: int = 0
    run: str = ""
    last_epoch: int = 0
    positions: dict[str, Json] = field(default_factory=dict)
    notes: dict[str, SharedList[Json]] = field(default_factory=dict)
    deltas: dict[str, DeltasByRange] = field(default_factory=dict)
    """Operator uid -> key-group range -> live deltas in epoch order."""
    snapshots: dict[str, tuple[SnapshotFile, ...]] = field(default_factory=dict)
    """Operator uid -> kept snapshots, oldest first."""
    lists: dict[str, tuple[ListFile, ...]] = field(default_factory=dict)
    """Operator uid -> the newest list of each shard and state that has one, in the order of the shards."""
    uncoordinated: dict[str, tuple[UncoordinatedShard, ...]] = field(default_factory=dict)
    """Operator uid -> its shards, where its keys are saved on their own."""
    staged: SharedList[StagedFile] = field(default_factory=SharedList)
    """Output not yet published everywhere, in epoch order. After a rewind there may be some of epochs after
    `last_epoch`: it was committed, and is shown as it is."""
    settled: Settled = field(default_factory=Settled)
    """How far the output for sinks is settled: up to there it is not staged again."""
    published_through: dict[str, int] = field(default_factory=dict)
    rows_through: dict[str, int] = field(default_factory=dict)
    lanes_through: LanesThrough = field(default_factory=dict)
    operators: tuple[OperatorSchema, ...] = ()
    parallelism: int = 0
    clock_ms: int = 0
    fingerprint: str = ""
    rows: int = 0
    retained_from: int = 1
    given_up_below: int = 1
    """`retained_from` as the commit before this one had it: what only older commits need may be deleted now.
    """
    manifest: str = ""
    event_times: dict[str, dict[str, PartitionTime]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    closed_through: int = 0
    tables: dict[str, TableCopy] = field(default_factory=dict)
    """Lookup uid -> the copy of its table that is in use."""
    channels: Channels = field(default_factory=dict)
    """Those that leave this part."""
    ended: bool = False
    barriers: tuple[BarrierPlace, ...] = ()
    """The newest barriers of the whole job that this part carries, oldest first."""
    asked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Channel uid -> the epoch that this part last asked the part before for again, and the commit that did.
    """
    needs_from: int = 0
    """The state is in no file: the first epoch whose rows it is made of. 0: it is in files."""
    whole_after: int = 0
    """Until this epoch has run again, state is in the making: nothing is staged or sent of what is computed.
    """

    @property
    def head(self) -> Head:
        return Head(
            self.number,
            self.checksum,
            self.term,
            self.run,
            self.clock_ms,
            self.retained_from,
            self.published_through,
            self.rows_through,
            self.channels,
            self.barriers,
            self.staged,
            self.settled,
            self.asked,
            self.lanes_through,
        )

    def live_deltas(self, operator: str) -> list[DeltaFile]:
        """The live deltas of one operator in epoch order."""
        found = [delta for deltas in self.deltas.get(operator, {}).values() for delta in deltas]
        return sorted(found, key=lambda delta: delta.version.epoch)

    def objects(self) -> set[str]:
        """Every object that restoring and publishing from here needs."""
        needed = {file.extent.object for file in self.staged}
        needed.update(file.object for files in self.snapshots.values() for file in files)
        needed.update(file.extent.object for files in self.lists.values() for file in files)
        needed.update(name for copy in self.tables.values() for name in copy.objects)
        needed.update(file.extent.object for channel in self.channels.values() for file in channel.files)
        for ranges in self.deltas.values():
            for deltas in ranges.values():
                needed.update(delta.extent.object for delta in deltas)
        return needed


EMPTY = CheckpointView()

BARRIERS_KNOWN = 16
"""How many barriers a view names: one is under way at a time, and a part lags behind by few."""


def fold(view: CheckpointView, record: CommitRecord, checksum: str) -> CheckpointView:
    """The view after `record`, whose stored bytes have this checksum.

    For a rewind, `view` is what `rewound` made of the view that history goes back to.
    CorruptionError: the record does not follow the view.
    """
    _refuse_unless_next(view, record)
    published = _published(view.published_through, record.published_through)
    in_force = view.operators if record.operators is None else record.operators
    deltas, snapshots = _fold_state(view, record)
    return CheckpointView(
        number=record.number,
        checksum=checksum,
        term=record.term,
        run=record.run,
        last_epoch=record.last_epoch,
        positions={**view.positions, **record.positions},
        notes=_fold_notes(view.notes, record),
        deltas=deltas,
        snapshots=snapshots,
        lists=_fold_lists(view, record),
        uncoordinated=_fold_uncoordinated(view, record),
        staged=unpublished(with_staged(view.staged, record.staged), published),
        settled=view.settled.after(record),
        published_through=published,
        rows_through=_published(view.rows_through, record.rows_through),
        lanes_through=_fold_lanes(view.lanes_through, record.lanes_through, published),
        operators=in_force,
        parallelism=record.parallelism,
        clock_ms=record.clock_ms,
        fingerprint=record.fingerprint,
        rows=view.rows + record.rows,
        retained_from=record.retained_from,
        given_up_below=view.retained_from,
        manifest=record.manifest,
        event_times={**view.event_times, **record.event_times},
        watermarks={**view.watermarks, **record.watermarks},
        closed_through=max(view.closed_through, record.closed_through),
        tables=view.tables if record.tables is None else record.tables,
        channels=fold_channels(view.channels, record),
        ended=record.ended,
        barriers=_fold_barriers(view.barriers, record),
        asked=fold_asked(view.asked, record),
        needs_from=record.needs_from or (0 if record.attempts else view.needs_from),
        whole_after=record.whole_after or view.whole_after,
    )


def news(
    view: CheckpointView,
    *,
    term: int,
    run: str,
    published_through: dict[str, int],
    rows_through: dict[str, int] | None = None,
    lanes_through: LanesThrough | None = None,
    uncoordinated: tuple[UncoordinatedShard, ...] = (),
    channels: dict[str, ChannelState] | None = None,
    ended: bool = False,
    barrier: int = 0,
    asks: dict[str, int] | None = None,
) -> CommitRecord:
    """A record that follows `view` and covers no epoch: it says what has become known since."""
    return CommitRecord(
        term=term,
        run=run,
        first_epoch=view.last_epoch + 1,
        last_epoch=view.last_epoch,
        attempts={},
        clock_ms=view.clock_ms,
        parallelism=view.parallelism,
        fingerprint=view.fingerprint,
        positions=view.positions,
        published_through=published_through,
        rows_through=view.rows_through if rows_through is None else rows_through,
        lanes_through=view.lanes_through if lanes_through is None else lanes_through,
        own_keys=uncoordinated,
        channels=channels,
        ended=ended,
        barrier=barrier,
        asks=asks or {},
    )


def rewound(head: Head, to: CheckpointView, damaged: Collection[StagedFile] = ()) -> CheckpointView:
    """The state and positions of `to` at the end of the chain: what a rewind record is folded onto.

    What sinks have shown, what was committed for them, what is in channels, what was asked of other parts and
    where barriers fell cannot be taken back: all of it stays as it is at the head. But for the files that are
    `damaged`: what is computed again takes their place.
    """
    published = _published(to.published_through, head.published_through)
    settled = head.settled.without(damaged, published)
    return replace(
        to,
        number=head.number,
        checksum=head.checksum,
        term=head.term,
        run=head.run,
        clock_ms=max(to.clock_ms, head.clock_ms),
        retained_from=head.retained_from,
        published_through=published,
        rows_through=_published(to.rows_through, head.rows_through),
        lanes_through=_fold_lanes(to.lanes_through, head.lanes_through, published),
        staged=unpublished(kept(settled, head.staged, to.staged), published),
        settled=settled,
        channels=head.channels,
        barriers=head.barriers,
        asked=head.asked,
    )


def waited_for(view: CheckpointView, epoch: int) -> list[str]:
    """The sinks that rows of epochs up to this one wait for."""
    return [
        sink
        for sink, shown in sorted(view.published_through.items())
        if any(file.rows and shown < file.epoch <= epoch and sink in file.sinks for file in view.staged)
    ]


def to_manifest(view: CheckpointView) -> Manifest:
    """The full manifest for the commit that follows `view`."""
    channels, sent = to_states(view.channels)
    usual = through_epoch(view.last_epoch, view.published_through)
    return Manifest(
        number=view.number + 1,
        parent=Parent(number=view.number, checksum=view.checksum),
        term=view.term,
        run=view.run,
        positions=view.positions,
        notes={uid: tuple(notes) for uid, notes in view.notes.items()},
        last_epoch=view.last_epoch,
        clock_ms=view.clock_ms,
        parallelism=view.parallelism,
        fingerprint=view.fingerprint,
        rows=view.rows,
        operators=view.operators,
        deltas=tuple(delta for operator in view.deltas for delta in view.live_deltas(operator)),
        snapshots=tuple(file for files in view.snapshots.values() for file in files),
        staged=tuple(view.staged),
        staged_through={} if view.settled.through == usual else dict(view.settled.through),
        lost_output=dict(view.settled.lost),
        published_through=view.published_through,
        rows_through=view.rows_through,
        lanes_through=view.lanes_through,
        retained_from=view.retained_from,
        lists=tuple(file for files in view.lists.values() for file in files),
        own_keys=tuple(shard for shards in view.uncoordinated.values() for shard in shards),
        event_times=view.event_times,
        watermarks=view.watermarks,
        closed_through=view.closed_through,
        tables=view.tables,
        sent=sent,
        channels=channels,
        barriers=view.barriers,
        asked=view.asked,
        needs_from=view.needs_from,
        whole_after=view.whole_after,
    )


def from_manifest(manifest: Manifest, name: str) -> CheckpointView:
    """The inverse of `to_manifest`."""
    usual = through_epoch(manifest.last_epoch, manifest.published_through)
    snapshots: dict[str, tuple[SnapshotFile, ...]] = {}
    for file in manifest.snapshots:
        snapshots[file.operator] = (*snapshots.get(file.operator, ()), file)
    return CheckpointView(
        number=manifest.parent.number,
        checksum=manifest.parent.checksum,
        term=manifest.term,
        run=manifest.run,
        last_epoch=manifest.last_epoch,
        positions=manifest.positions,
        notes={uid: SharedList(notes) for uid, notes in manifest.notes.items()},
        deltas=with_deltas({}, manifest.deltas),
        snapshots=snapshots,
        staged=SharedList(manifest.staged),
        settled=Settled(manifest.staged_through or usual, manifest.lost_output),
        published_through=manifest.published_through,
        rows_through=manifest.rows_through,
        lanes_through=manifest.lanes_through,
        operators=manifest.operators,
        parallelism=manifest.parallelism,
        clock_ms=manifest.clock_ms,
        fingerprint=manifest.fingerprint,
        rows=manifest.rows,
        retained_from=manifest.retained_from,
        given_up_below=manifest.retained_from,
        manifest=name,
        lists=with_lists({}, manifest.lists),
        uncoordinated=with_uncoordinated({}, manifest.own_keys),
        event_times=manifest.event_times,
        watermarks=manifest.watermarks,
        closed_through=manifest.closed_through,
        tables=manifest.tables,
        channels=from_states(manifest.channels, manifest.sent),
        barriers=manifest.barriers,
        asked=manifest.asked,
        needs_from=manifest.needs_from,
        whole_after=manifest.whole_after,
    )


def _refuse_unless_next(view: CheckpointView, record: CommitRecord) -> None:
    wrong = None
    if record.number != view.number + 1:
        wrong = f"it comes after commit {view.number}"
    elif record.parent != Parent(number=view.number, checksum=view.checksum):
        named = record.parent
        wrong = f"it names parent {named.number} ({named.checksum}), the chain has {view.checksum}"
    elif record.term < view.term:
        wrong = f"its term {record.term} is below term {view.term} of commit {view.number}"
    elif record.first_epoch != view.last_epoch + 1 or record.last_epoch < view.last_epoch:
        wrong = f"it covers epochs {record.first_epoch} to {record.last_epoch} after epoch {view.last_epoch}"
    elif record.retained_from < view.retained_from:
        wrong = f"it takes back commits below {view.retained_from}, which were given up"
    elif any(file.version.epoch > record.last_epoch for file in record.snapshots):
        wrong = f"it names a snapshot of a version after its last epoch {record.last_epoch}"
    if wrong:
        raise CorruptionError(
            f"commit {record.number} does not continue the chain: {wrong}; "
            "restore the storage from a copy, or rewind"
        )


def _published(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Sinks of the newest record; what a sink has shown never shrinks.

    An empty record says nothing about sinks.
    """
    if not now:
        return before
    return {sink: max(epoch, before.get(sink, 0)) for sink, epoch in now.items()}


def _fold_lanes(before: LanesThrough, now: LanesThrough, sinks: Collection[str]) -> LanesThrough:
    """The lanes of these sinks; what a lane has shown never shrinks."""
    found: LanesThrough = {}
    for sink in (sink for sink in {**before, **now} if sink in sinks):
        known, told = before.get(sink, {}), now.get(sink, {})
        found[sink] = {
            lane: max(known.get(lane, (0, 0)), told.get(lane, (0, 0))) for lane in {**known, **told}
        }
    return found


def fold_asked(asked: dict[str, tuple[int, int]], record: CommitRecord) -> dict[str, tuple[int, int]]:
    """What was asked of the parts before, after a commit."""
    return {**asked, **{uid: (epoch, record.number) for uid, epoch in record.asks.items()}}


def _fold_barriers(barriers: tuple[BarrierPlace, ...], record: CommitRecord) -> tuple[BarrierPlace, ...]:
    if not record.barrier:
        return barriers
    place = BarrierPlace(number=record.barrier, commit=record.number, epoch=record.last_epoch)
    return (*barriers, place)[-BARRIERS_KNOWN:]


def _fold_notes(notes: dict[str, SharedList[Json]], record: CommitRecord) -> dict[str, SharedList[Json]]:
    if record.notes_replaced:
        notes = {uid: before for uid, before in notes.items() if uid not in record.notes_replaced}
    added = {uid: notes.get(uid, SharedList()).appended(more) for uid, more in record.notes.items()}
    return {**notes, **added} if added else notes


def _fold_state(
    view: CheckpointView, record: CommitRecord
) -> tuple[dict[str, DeltasByRange], dict[str, tuple[SnapshotFile, ...]]]:
    deltas = with_deltas(view.deltas, record.deltas)
    snapshots = view.snapshots
    for operator in dict.fromkeys(file.operator for file in record.snapshots):
        new = [file for file in record.snapshots if file.operator == operator]
        kept, covered = kept_snapshots([*snapshots.get(operator, ()), *new])
        snapshots = {**snapshots, operator: kept}
        deltas = {**deltas, operator: uncovered(deltas.get(operator, {}), covered)}
    if record.operators is not None:
        named = {operator.uid for operator in record.operators}
        deltas = {uid: ranges for uid, ranges in deltas.items() if uid in named}
        snapshots = {
            uid: files for uid, files in stamped(snapshots, view.operators, record.operators).items()
            if uid in named
        }  # fmt: skip
    return deltas, snapshots


def _fold_lists(view: CheckpointView, record: CommitRecord) -> dict[str, tuple[ListFile, ...]]:
    lists = with_lists(view.lists, record.lists)
    if record.operators is None:
        return lists
    named = {(operator.uid, state.name) for operator in record.operators for state in operator.states}
    in_force = {uid: tuple(f for f in files if (uid, f.state) in named) for uid, files in lists.items()}
    return {uid: files for uid, files in in_force.items() if files}


def _fold_uncoordinated(
    view: CheckpointView, record: CommitRecord
) -> dict[str, tuple[UncoordinatedShard, ...]]:
    shards = with_uncoordinated(view.uncoordinated, record.own_keys)
    if record.operators is None:
        return shards
    named = {operator.uid for operator in record.operators}
    return {uid: each for uid, each in shards.items() if uid in named}
