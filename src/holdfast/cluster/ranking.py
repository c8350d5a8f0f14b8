"""Which node takes a free seat, and which gives one away: pure decisions over what every node can see.

Every node ranks itself. The first in rank takes a free seat at once, the others wait a little longer each, so
that a node that cannot or will not is passed by without others having to know why. Nodes that see different
things may both try: ZooKeeper lets one win.
Never here: ZooKeeper, a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.cluster.node_records import HolderRecord, NodeRecord, OverRecord, PulseRecord, Unfit, WishRecord

STEP_SECONDS = 0.4
"""How much longer each next node waits before it takes a free seat."""
_SEAT_MARK = "~"
"""No job has it in its name."""
_Order = tuple[bool, bool, bool, int, int, int, str]
KINDS = ("hot", "warm", "cold")
"""Kinds of standby, the readiest first."""


@dataclass(frozen=True, kw_only=True)
class SeatSeen:
    """One seat as ZooKeeper shows it."""

    holder: HolderRecord | None = None
    wish: WishRecord | None = None
    over: OverRecord | None = None
    pulse: PulseRecord | None = None
    pulse_ms: int | None = None
    """When the pulse was written, by ZooKeeper's clock."""


@dataclass(frozen=True, kw_only=True)
class ClusterSeen:
    """The cluster as ZooKeeper shows it."""

    nodes: Mapping[str, NodeRecord]
    seats: Mapping[str, SeatSeen]

    def held_by(self, node: str) -> list[str]:
        return sorted(job for job, seat in self.seats.items() if seat.holder and seat.holder.node == node)

    def holds_fellow(self, node: str, job: str) -> bool:
        """Whether a node holds, or is to hold, another seat of the same replicas."""
        return any(each != job and part_of(each) == part_of(job) for each in self.to_be_held_by(node))

    def to_be_held_by(self, node: str) -> list[str]:
        """What it holds once every hand-over that is under way is done."""
        return sorted(job for job, seat in self.seats.items() if _next_holder(seat) == node)


def seat_name(job: str, seat: int) -> str:
    """The seats of a part that several nodes run together: the first has the part's name."""
    return job if seat == 1 else f"{job}{_SEAT_MARK}{seat}"


def part_of(name: str) -> str:
    """What the seat of some name is of."""
    return name.partition(_SEAT_MARK)[0]


def newest_holder(seen: ClusterSeen, job: str) -> HolderRecord | None:
    """The node that took the seat, or another of the same replicas, last: a set of replicas runs its code."""
    held = [seat.holder for name, seat in seen.seats.items() if part_of(name) == part_of(job) and seat.holder]
    return max(held, key=lambda holder: holder.since_ms, default=None)


def _next_holder(seat: SeatSeen) -> str | None:
    if seat.wish is not None:
        return seat.wish.to or None
    return seat.holder.node if seat.holder else None


def is_free(seat: SeatSeen) -> bool:
    """Whether a node may take it."""
    return seat.holder is None and seat.over is None


def is_able(node: NodeRecord, job: str) -> bool:
    """Whether a node has the job, and it has not failed there, in whichever of its seats."""
    return job in node.code and _failure_on(node, job) is None


def _failure_on(node: NodeRecord, job: str) -> Unfit | None:
    return next((unfit for name, unfit in node.unfit.items() if part_of(name) == part_of(job)), None)


def hopeless(seen: ClusterSeen, job: str) -> str | None:
    """Why the job can go on nowhere: it has failed on every node that has it. None: one may yet try."""
    having = sorted((node for node in seen.nodes.values() if job in node.code), key=lambda node: node.name)
    if not having or not is_free(seen.seats[job]) or any(is_able(node, job) for node in having):
        return None
    failures = ((node.name, _failure_on(node, job)) for node in having)
    return "it failed on every node: " + "; ".join(f"{name}: {each.error}" for name, each in failures if each)


def is_over(seen: ClusterSeen, job: str) -> bool:
    """Whether a job is not to be run any more: what failed in one of its seats goes on in the others."""
    return None not in _ends_of(seen, job)


