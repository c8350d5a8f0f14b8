"""Being in a cluster: the cluster's own node, and one ephemeral node for each member.

When the session is lost: the member's node goes with it; `join` is called again under the next session. A
node of ours that an older session left behind is recognised by its instance and replaced. When ZooKeeper has
lost its data, `found` creates everything anew, under the id that the caller remembers.
Never here: seats (see seats).
"""

from __future__ import annotations

from enum import Enum

from holdfast.cluster import paths
from holdfast.cluster.node_records import ClusterCard, NodeCard, read, written
from holdfast.cluster.zookeeper import Watch, ZooKeeper
from holdfast.errors import DefinitionError, RetryableError

TRIES_MAX = 3


class Founding(Enum):
    """How the cluster came to be known to ZooKeeper."""

    THERE = "there"
    CREATED = "created"


def found(zookeeper: ZooKeeper, name: str, fresh: ClusterCard) -> tuple[ClusterCard, Founding]:
    """The cluster called `name`; where ZooKeeper knows none, it is created as `fresh` says."""
    path = paths.cluster(paths.checked_name("cluster", name))
    zookeeper.create_open(paths.ROOT)
    founding = Founding.CREATED if zookeeper.create(path, written(fresh)) else Founding.THERE
    zookeeper.create(paths.nodes(name), b"")
    zookeeper.create(paths.seats(name), b"")
    here = zookeeper.read(path)
    if here is None:
        raise RetryableError(f"{path} was removed while the node joined; try again")
    return read(ClusterCard, here.data, path), founding


def look_up(zookeeper: ZooKeeper, name: str) -> ClusterCard:
    """The cluster called `name`. DefinitionError: ZooKeeper knows none."""
    path = paths.cluster(paths.checked_name("cluster", name))
    here = zookeeper.read(path)
    if here is None:
        known = ", ".join(zookeeper.children(paths.ROOT) or ()) or "none"
        raise DefinitionError(f"ZooKeeper knows no cluster {name!r}; it knows {known}")
    return read(ClusterCard, here.data, path)


def join(zookeeper: ZooKeeper, cluster: str, card: NodeCard) -> None:
    """Register a node. DefinitionError: another one of that name is there."""
    path = paths.node(cluster, paths.checked_name("node", card.name))
    for _ in range(TRIES_MAX):
        if zookeeper.create(path, written(card), ephemeral=True):
            return
        here = zookeeper.read(path)
        if here is None:
            continue
        other = read(NodeCard, here.data, path)
        if other.instance != card.instance:
            raise DefinitionError(
                f"a node named {card.name!r} is in cluster {cluster!r} already ({other.host}, process "
                f"{other.pid}); choose another --name, or wait until its session has ended"
            )
        if here.owner == zookeeper.session:
            return
        zookeeper.delete(path)
    raise RetryableError(f"node {card.name!r} could not be registered in {TRIES_MAX} tries; try again")


def tell(zookeeper: ZooKeeper, cluster: str, card: NodeCard) -> None:
    """Replace the card of a node that has joined, without waiting: nothing depends on it."""
    zookeeper.write_soon(paths.node(cluster, card.name), written(card), lambda: None)


def members(zookeeper: ZooKeeper, cluster: str, watch: Watch | None = None) -> dict[str, NodeCard]:
    """The nodes that are there; `watch` is called once, when one comes or goes."""
    there = {}
    for name in zookeeper.children(paths.nodes(cluster), watch) or ():
        path = paths.node(cluster, name)
        if (here := zookeeper.read(path)) is not None:
            there[name] = read(NodeCard, here.data, path)
    return there
