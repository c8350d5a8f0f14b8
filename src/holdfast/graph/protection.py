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
class ActiveReplicas:
    """`k + 1` nodes run the part together, without one that leads: each follows the plans of all and comes to
    the same results, and the first to commit them is as good as any. When `k` of them die the others go on
    as if nothing had happened; a node that stands by takes the empty place.

    `vote`: nothing is committed before most members have come to the same results, so that one that is wrong
    is outvoted; `k` is 2 or more then, and half of it may die. Functions must be deterministic in their rows.
    """

    k: int = 1
    vote: bool = False

    @property
    def members(self) -> int:
        return self.k + 1

    @property
    def needed(self) -> int:
        """So many members have to run, or nothing is committed."""
        return self.members // 2 + 1 if self.vote else 1

    @property
    def survives(self) -> int:
        """How many members may end at once, so that the others go on."""
        return self.members - self.needed

    @property
    def mistake(self) -> tuple[str, str] | None:
        """What is wrong with it, and the remedy; None: nothing is."""
        k: object = self.k
        vote: object = self.vote
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k < MEMBERS_MAX:
            return f"k={k!r} is not a number of replicas to lose", f"give one from 1 to {MEMBERS_MAX - 1}"
        if not isinstance(vote, bool):
            return f"vote={vote!r} does not say whether they vote", "give True or False"
        if self.vote and self.k < 2:
            return "two members cannot outvote each other", "give k=2 or more, or leave out vote"
        return None


@dataclass(frozen=True)
class UpstreamBackup:
    """State is not saved: after a failure the rows that open windows are made of are read again, from the
    channels or sources before the part, which keep them until these windows have closed. For windows of time
    and joins by time, one operator in the part, and functions that are deterministic."""


MEMBERS_MAX = 9
"""How many members a set of replicas has at most."""
Protection = Rollback | PassiveStandby | ActiveReplicas | UpstreamBackup
PROTECTIONS: tuple[type, ...] = (Rollback, PassiveStandby, ActiveReplicas, UpstreamBackup)


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
    if isinstance(protection, ActiveReplicas):
        return _of_replicas(protection)
    return _SURVIVAL[type(protection)]


def _of_replicas(replicas: ActiveReplicas) -> Survival:
    votes = ", and the wait for the votes of most members" if replicas.vote else ""
    outvoted = " or come to wrong results" if replicas.vote else ""
    return Survival(
        costs=f"{replicas.members} times the CPU and the bytes written; a commit for every epoch{votes}",
        gap=f"none, if at most {replicas.survives} of {replicas.members} nodes end{outvoted}",
        survives=f"{replicas.survives} at once, unnoticed; more as Rollback, once nodes take the seats",
        needs=f"{replicas.members} nodes; functions that are deterministic in their rows; "
        "sources that can be read again; sinks that are exactly-once",
    )


def nodes_needed(protection: Protection) -> int:
    """How many nodes have to be left for a part to go on, whichever of them ran it before."""
    return protection.needed if isinstance(protection, ActiveReplicas) else 1


def name_of(protection: Protection) -> str:
    """A protection as it was declared, in short."""
    if isinstance(protection, ActiveReplicas):
        return f"ActiveReplicas({protection.k}{', vote=True' if protection.vote else ''})"
    return type(protection).__name__
