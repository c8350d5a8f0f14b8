"""How a part of a job survives the end of its node: named by the user, with one word.

Every part has checkpoints; a protection says what is kept in them, and what else is done while all is well,
so that less is to be done after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rollback:
    """Checkpoint and replay: after a failure the part is started from its newest checkpoint, on any node."""


@dataclass(frozen=True)
class PassiveStandby:
    """A second node follows: Spark is started there, and its working state goes along with the commits. It
    takes over within about an epoch. A cluster with such a part needs hot standbys."""


@dataclass(frozen=True)
class UpstreamBackup:
    """State is not saved: after a failure the rows that open windows are made of are read again, from the
    channels or sources before the part, which keep them until these windows have closed. For windows of time
    and joins by time, one operator in the part, and functions that are deterministic."""


Protection = Rollback | PassiveStandby | UpstreamBackup
PROTECTIONS: tuple[type, ...] = (Rollback, PassiveStandby, UpstreamBackup)


@dataclass(frozen=True)
class Survival:
    """What a protection costs and gives, in words: `costs` while all is well, the `gap` in the output when a
    node dies, how many ends of nodes it `survives`, and what it `needs`."""

    costs: str
    gap: str
    survives: str
    needs: str


_SURVIVAL: dict[type, Survival] = {
    Rollback: Survival(
        costs="deltas with every commit, snapshots in the background",
        gap="detection, start of Spark, restore, replay",
        survives="any number, if storage does",
        needs="sources that can be read again",
    ),
    PassiveStandby: Survival(
        costs="the same as Rollback, and a second process that follows",
        gap="detection and about one epoch",
        survives="as many as there are standbys; then as Rollback",
        needs="sources that can be read again; a second node",
    ),
    UpstreamBackup: Survival(
        costs="nothing is saved; rows are kept upstream for as long as windows are open",
        gap="detection, start of Spark, and reading the open windows again",
        survives="any number, if storage and the input do",
        needs="windows or joins by time; deterministic functions; input that can be read again",
    ),
}
UNCOORDINATED = Survival(
    costs="saves of keys, on their own",
    gap="detection, start of Spark; keys are fetched when they are seen",
    survives="any number, but loses what was not saved, and counts it",
    needs="storage for keys",
)
"""Of operators whose keys are saved on their own, whatever the protection of their part is."""


def survival(protection: Protection) -> Survival:
    """What a protection costs and gives."""
    return _SURVIVAL[type(protection)]
