"""How the seats of a part with replicas stand: which members run, and how many more ends the part survives.

Always true: what a set survives is counted here alone, by the members that run. One that is joining, or of
which nothing is heard, does not count.
Never here: which node takes an empty seat (see ranking).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.cluster.ranking import ClusterSeen, SeatSeen, part_of, spare_of

SILENT_BEATS = 5
"""A member that has left out so many signs of life does not count."""


class Standing(Enum):
    """How one seat stands."""

    RUNNING = "running"
    """Its member is warm: it goes on at once when others end."""
    JOINING = "joining"
    """Its member has not come so far, or not again."""
    SILENT = "silent"
    """Its member has not left, and nothing is heard of it: it is frozen or gone."""
    EMPTY = "empty"


def standing_in(phase: str) -> Standing:
    """How a member stands that is heard of and is in this phase of its run."""
    return Standing.RUNNING if phase == "running" else Standing.JOINING


@dataclass(frozen=True)
class ReplicaSeats:
    """The seats of one part by their names. `votes`: a commit needs those of most members."""

    seats: Mapping[str, Standing]
    votes: bool = False

    def those(self, standing: Standing) -> tuple[str, ...]:
        """The seats that stand so."""
        return tuple(name for name, each in self.seats.items() if each is standing)

    @property
    def running(self) -> int:
        """So many members run."""
        return len(self.those(Standing.RUNNING))

    @property
    def needed(self) -> int:
        """So many members have to run."""
        return len(self.seats) // 2 + 1 if self.votes else 1

    @property
    def survives(self) -> int:
        """How many of the members that run now may end, without the others noticing."""
        return max(0, self.running - self.needed)

    def running_of(self, members: str) -> str:
        """How many run and join, in words, where they are called `members`."""
        joining = len(self.those(Standing.JOINING))
        told = f"{self.running} of {len(self.seats)} {members} run"
        return f"{told}, {joining} {'is' if joining == 1 else 'are'} joining" if joining else told

    def __str__(self) -> str:
        told, silent, empty = self.running_of("replicas"), *map(self.those, (Standing.SILENT, Standing.EMPTY))
        if silent:
            told += f"; NOTHING IS HEARD OF {', '.join(silent)}"
        if empty:
            told += f"; NO NODE HAS {', '.join(empty)}: start {len(empty)} more"
        if self.running < self.needed:
            return f"{told}; nothing is committed until {self.needed} run{'s' * (self.needed == 1)}"
        nodes = "1 more node" if self.survives == 1 else f"{self.survives} more nodes"
        return f"{told}; it survives the end of {nodes}"


def replica_seats(seen: ClusterSeen, job: str, *, votes: bool = False) -> ReplicaSeats:
    """The seats of the part that a seat is of."""
    # By ZooKeeper's clock, as all signs of life are: those of other seats tell what time it is there.
    now_ms = max((seat.pulse_ms or 0 for seat in seen.seats.values()), default=0)
    of_part = {name: seat for name, seat in sorted(seen.seats.items()) if part_of(name) == part_of(job)}
    return ReplicaSeats({name: _standing(seat, now_ms) for name, seat in of_part.items()}, votes)


def replicated_parts(seen: ClusterSeen) -> list[str]:
    """The parts that have several seats."""
    names = [part_of(name) for name in seen.seats]
    return sorted({name for name in names if names.count(name) > 1})


def ends_survived(seen: ClusterSeen, job: str, *, votes: bool = False) -> int:
    """How many nodes may end so that a job, or a part, goes on; one with replicas goes on unnoticed."""
    if part_of(job) in replicated_parts(seen):
        return replica_seats(seen, job, votes=votes).survives
    return spare_of(seen, job)


def what_lacks(seen: ClusterSeen, job: str, survive: int, *, votes: bool = False) -> str:
    """What a job, or a part, lacks to survive the end of so many nodes, and what helps; empty: nothing. As
    far as its replicas go, these ends are to go unnoticed."""
    seats = replica_seats(seen, job, votes=votes)
    spare = spare_of(seen, job, seats.needed)
    if spare < survive:
        lacks = f"it survives the end of {spare}, and is to survive {survive}"
        return f"LACKS NODES: {lacks}; start {survive - spare} more"
    unnoticed = min(survive, len(seats.seats) - seats.needed)
    if seats.survives < unnoticed:
        # Some nodes are joining, are about to take a seat, or are not heard of.
        lacks = f"{seats.survives} of its members may end unnoticed, instead of {unnoticed}"
        return f"LACKS MEMBERS: {lacks}; wait until {seats.needed + unnoticed} run"
    return ""


def _standing(seat: SeatSeen, now_ms: int) -> Standing:
    holder, pulse = seat.holder, seat.pulse
    if holder is None:
        return Standing.EMPTY
    if pulse is None or pulse.instance != holder.instance:
        return Standing.JOINING
    if pulse.beat_ms and now_ms - (seat.pulse_ms or 0) > SILENT_BEATS * pulse.beat_ms:
        return Standing.SILENT
    return standing_in(pulse.phase)
