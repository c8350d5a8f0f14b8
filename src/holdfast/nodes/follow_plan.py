"""What a hot standby has followed, and what comes next: decisions over committed records.

A standby brings its working state along the same lines as the leader does, one commit after the other.
Always true: a line is made of committed records alone, so only a rewind can take back what was followed: then
the lines are made again from the view, and so is the working state where undo does not reach.
Never here: reading records, Spark (see follower).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.checkpoint.chain.shard_lines import Lines, extended, lines_of, rebased
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.cluster.node_records import Lag
from holdfast.ids import shard_ranges
from holdfast.state.contract import EMPTY_VERSION

BEHIND_SECONDS = 10.0
"""How far behind a standby may be before the log says so."""


@dataclass(frozen=True)
class Followed:
    """Where the working state of a standby stands: after which commit, and along which lines."""

    view: CheckpointView = EMPTY
    lines: Lines = field(default_factory=dict)

    def towards(
        self, view: CheckpointView, records: Sequence[CommitRecord], uids: Sequence[str], key_groups: int
    ) -> Lines:
        """The lines after `view`. `records`: those after `self.view`, or none if they are not at hand."""
        steady = records and self.lines and view.parallelism == self.view.parallelism
        if steady and all(_goes_on(record) for record in records):
            lines = extended(self.lines, [delta for record in records for delta in record.deltas])
            if lines is not None:
                return lines
        return lines_of(view, uids, shard_ranges(key_groups, view.parallelism))

    def changed(self, lines: Lines) -> list[tuple[str, int]]:
        """The operators and shards whose working state is not where these lines end."""
        before = {(key[0], line.groups): line.version for key, line in self.lines.items()}
        return [
            key
            for key, line in lines.items()
            if line.version != before.get((key[0], line.groups), EMPTY_VERSION)
        ]


def settled(view: CheckpointView, lines: Lines, records: Sequence[CommitRecord]) -> Followed:
    """After the working state has come to the end of `lines`: from there on by the newest snapshots.

    Only now: until then the deltas before them may be the shorter way.
    """
    lines, _ = rebased(lines, [file for record in records for file in record.snapshots])
    return Followed(view, lines)


def _goes_on(record: CommitRecord) -> bool:
    """Whether the record only adds to the lines: no rewind, no other schemas."""
    return record.rewind_to is None and record.operators is None


class Told(Enum):
    """What the log last said of a standby."""

    NOTHING = "nothing"
    FOLLOWING = "following"
    BEHIND = "behind"
    FAILING = "failing"


def news(lag: Lag, told: Told) -> tuple[str, Told]:
    """What the log should say now, which may be nothing, and what it has then said."""
    seconds = lag.ms / 1_000
    if lag.problem and told is not Told.FAILING:
        return f"CANNOT FOLLOW the leader and tries again: {lag.problem}", Told.FAILING
    if lag.problem:
        return "", told
    if lag.epochs == 0 and told is not Told.FOLLOWING:
        return f"HOT: the working state here is at epoch {lag.epoch} and follows the leader's", Told.FOLLOWING
    if seconds >= BEHIND_SECONDS and told in (Told.FOLLOWING, Told.FAILING):
        behind = f"{lag.epochs} epoch{'s' * (lag.epochs != 1)} and {seconds:.1f} s behind"
        return f"following, {behind}; a takeover would have to catch up", Told.BEHIND
    return "", told


@dataclass(frozen=True)
class Sight:
    """The newest commit seen, the one followed, and since when (monotonic seconds) they differ."""

    newest: int = 0
    followed: int = 0
    since: float | None = None

    def seen(self, epoch: int, now: float) -> Sight:
        since = self.since if self.since is not None or epoch == self.followed else now
        return replace(self, newest=epoch, since=since)

    def reached(self, epoch: int, now: float) -> Sight:
        """`epoch` was followed; where it is not the newest, what is left counts from now on."""
        return replace(self, followed=epoch, since=None if epoch == self.newest else now)

    def lag(self, now: float, problem: str) -> Lag:
        # A tenth of a second is fine enough to read, and changes less often.
        ms = 0 if self.since is None else round((now - self.since) * 10) * 100
        return Lag(epoch=self.followed, epochs=max(0, self.newest - self.followed), ms=ms, problem=problem)
