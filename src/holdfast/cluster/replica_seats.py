"""How the seats of a part with replicas stand: which members run, and how many more nodes it can lose.

Never here: which node takes an empty seat (see ranking).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cluster.ranking import ClusterSeen, SeatSeen, part_of


@dataclass(frozen=True)
class ReplicaSeats:
    """The seats of one part by their names. `votes`: a commit needs those of most members."""

    part: str
    running: tuple[str, ...]
    starting: tuple[str, ...]
    """Held by nodes that have not come so far as to run."""
    empty: tuple[str, ...]
    votes: bool = False

    @property
    def count(self) -> int:
        """How many there are, held or not."""
        return len(self.running) + len(self.starting) + len(self.empty)

    @property
    def needed(self) -> int:
        """So many members have to run."""
        return self.count // 2 + 1 if self.votes else 1

    @property
    def survives(self) -> int:
        """How many of the nodes that run it now may end, without the others noticing."""
        return max(0, len(self.running) - self.needed)

    def __str__(self) -> str:
        told = f"{len(self.running)} of {self.count} replicas run"
        if self.starting:
            told += f", {len(self.starting)} start"
        if self.empty:
            told += f"; NO NODE HAS {', '.join(self.empty)}: start {len(self.empty)} more"
        if len(self.running) < self.needed:
            return f"{told}; nothing is committed until {self.needed} run"
        nodes = "1 more node" if self.survives == 1 else f"{self.survives} more nodes"
        return f"{told}; it survives the end of {nodes}"


def replica_seats(seen: ClusterSeen, job: str, *, votes: bool = False) -> ReplicaSeats:
    """The seats of the part that a seat is of."""
    found: dict[str, list[str]] = {"running": [], "starting": [], "empty": []}
    for name, seat in sorted(seen.seats.items()):
        if part_of(name) == part_of(job):
            found[_standing(seat)].append(name)
    return ReplicaSeats(
        part_of(job), tuple(found["running"]), tuple(found["starting"]), tuple(found["empty"]), votes
    )


def replicated_parts(seen: ClusterSeen) -> list[str]:
    """The parts that have several seats."""
    names = [part_of(name) for name in seen.seats]
    return sorted({name for name in names if names.count(name) > 1})


def _standing(seat: SeatSeen) -> str:
    holder, pulse = seat.holder, seat.pulse
    if holder is None:
        return "empty"
    runs = pulse is not None and (pulse.instance, pulse.phase) == (holder.instance, "running")
    return "running" if runs else "starting"
