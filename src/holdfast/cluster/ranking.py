"""Who takes a free seat, and who gives one away: pure decisions over what everybody can see.

Every node ranks itself. The first in rank takes a free seat at once, the others wait a little longer each, so
that a node that cannot or will not is passed by without anybody having to notice why. Nodes that see
different things may both try: the coordinator lets one win.
Never here: the coordinator, a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.cluster.node_records import HolderCard, NodeCard, OverCard, PulseCard, WishCard

STEP_SECONDS = 0.4
"""How much longer each next node waits before it takes a free seat."""
_Order = tuple[bool, bool, bool, int, int, int, str]
KINDS = ("hot", "warm", "cold")
"""Kinds of standby, the readiest first."""


@dataclass(frozen=True, kw_only=True)
class SeatSeen:
    """One seat as the coordinator shows it."""

    holder: HolderCard | None = None
    wish: WishCard | None = None
    over: OverCard | None = None
    pulse: PulseCard | None = None
    pulse_ms: int | None = None
    """When the pulse was written, by the coordinator's clock."""


@dataclass(frozen=True, kw_only=True)
class ClusterSeen:
    """The cluster as the coordinator shows it."""

    nodes: Mapping[str, NodeCard]
    seats: Mapping[str, SeatSeen]

    def held_by(self, node: str) -> list[str]:
        return sorted(job for job, seat in self.seats.items() if seat.holder and seat.holder.node == node)


def is_free(seat: SeatSeen) -> bool:
    """Whether anybody may take it."""
    return seat.holder is None and seat.over is None


def is_able(card: NodeCard, job: str) -> bool:
    """Whether a node has the job, and it has not failed there."""
    return job in card.code and job not in card.unfit


def hopeless(seen: ClusterSeen, job: str) -> str | None:
    """Why the job can go on nowhere: it has failed on every node that has it. None: somebody may yet try."""
    having = sorted((card for card in seen.nodes.values() if job in card.code), key=lambda card: card.name)
    if not having or not is_free(seen.seats[job]) or any(is_able(card, job) for card in having):
        return None
    return "it failed on every node: " + "; ".join(f"{card.name}: {card.unfit[job].error}" for card in having)


def rank(seen: ClusterSeen, job: str, node: str) -> int:
    """How many other nodes should take the seat rather than this one.

    First whoever it was meant for; then whoever holds fewest, then the readiest, then the one that has been
    there longest; after them whoever gave it up, and last those on which it failed.
    """
    return sorted((card for card in seen.nodes.values() if job in card.code), key=_order(seen, job)).index(
        seen.nodes[node]
    )


def heir(seen: ClusterSeen, job: str) -> str | None:
    """Who would take the seat if its holder gave it up; None: nobody else is there."""
    holder = seen.seats[job].holder
    others = [card for card in seen.nodes.values() if is_able(card, job) and card.name != _name(holder)]
    return min(others, key=_order(seen, job)).name if others else None


def to_give_away(seen: ClusterSeen, node: str) -> str | None:
    """The seat that this node should hand over so that all hold about as many; None: it holds none too many.

    Only the node that holds the most gives, and only to one that then still holds no more than it: so a seat
    never comes back.
    """
    held = {card.name: seen.held_by(card.name) for card in seen.nodes.values()}
    mine = held.get(node, [])
    if len(mine) < 2 or any((len(jobs), name) > (len(mine), node) for name, jobs in held.items()):
        return None
    for job in reversed(mine):
        takers = [card.name for card in seen.nodes.values() if is_able(card, job)]
        if seen.seats[job].wish is None and any(len(held[name]) <= len(mine) - 2 for name in takers):
            return job
    return None


def _order(seen: ClusterSeen, job: str) -> Callable[[NodeCard], _Order]:
    seat = seen.seats[job]
    gave = {seat.wish.giver} if seat.wish else set()
    if seat.pulse is not None and seat.pulse.ended:
        gave.add(seat.pulse.node)

    def key(card: NodeCard) -> _Order:
        meant = seat.wish is not None and seat.wish.to == card.name
        kind = KINDS.index(card.standby) if card.standby in KINDS else len(KINDS)
        return (
            job in card.unfit, not meant, card.name in gave, len(seen.held_by(card.name)), kind,
            card.since_ms, card.name,
        )  # fmt: skip

    return key


def _name(holder: HolderCard | None) -> str | None:
    return holder.node if holder else None


def code_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Where two declarations of one job differ, part by part, in words."""
    told = [f"{part} differs" for part in ours if part in theirs and ours[part] != theirs[part]]
    told += [f"{part} is only here" for part in ours if part not in theirs]
    return told + [f"{part} is only there" for part in theirs if part not in ours]
