"""Seats: one per job, each held by at most one node at a time.

A seat is taken by creating its ephemeral `holder`; ZooKeeper lets one win. While it is held, the holder
writes its `pulse`, which stays when the holder is gone and tells who comes next when it was last heard of.
When the session is lost: the seat is free as soon as ZooKeeper has ended the session; the old holder must not
write its pulse any more. When ZooKeeper has lost its data: all seats are free, and `prepare` makes them anew.
Never here: who should take a seat (see seating), what holding means (see tenure).
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.cluster import paths
from holdfast.cluster.node_records import HolderCard, OverCard, PulseCard, WishCard, read, written
from holdfast.cluster.ranking import SeatSeen
from holdfast.cluster.zookeeper import Watch, ZooKeeper
from holdfast.errors import RetryableError


def prepare(zookeeper: ZooKeeper, cluster: str, job: str) -> None:
    """See to it that the seat is known."""
    zookeeper.create(paths.seat(cluster, paths.checked_name("job", job)), b"")


def jobs(zookeeper: ZooKeeper, cluster: str, watch: Watch | None = None) -> list[str]:
    """The jobs that the cluster has seats for."""
    return zookeeper.children(paths.seats(cluster), watch) or []


def look(zookeeper: ZooKeeper, cluster: str, job: str, watch: Watch | None = None) -> SeatSeen:
    """A seat as it is; `watch` is called once, when it is taken, freed, wished for or over."""
    names = zookeeper.children(paths.seat(cluster, job), watch) or []
    holder = zookeeper.read(paths.holder(cluster, job)) if "holder" in names else None
    wish = zookeeper.read(paths.wish(cluster, job)) if "wish" in names else None
    over = zookeeper.read(paths.over(cluster, job)) if "over" in names else None
    pulse = zookeeper.read(paths.pulse(cluster, job)) if "pulse" in names else None
    return SeatSeen(
        holder=read(HolderCard, holder.data, paths.holder(cluster, job)) if holder else None,
        wish=read(WishCard, wish.data, paths.wish(cluster, job)) if wish else None,
        over=read(OverCard, over.data, paths.over(cluster, job)) if over else None,
        pulse=read(PulseCard, pulse.data, paths.pulse(cluster, job)) if pulse else None,
        pulse_ms=pulse.changed_ms if pulse else None,
    )


def take(zookeeper: ZooKeeper, cluster: str, job: str, card: HolderCard) -> int | None:
    """Try to win a free seat: when it was won, by ZooKeeper's clock, or None: somebody else was first."""
    path = paths.holder(cluster, job)
    created = zookeeper.create(path, written(card), ephemeral=True)
    here = zookeeper.read(path)
    if here is None or here.owner != zookeeper.session:
        return None
    if not created and read(HolderCard, here.data, path).instance != card.instance:
        return None
    return here.created_ms


def release(zookeeper: ZooKeeper, cluster: str, job: str) -> None:
    """Give up a seat of ours; one that is not ours is left alone."""
    path = paths.holder(cluster, job)
    here = zookeeper.read(path)
    if here is not None and here.owner == zookeeper.session:
        zookeeper.delete(path)


def beat(zookeeper: ZooKeeper, cluster: str, job: str, card: PulseCard, done: Callable[[], None]) -> None:
    """Give a sign of life, without waiting; `done` is called when ZooKeeper has it."""
    zookeeper.write_soon(paths.pulse(cluster, job), written(card), done)


def set_pulse(zookeeper: ZooKeeper, cluster: str, job: str, card: PulseCard) -> None:
    """Give a sign of life, the first one too."""
    path = paths.pulse(cluster, job)
    if not zookeeper.write(path, written(card)) and not zookeeper.create(path, written(card)):
        zookeeper.write(path, written(card))


def wish(zookeeper: ZooKeeper, cluster: str, job: str, card: WishCard) -> None:
    """Ask the holder to give the seat up. RetryableError: somebody has asked already."""
    if not zookeeper.create(paths.wish(cluster, job), written(card)):
        raise RetryableError(f"the seat of {job!r} is being handed over already; try again later")


def unwish(zookeeper: ZooKeeper, cluster: str, job: str) -> None:
    zookeeper.delete(paths.wish(cluster, job))


def end(zookeeper: ZooKeeper, cluster: str, job: str, card: OverCard) -> None:
    """Say that the job is not to be run any more."""
    zookeeper.create(paths.over(cluster, job), written(card))


def reopen(zookeeper: ZooKeeper, cluster: str, job: str) -> None:
    """Take that back."""
    zookeeper.delete(paths.over(cluster, job))
