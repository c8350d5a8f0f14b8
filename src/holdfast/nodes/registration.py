"""What ZooKeeper knows of a node: the cluster it belongs to, its card, and how far behind its state is.

`enter` before `join`, both again for every session and after ZooKeeper has lost its data.
Never here: seats that change hands (see sitting).
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping

from holdfast.checkpoint.log.failovers import cluster_of
from holdfast.checkpoint.store.records import ClusterRecord
from holdfast.clock import Clock
from holdfast.cluster.membership import Cluster, Founding
from holdfast.cluster.node_records import HolderRecord, NodeRecord, RegisteredCluster, Unfit
from holdfast.cluster.node_records import Lag as LagRecord
from holdfast.cluster.ranking import code_differences
from holdfast.errors import DefinitionError
from holdfast.nodes.follow_plan import Lag
from holdfast.nodes.job_seat import Tenant
from holdfast.nodes.settings import NodeSettings
from holdfast.runtime.progress import Message
from holdfast.storage.urls import open_storage

LAG_SECONDS = 1.0
"""How often, at most, a node tells how far behind it is."""


class Registration:
    """One node's entry in its cluster. `tenants`, by job, are still being made when this is."""

    def __init__(
        self,
        settings: NodeSettings,
        cluster: Cluster,
        tenants: Mapping[str, Tenant],
        say: Message,
        clock: Clock,
    ) -> None:
        self.name = settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self.instance = uuid.uuid4().hex
        self._settings, self._there, self._tenants = settings, cluster, tenants
        self._say, self._clock = say, clock
        self._since_ms = clock.now_ms()
        self._cluster: RegisteredCluster | None = None
        self._told: NodeRecord | None = None
        self._lag_told = clock.monotonic()

    def enter(self) -> None:
        """Find or found the cluster, and see that the jobs and checkpoints are its own."""
        cluster, first = self._settings.cluster, self._cluster is None
        fresh = self._cluster or RegisteredCluster(id=self._fresh_id(), since_ms=self._clock.now_ms())
        self._cluster, founding = self._there.found(fresh)
        if founding is Founding.CREATED and not first:
            self._say(
                f"ZOOKEEPER LOST ITS DATA: it knew no cluster {cluster!r} any more; that is registered "
                "again under its id. What the jobs have done is in their checkpoints and is not touched"
            )
        for tenant in self._tenants.values():
            self._there.seat(tenant.name).prepare()
            if first:
                tenant.mark_checkpoint(move=self._settings.move_checkpoint)
                self._there.seat(tenant.name).reopen()
            seat = self._there.seat(tenant.name).look()
            if seat.holder is not None:
                self.refuse_other_code(tenant, seat.holder)

    def join(self) -> None:
        self._told = self._card()
        self._there.join(self._told)

    def tell(self) -> None:
        """Let others see this node as it is now. What it does next in ZooKeeper is seen after that."""
        self._told = self._card()
        self._there.tell(self._told)

    def tell_lag(self) -> None:
        """Let others see how far behind this node's working state is, while that changes."""
        now = self._clock.monotonic()
        if now - self._lag_told < LAG_SECONDS:
            return
        card = self._card()
        if card != self._told:
            self._there.tell(card)
        self._lag_told, self._told = now, card

    def refuse_other_code(self, tenant: Tenant, holder: HolderRecord) -> None:
        """DefinitionError: another node leads the job, and not as this one would."""
        if holder.instance == self.instance or self._settings.allow_other_code:
            return
        differences = code_differences(tenant.code, holder.code)
        if differences:
            raise DefinitionError(
                f"job {tenant.name!r} is not as node {holder.node} leads it: {'; '.join(differences)}; "
                "start the same code, or --allow-other-code to upgrade by taking over"
            )

    def cluster_record(self) -> ClusterRecord:
        """What marks a checkpoint as this cluster's."""
        assert self._cluster is not None, "the cluster is known before a checkpoint is marked"
        return ClusterRecord(
            cluster=self._settings.cluster, id=self._cluster.id, zookeeper=self._settings.zookeeper.hosts,
            node=self.name, at_ms=self._clock.now_ms(),
        )  # fmt: skip

    def _card(self) -> NodeRecord:
        lags = {job: tenant.lag for job, tenant in self._tenants.items()}
        return NodeRecord(
            name=self.name, instance=self.instance, host=socket.gethostname(), pid=os.getpid(),
            since_ms=self._since_ms, standby=self._settings.standby,
            code={name: tenant.code for name, tenant in self._tenants.items()},
            lag={job: _lag_card(lag) for job, lag in lags.items() if lag is not None},
            unfit={
                job: Unfit(error=unfit.error, at_ms=unfit.at_ms, commit=unfit.commit)
                for job, tenant in self._tenants.items() if (unfit := tenant.unfit) is not None
            },
        )  # fmt: skip

    def _fresh_id(self) -> str:
        """The id under which a checkpoint knows this cluster, if one does: then ZooKeeper has lost it."""
        for tenant in self._tenants.values():
            known = cluster_of(open_storage(tenant.checkpoint))
            same = known is not None and known.cluster == self._settings.cluster
            if known is not None and same and known.zookeeper == self._settings.zookeeper.hosts:
                return known.id
        return uuid.uuid4().hex


def _lag_card(lag: Lag) -> LagRecord:
    # A tenth of a second is fine enough to read, and changes less often.
    return LagRecord(
        epoch=lag.epoch, epochs=lag.epochs, ms=round(lag.seconds * 10) * 100, problem=lag.problem
    )
