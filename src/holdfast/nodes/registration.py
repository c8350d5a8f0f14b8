"""A node's entry in its cluster: how it is to behave, what ZooKeeper knows of it, whose its checkpoints are.

`enter` before `join`, both again for every session and after ZooKeeper has lost its data.
Always true: a node that is refused has changed nothing of jobs that others run.
Never here: seats that change hands (see seat_keeper).
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.chain.checkpoint import (
    cluster_of,
    find_job,
    hold_by_cluster,
    refuse_if_occupied,
    refuse_other_cluster,
)
from holdfast.checkpoint.store.log_records import ClusterRecord
from holdfast.clock import Clock
from holdfast.cluster.membership import Cluster, Founding
from holdfast.cluster.node_records import HolderRecord, Lag, NodeRecord, RegisteredCluster, checked_name
from holdfast.cluster.ranking import KINDS, code_differences, part_of
from holdfast.cluster.seat_lease import Limits
from holdfast.cluster.zookeeper import ZooKeeper, ZooKeeperSettings
from holdfast.errors import DefinitionError
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.runtime.progress import Listener, Message

LAG_SECONDS = 1.0
"""How often, at most, a node tells how far behind it is."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """`standby`: one of KINDS. Warm: Spark is started, the jobs are compiled, and both are warmed up
    beforehand; hot: and the working state follows the leader's.
    """

    cluster: str
    zookeeper: ZooKeeperSettings
    name: str = ""
    standby: str = "cold"
    resign_seconds: float = 60.0
    allow_other_code: bool = False
    move_checkpoint: bool = False

    def __post_init__(self) -> None:
        checked_name("cluster", self.cluster)
        if self.name:
            checked_name("node", self.name)
        if self.standby not in KINDS:
            raise DefinitionError(f"standby={self.standby!r} is not known; choose one of {', '.join(KINDS)}")
        if self.resign_seconds <= 0:
            raise DefinitionError("a leader cannot resign after no time; choose --resign-after 60s or so")


class Registration:
    """One node of one cluster. `jobs` by name."""

    def __init__(
        self,
        settings: NodeSettings,
        zookeeper: ZooKeeper,
        jobs: Mapping[str, JobOnNode],
        say: Message,
        clock: Clock,
    ) -> None:
        self.name = settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self.instance = uuid.uuid4().hex
        self.standby, self.cluster = settings.standby, Cluster(zookeeper, settings.cluster)
        self._settings, self._jobs, self._say, self._clock = settings, jobs, say, clock
        self._since_ms = clock.now_ms()
        self._registered: RegisteredCluster | None = None
        self._told: NodeRecord | None = None
        self._lag_told = clock.monotonic()

    def enter(self, enter_checkpoints: Callable[[], None] = lambda: None) -> None:
        """Find or found the cluster, and see that the jobs and checkpoints are its own. `enter_checkpoints`:
        called once that is known, before anything else is written."""
        first = self._registered is None
        fresh = self._registered or RegisteredCluster(id=self._fresh_id(), since_ms=self._clock.now_ms())
        self._registered, founding = self.cluster.found(fresh)
        if founding is Founding.CREATED and not first:
            self._say(
                f"ZOOKEEPER LOST ITS DATA: it knew no cluster {self.cluster.name!r} any more; that is "
                "registered again under its id. What the jobs have done is in their checkpoints and is not "
                "touched"
            )
        if first:
            self._refuse_others()
            enter_checkpoints()
        for job in self._jobs.values():
            seat = self.cluster.seat(job.name)
            seat.prepare()
            if first:
                self.mark_checkpoint(job, move=self._settings.move_checkpoint)
                seat.reopen()

    def _refuse_others(self) -> None:
        """DefinitionError: what others run is not what this node would. RestoreError: a checkpoint is another
        cluster's."""
        seats = self.cluster.look().seats
        holders = {name: seat.holder for name, seat in seats.items() if seat.holder is not None}
        for job in self._jobs.values():
            refuse_other_cluster(job.storage, self._held(), move=self._settings.move_checkpoint)
            if (holder := holders.get(job.name)) is not None:
                refuse_other_code(job, self.other_code(job, holder))
            elif job.name not in seats and not self._settings.allow_other_code:
                # Nodes that run the job have put up the seats of all of its parts.
                others = (held for name, held in holders.items() if part_of(name) in job.siblings)
                refuse_other_code(job, next((f"in no job that node {held.node} runs" for held in others), ""))
            if not self._settings.allow_other_code:
                _refuse_parts_elsewhere(job, holders)

    def join(self, lags: Mapping[str, Lag]) -> None:
        self._told = self._record(lags)
        self.cluster.join(self._told)

    def tell(self, lags: Mapping[str, Lag]) -> None:
        """Let others see this node as it is now. What it does next in ZooKeeper is seen after that."""
        self._told = self._record(lags)
        self.cluster.tell(self._told)

    def tell_lag(self, lags: Mapping[str, Lag]) -> None:
        """Let others see how far behind this node's working state is, now and then while that changes."""
        now = self._clock.monotonic()
        if now - self._lag_told >= LAG_SECONDS:
            if self._record(lags) != self._told:
                self.tell(lags)
            self._lag_told = now

    def other_code(self, job: JobOnNode, holder: HolderRecord) -> str:
        """How another node leads the job unlike this one would, in words; empty: it does not, or may."""
        if holder.instance == self.instance or self._settings.allow_other_code:
            return ""
        differences = "; ".join(code_differences(job.code, holder.code))
        return differences and f"not as node {holder.node} leads it: {differences}"

    def mark_checkpoint(self, job: JobOnNode, *, move: bool) -> None:
        """See to it that the checkpoint is this cluster's. RestoreError: it is another's."""
        storage = job.storage
        if find_job(storage) is None:
            refuse_if_occupied(storage)
        hold_by_cluster(storage, self._held(), move=move)

    def _held(self) -> ClusterRecord:
        """What says that a checkpoint is this cluster's."""
        assert self._registered is not None, "the cluster is known before a checkpoint is marked"
        return ClusterRecord(
            cluster=self.cluster.name, id=self._registered.id, zookeeper=self._settings.zookeeper.hosts,
            node=self.name, at_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _record(self, lags: Mapping[str, Lag]) -> NodeRecord:
        jobs = self._jobs.values()
        return NodeRecord(
            name=self.name, instance=self.instance, host=socket.gethostname(), pid=os.getpid(),
            since_ms=self._since_ms, standby=self.standby,
            code={job.name: job.code for job in jobs if not job.superseded},
            lag=dict(lags), unfit={job.name: job.unfit for job in jobs if job.unfit is not None},
        )  # fmt: skip

    def _fresh_id(self) -> str:
        """The id under which a checkpoint knows this cluster, if one does: then ZooKeeper has lost it."""
        here = (self.cluster.name, self._settings.zookeeper.hosts)
        for job in self._jobs.values():
            known = cluster_of(job.storage)
            if known is not None and (known.cluster, known.zookeeper) == here:
                return known.id
        return uuid.uuid4().hex


def _refuse_parts_elsewhere(job: JobOnNode, holders: Mapping[str, HolderRecord]) -> None:
    """DefinitionError: another node runs a part of the same job that this one does not have."""
    strange = job.parts_elsewhere()
    for name, holder in holders.items():
        if part_of(name) in strange:
            raise DefinitionError(
                f"node {holder.node} runs {part_of(name)!r}, a part that the job does not have in the code "
                "here: it is being upgraded to code that adds the part, or to code without it; start the "
                "code of that node, or --allow-other-code to upgrade by taking over"
            )


def refuse_other_code(job: JobOnNode, other: str) -> None:
    """DefinitionError: the code differs as `other` says."""
    if other:
        raise DefinitionError(
            f"job {job.name!r} is {other}; start the same code, or --allow-other-code to upgrade by taking "
            "over"
        )


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What all jobs on a node share. `owner`: the name under which it keeps its working state."""

    registration: Registration
    owner: str
    limits: Callable[[], Limits]
    clock: Clock
    say: Message
    on_progress: Listener

    def saying(self, job: JobOnNode) -> Message:
        """Says what is said of one job."""
        return lambda text: self.say(f"{job.name}: {text}")
