"""A cluster in ZooKeeper: its own node, one ephemeral node for each member, and its seats.

When the session is lost: the member's node goes with it; `join` is called again under the next session. A
node of ours that an older session left behind is recognised by its instance and replaced. When ZooKeeper has
lost its data, `found` creates everything again, under the id that the caller remembers.
Never here: what happens at a seat (see seats).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.cluster.node_records import ROOT, NodeRecord, RegisteredCluster, checked_name, read, written
from holdfast.cluster.ranking import ClusterSeen
from holdfast.cluster.seats import Seat
from holdfast.cluster.zookeeper import Watch, ZooKeeper
from holdfast.errors import DefinitionError, RetryableError

TRIES_MAX = 3


class Founding(Enum):
    """How the cluster came to be known to ZooKeeper."""

    THERE = "there"
    CREATED = "created"


@dataclass(frozen=True)
class Cluster:
    """The cluster called `name`, as one session reaches it."""

    zookeeper: ZooKeeper
    name: str

    @property
    def _path(self) -> str:
        return f"{ROOT}/{checked_name('cluster', self.name)}"

    def found(self, fresh: RegisteredCluster) -> tuple[RegisteredCluster, Founding]:
        """The cluster as it is registered; where ZooKeeper knows none, it is created as `fresh` says."""
        self.zookeeper.create_open(ROOT)
        founding = Founding.CREATED if self.zookeeper.create(self._path, written(fresh)) else Founding.THERE
        self.zookeeper.create(f"{self._path}/nodes", b"")
        self.zookeeper.create(f"{self._path}/seats", b"")
        here = self.zookeeper.read(self._path)
        if here is None:
            raise RetryableError(f"{self._path} was removed while the node joined; try again")
        return read(RegisteredCluster, here.data, self._path), founding

    def look_up(self) -> RegisteredCluster:
        """The cluster as it is registered. DefinitionError: ZooKeeper knows none of that name."""
        here = self.zookeeper.read(self._path)
        if here is None:
            known = ", ".join(self.zookeeper.children(ROOT) or ()) or "none"
            raise DefinitionError(f"ZooKeeper knows no cluster {self.name!r}; it knows {known}")
        return read(RegisteredCluster, here.data, self._path)

    def join(self, record: NodeRecord) -> None:
        """Register a node. DefinitionError: another one of that name is there."""
        path = f"{self._path}/nodes/{checked_name('node', record.name)}"
        for _ in range(TRIES_MAX):
            if self.zookeeper.create(path, written(record), ephemeral=True):
                return
            here = self.zookeeper.read(path)
            if here is None:
                continue
            other = read(NodeRecord, here.data, path)
            if other.instance != record.instance:
                raise DefinitionError(
                    f"a node named {record.name!r} is in cluster {self.name!r} already ({other.host}, "
                    f"process {other.pid}); choose another --name, or wait until its session has ended"
                )
            if here.owner == self.zookeeper.session:
                return
            self.zookeeper.delete(path)
        raise RetryableError(f"node {record.name!r} could not be registered in {TRIES_MAX} tries; try again")

    def tell(self, record: NodeRecord) -> None:
        """Replace the record of a node that has joined, without waiting: nothing depends on it."""
        self.zookeeper.write_soon(f"{self._path}/nodes/{record.name}", written(record), lambda: None)

    def seat(self, job: str) -> Seat:
        return Seat(self.zookeeper, f"{self._path}/seats/{job}", job)

    def look(self, watch: Watch | None = None) -> ClusterSeen:
        """The cluster as it is; `watch` is told of the next change.

        Seats before nodes: a node on which a job failed writes that down before it frees the seat, so a look
        that finds the seat free also finds why.
        """
        jobs = self.zookeeper.children(f"{self._path}/seats", watch) or ()
        seats = {job: self.seat(job).look(watch) for job in jobs}
        nodes = {}
        for name in self.zookeeper.children(f"{self._path}/nodes", watch) or ():
            path = f"{self._path}/nodes/{name}"
            if (here := self.zookeeper.read(path)) is not None:
                nodes[name] = read(NodeRecord, here.data, path)
        return ClusterSeen(nodes=nodes, seats=seats)
