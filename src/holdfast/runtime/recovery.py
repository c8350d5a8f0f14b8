"""From storage to a checkpoint view that can be continued from.

Always true: damage is never stepped over in silence. A damaged newest snapshot is replaced by the one before
and the deltas since; anything else damaged means going back to the newest checkpoint that verifies, as a new
commit. Rows for sinks that are damaged are computed again, and so is an epoch of a channel that its reader
asks for; no others.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.history import DamagedChain, History, newest_intact
from holdfast.checkpoint.chain.live_files import SNAPSHOTS_KEPT
from holdfast.checkpoint.chain.low_water import lacks_state, refuse_without_base
from holdfast.checkpoint.chain.plans import Plans, committed_attempts
from holdfast.checkpoint.chain.shard_lines import line_of
from holdfast.checkpoint.chain.view import CheckpointView, Head, rewound
from holdfast.checkpoint.store.records import ChannelState, Extent, SnapshotFile, StagedFile
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError
from holdfast.ids import CommitNumber, EpochId, shard_ranges
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage

Say = Callable[[str], None]


class Inspector:
    """Verifies files, each once. `damaged` names what was found so far."""

    def __init__(self, storage: Storage, key_groups: int, say: Say) -> None:
        self._storage, self._say = storage, say
        self._whole = shard_ranges(key_groups, 1)[0]
        self._known: dict[str, bool] = {}

    @property
    def damaged(self) -> frozenset[str]:
        return frozenset(name for name, good in self._known.items() if not good)

    def restorable(self, view: CheckpointView) -> bool:
        """Whether every shard's state can be had and everything that waits to be published and
        every copy of a table can be read, damaged snapshots left out. What waits of epochs after the view
        need not be read: they are computed again.
        """
        # Up to `whole_after` epochs are computed with state that lacks what they do not need.
        last = max(view.last_epoch, view.whole_after)
        if view.settled.waits_for(last):
            self._say(f"DAMAGE: rows for sinks of epochs up to {last} have to be computed again")
            return False
        if view.whole_after and any(file.epoch <= last for file in self.damaged_output(view)):
            return False
        if any(epoch <= last for channel in view.channels.values() for epoch in channel.lost):
            self._say(f"DAMAGE: rows in channels of epochs up to {last} have to be computed again")
            return False
        for operator in {*view.snapshots, *view.deltas}:
            for file in view.snapshots.get(operator, ()):
                self._good_snapshot(file)
            line = line_of(view, operator, self._whole, self.damaged)
            if not all(self._good_extent(delta.extent) for delta in line.deltas):
                return False
            if not self._complete(view, operator):
                return False
        lists = (file for files in view.lists.values() for file in files)
        if not all(self._good_extent(file.extent) for file in lists):
            return False
        tables = (extent for copy in view.tables.values() for extent in copy.extents)
        waiting = (file.extent for file in _waiting(view) if file.epoch <= view.last_epoch)
        return all(map(self._good_extent, (*waiting, *tables)))

    def damaged_output(self, view: CheckpointView) -> list[StagedFile]:
        """What waits for sinks of epochs after the view, and cannot be read."""
        later = [file for file in _waiting(view) if file.epoch > view.last_epoch]
        return [file for file in later if not self._good_extent(file.extent)]

    def _complete(self, view: CheckpointView, operator: str) -> bool:
        """Whether the deltas reach back to the snapshots that are left, or to the beginning."""
        files = view.snapshots.get(operator, ())
        if not any(file.object in self.damaged for file in files):
            return True
        left = [file for file in files if file.object not in self.damaged]
        covered = {group for file in left for group in range(file.first_group, file.end_group)}
        lost = {
            g
            for file in files
            if file.object in self.damaged
            for g in range(file.first_group, file.end_group)
        }
        # Deltas are dropped once two snapshots have what they changed: with one, all are still there.
        # All but those before a savepoint, of which there are none.
        from_savepoint = {g for file in files if file.sole for g in range(file.first_group, file.end_group)}
        return not (lost - covered) & from_savepoint and all(
            sum(file.first_group <= group < file.end_group for file in files) < SNAPSHOTS_KEPT
            for group in lost - covered
        )

    def _good_extent(self, extent: Extent) -> bool:
        key = f"{extent.object}@{extent.offset}"
        if key not in self._known:
            self._known[key] = self._reads(lambda: read_extent(self._storage, extent))
        return self._known[key]

    def _good_snapshot(self, file: SnapshotFile) -> bool:
        if file.object not in self._known:
            self._known[file.object] = self._reads(lambda: self._check_chunks(file))
        return self._known[file.object]

    def _check_chunks(self, file: SnapshotFile) -> None:
        for index, expected in enumerate(file.chunks):
            offset = index * file.chunk_bytes
            data = self._storage.get(file.object, offset, min(file.chunk_bytes, file.length - offset))
            if checksum(data) != expected:
                raise CorruptionError(
                    f"chunk {index} of {file.object} is damaged; restore the file from a copy"
                )

    def _reads(self, read: Callable[[], object]) -> bool:
        try:
            read()
        except (CorruptionError, ObjectMissing) as problem:
            self._say(f"DAMAGE: {problem}")
            return False
        return True


class Recovery:
    """Finds the view that a leader goes on from."""

    def __init__(self, checkpoint: Checkpoint, term: int, run: str, say: Say) -> None:
        self._chain, self._term, self._run, self._say = checkpoint.chain, term, run, say
        self._inspector = Inspector(checkpoint.storage, checkpoint.job.key_groups, say)

    @property
    def damaged(self) -> frozenset[str]:
        """The files that were found damaged so far."""
        return self._inspector.damaged

    def load(self) -> CheckpointView:
        """The newest view; after damage to the chain itself, the newest one that verifies, by a rewind."""
        try:
            view = self._chain.load()
            for problem in self._chain.worked_around:
                self._say(f"DAMAGE: {problem}")
            return view
        except DamagedChain as damage:
            for problem in damage.problems:
                self._say(f"DAMAGE: {problem}")
            target = self._newest_intact(damage.head)
            if target is None:
                raise RestoreError(
                    f"no retained checkpoint verifies ({'; '.join(damage.problems)}); "
                    "restore the storage from a copy"
                ) from damage
            return self._rewound(damage.head, target)

    def past_damage(self, view: CheckpointView) -> CheckpointView:
        """After a file turned out damaged: `view` again if other files can stand in for it, else an older
        one."""
        target = self._newest_intact(view.head)
        if target is None:
            raise RestoreError(
                f"no retained checkpoint verifies (damaged: {', '.join(sorted(self.damaged))}); "
                "restore the files from a copy"
            )
        if target.number == view.number and not self._inspector.damaged_output(view):
            self._say(
                f"RESTORE: commit {view.number} is restored from an older snapshot and the deltas since"
            )
            return view
        return self._rewound(view.head, target)

    def before_epoch(self, view: CheckpointView, epoch: int) -> CheckpointView | None:
        """The newest commit from which an epoch can be computed again, as it was planned and with all of its
        state. None: there is none."""

        def is_before(older: CheckpointView) -> bool:
            # Up to `whole_after` what is computed goes nowhere: state is in the making.
            if max(older.last_epoch, older.whole_after) >= epoch:
                return False
            base = rewound(view.head, older)
            return self._inspector.restorable(base) and not unreadable_plans(self._chain, base)

        return newest_intact(self._chain, view.head, is_before)

    def compute_again(
        self, view: CheckpointView, target: CheckpointView, channels: dict[str, ChannelState]
    ) -> CheckpointView:
        """Go back to an older commit, with these news of channels."""
        return self._rewound(view.head, target, channels)

    def _newest_intact(self, head: Head) -> CheckpointView | None:
        """The newest commit that can be gone back to: as it would be then, since what sinks have shown by now
        need not be read any more."""
        return newest_intact(self._chain, head, lambda view: self._inspector.restorable(rewound(head, view)))

    def _rewound(
        self, head: Head, target: CheckpointView, channels: dict[str, ChannelState] | None = None
    ) -> CheckpointView:
        self._say(
            f"REWIND: going back to commit {target.number} (epoch {target.last_epoch}) and replaying from "
            "there, sinks muted up to what was committed; a function that is not deterministic may now "
            "differ from its sinks"
        )
        damaged = self._inspector.damaged_output(rewound(head, target))
        if damaged:
            epochs = ", ".join(map(str, sorted({file.epoch for file in damaged})))
            self._say(f"DAMAGE: rows for sinks of epochs {epochs} are lost, and are computed again")
        done = self._chain.rewind(
            head,
            CommitNumber(target.number),
            term=self._term,
            run=self._run,
            damaged=damaged,
            channels=channels,
        )
        if isinstance(done, Adopted):
            # Another leader's record took the number: reading on from it will find its damage, if it has any.
            return self._chain.load()
        return done.view


def unreadable_plans(history: History, base: CheckpointView) -> str:
    """Why the epochs that come after a rewind, and were committed before it, cannot be read again as they
    were; empty: they can. Where the state after the rewind, `base`, is in no file, its rows have to be read
    again before them."""
    begin = base
    if lacks_state(base):
        try:
            number = refuse_without_base(history, base, base.number, base.retained_from)
        except RestoreError as let_go:
            return str(let_go)
        begin = rewound(base.head, history.view_at(number))
    plans = Plans(history.storage)
    for epoch, attempt in sorted(committed_attempts(history, begin).items()):
        try:
            plan = plans.read(EpochId(epoch), attempt)
            for extent in (extent for copy in plan.tables.values() for extent in copy.extents):
                read_extent(history.storage, extent)
        except (CorruptionError, ObjectMissing) as damage:
            return f"epoch {epoch} would have to be read again as it was, and that is lost: {damage}"
    return ""


def _waiting(view: CheckpointView) -> list[StagedFile]:
    """The files that some sink is still to show. Those of format 2 do not name their sinks."""
    shown = view.published_through
    return [
        file
        for file in view.staged
        if not file.sinks or any(file.epoch > shown.get(sink, 0) for sink in file.sinks)
    ]