def _ends_of(seen: ClusterSeen, job: str) -> list[OverRecord | None]:
    """How it ended in each of its seats: of a part with replicas there are several."""
    return [seat.over for name, seat in seen.seats.items() if part_of(name) == job]


def failed_first(seen: ClusterSeen, jobs: Iterable[str]) -> str | None:
    """Which of these jobs has failed for good, in all of its seats, and of what; None: none has."""
    failed = []
    for job in jobs:
        ends = [over for over in _ends_of(seen, job) if over is not None and over.state == "failed"]
        if ends and len(ends) == len(_ends_of(seen, job)):
            failed += [(each.at_ms, job, each.error) for each in ends]
    for _, job, error in sorted(failed):
        return f"{job} has failed: {error}"
    return None


def rank(seen: ClusterSeen, job: str, node: str) -> int:
    """How many other nodes should take the seat rather than this one.

    First the node that it was meant for; then the one that holds fewest, then the readiest, then the one that
    has been there longest; after them the one that gave it up, and last those on which it failed.
    """
    others = [name for name in seen.nodes if name == node or not seen.holds_fellow(name, job)]
    having = [seen.nodes[name] for name in others if job in seen.nodes[name].code]
    return sorted(having, key=_order(seen, job)).index(seen.nodes[node])


def heir(seen: ClusterSeen, job: str) -> str | None:
    """Which node would take the seat if its holder gave it up; None: no other could."""
    holder = seen.seats[job].holder
    giver = holder.node if holder else None
    others = [
        node
        for node in seen.nodes.values()
        if is_able(node, job) and node.name != giver and not seen.holds_fellow(node.name, job)
    ]
    return min(others, key=_order(seen, job)).name if others else None


def spare_of(seen: ClusterSeen, job: str, needed: int = 1) -> int:
    """How many nodes may still end before fewer are left than a job needs."""
    return max(0, sum(is_able(node, job) for node in seen.nodes.values()) - needed)


def to_give_away(seen: ClusterSeen, node: str) -> str | None:
    """The seat that this node should hand over so that all hold about as many; None: it holds none too many.

    Only the node that holds the most gives, and only to one that then still holds no more than it: so a seat
    never comes back. What is being handed over counts for the node that it goes to: a node that takes long to
    give a seat up, because it is still starting, gives no more away for that.
    """
    held = {name: seen.to_be_held_by(name) for name in seen.nodes}
    mine = held.get(node, [])
    if len(mine) < 2 or any((len(jobs), name) > (len(mine), node) for name, jobs in held.items()):
        return None
    for job in reversed(mine):
        takers = [
            name
            for name, each in seen.nodes.items()
            if is_able(each, job) and not seen.holds_fellow(name, job)
        ]
        if (
            job in seen.held_by(node)
            and seen.seats[job].wish is None
            and any(len(held[name]) <= len(mine) - 2 for name in takers)
        ):
            return job
    return None


def _order(seen: ClusterSeen, job: str) -> Callable[[NodeRecord], _Order]:
    seat = seen.seats[job]
    gave = {seat.wish.giver} if seat.wish else set()
    if seat.pulse is not None and seat.pulse.ended:
        gave.add(seat.pulse.node)

    def key(node: NodeRecord) -> _Order:
        meant = seat.wish is not None and seat.wish.to == node.name
        kind = KINDS.index(node.standby) if node.standby in KINDS else len(KINDS)
        return (
            _failure_on(node, job) is not None, not meant, node.name in gave,
            len(seen.to_be_held_by(node.name)), kind, node.since_ms, node.name,
        )  # fmt: skip

    return key


def code_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Where two declarations of one job differ, part by part, in words."""
    told = [f"{part} differs" for part in ours if part in theirs and ours[part] != theirs[part]]
    told += [f"{part} is only here" for part in ours if part not in theirs]
    return told + [f"{part} is only there" for part in theirs if part not in ours]
