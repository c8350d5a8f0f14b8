"""A cluster seen from outside: how it stands, and the hand-over of a seat. For the command line.

Always true: reading changes nothing; a wish that is not fulfilled is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.clock import Clock
from holdfast.cluster.membership import Cluster
from holdfast.cluster.node_records import WishRecord
from holdfast.cluster.ranking import ClusterSeen, heir, is_able, part_of
from holdfast.cluster.replica_seats import Standing, ends_survived, replica_seats, replicated_parts
from holdfast.cluster.zookeeper import ZooKeeper, ZooKeeperSettings
from holdfast.errors import DefinitionError, HoldfastError, RetryableError
from holdfast.runtime.control.request_client import asker
from holdfast.storage.urls import open_storage

LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class HandOver:
    """A seat that went from one node to another."""

    job: str
    giver: str
    taker: str
    seconds: float


@contextmanager
def visit(settings: ZooKeeperSettings, name: str, clock: Clock) -> Iterator[Cluster]:
    """Connect for as long as a command takes. DefinitionError: there is no such cluster."""
    zookeeper = ZooKeeper(settings, lambda change: None, clock)
    zookeeper.connect()
    try:
        cluster = Cluster(zookeeper, name)
        cluster.look_up()
        yield cluster
    finally:
        zookeeper.close()


def cluster_standing(cluster: Cluster, clock: Clock) -> dict[str, Any]:
    """Nodes, seats and failovers as plain values. A checkpoint that cannot be read is said to be so."""
    seen = cluster.look()
    told, votes = [], {part: _votes(seen, part) for part in replicated_parts(seen)}
    for job, seat in sorted(seen.seats.items()):
        holder, pulse, over = seat.holder, seat.pulse, seat.over
        # The newest sign of life may be that of the node which had the seat before.
        is_holders = pulse is None or holder is None or pulse.instance == holder.instance
        told.append(
            {
                "job": job,
                "holder": holder.node if holder else None,
                "since_ms": holder.since_ms if holder else None,
                "checkpoint": holder.checkpoint if holder else None,
                "term": pulse.term if pulse else None,
                "phase": pulse.phase if pulse and holder and is_holders else None,
                "epoch": pulse.epoch if pulse else None,
                "commit": pulse.commit if pulse else None,
                "heard_ms": seat.pulse_ms if is_holders else None,
                "heir": heir(seen, job),
                "survives": ends_survived(seen, job, votes=votes.get(part_of(job), False)),
                "handing_over": msgspec.to_builtins(seat.wish) if seat.wish else None,
                "over": msgspec.to_builtins(over) if over else None,
                **_failovers(holder.checkpoint if holder else None),
            }
        )
    nodes = [
        {
            "node": node.name,
            "host": node.host,
            "pid": node.pid,
            "since_ms": node.since_ms,
            "standby": node.standby,
            "seats": seen.held_by(node.name),
            "jobs": sorted(node.code),
            "unfit": {job: unfit.error for job, unfit in sorted(node.unfit.items())},
            "lag": {job: msgspec.structs.asdict(lag) for job, lag in node.lag.items()},
        }
        for node in seen.nodes.values()
    ]
    replicas = [_replicas(seen, part, votes[part]) for part in votes]
    return {
        "cluster": cluster.name, "seats": told, "nodes": nodes, "replicas": replicas, "now_ms": clock.now_ms()
    }  # fmt: skip


def _votes(seen: ClusterSeen, part: str) -> bool:
    """Whether the members of a part with replicas vote, which is in its checkpoint."""
    of_part = [seat.holder for job, seat in seen.seats.items() if part_of(job) == part]
    checkpoints = [holder.checkpoint for holder in of_part if holder is not None]
    with suppress(HoldfastError):
        leader = newest_term(open_storage(checkpoints[0])) if checkpoints else None
        return leader is not None and leader.vote
    return False


def _replicas(seen: ClusterSeen, part: str, votes: bool) -> dict[str, Any]:
    """How a part with replicas is protected now."""
    now = replica_seats(seen, part, votes=votes)
    by_standing = {standing.value: list(now.those(standing)) for standing in Standing}
    return {
        "part": part, "seats": len(now.seats), **by_standing, "votes": votes, "survives": now.survives,
        "told": str(now),
    }  # fmt: skip


def hand_over(cluster: Cluster, job: str | None, to: str | None, clock: Clock, seconds: float) -> HandOver:
    """Have the holder of a seat stop in good order and another node go on; waits until that has happened.

    DefinitionError: no node holds it, or none could take it. RetryableError: it took too long; the wish is
    taken back.
    """
    seen = cluster.look()
    job = _chosen(seen, cluster.name, job)
    holder = seen.seats[job].holder
    if holder is None:
        raise DefinitionError(
            f"nobody holds the seat of {job!r}, so nobody can give it up; see holdfast status"
        )
    others = [name for name, node in seen.nodes.items() if is_able(node, job) and name != holder.node]
    ready = [name for name in others if not seen.holds_fellow(name, job)]
    if not ready:
        taken = f": {', '.join(sorted(others))} run it in another seat" if others else ""
        raise DefinitionError(f"no other node could take {job!r} from {holder.node}{taken}; start one first")
    if to is not None and to not in ready:
        raise DefinitionError(f"node {to!r} cannot take {job!r}; those who can: {', '.join(sorted(ready))}")
    began, seat = clock.monotonic(), cluster.seat(job)
    wish = WishRecord(giver=holder.node, to=to or "", by=asker("holdfast handover"), at_ms=clock.now_ms())
    seat.wish(wish)
    try:
        while clock.monotonic() - began < seconds:
            now = seat.look().holder
            if now is not None and now.instance != holder.instance:
                return HandOver(job, holder.node, now.node, clock.monotonic() - began)
            clock.sleep(LOOK_SECONDS)
    finally:
        # The node that took the seat has removed the wish; one that was not fulfilled must not linger.
        with suppress(HoldfastError):
            if seat.look().wish == wish:
                seat.unwish()
    raise RetryableError(
        f"{holder.node} did not give up the seat of {job!r} in {seconds:g} s; look at its log"
    )


def _chosen(seen: ClusterSeen, cluster: str, job: str | None) -> str:
    known = ", ".join(sorted(seen.seats)) or "none"
    if job is None:
        if len(seen.seats) != 1:
            raise DefinitionError(
                f"cluster {cluster!r} has several seats ({known}); choose one with --job NAME"
            )
        return next(iter(seen.seats))
    if job not in seen.seats:
        raise DefinitionError(f"cluster {cluster!r} has no seat for {job!r}; it has {known}")
    return job


def _failovers(checkpoint: str | None) -> dict[str, Any]:
    if checkpoint is None:
        return {"failovers": []}
    try:
        found = read_failovers(open_storage(checkpoint))
    except HoldfastError as problem:
        return {"failovers": [], "problem": str(problem)}
    return {"failovers": [msgspec.to_builtins(record) for record in found]}
