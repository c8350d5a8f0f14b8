"""How a node of a cluster behaves, checked when it is said."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cluster.node_records import checked_name
from holdfast.cluster.ranking import KINDS
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """`standby`: one of KINDS. Warm: Spark is started and the jobs are compiled and rehearsed beforehand;
    hot: and the working state follows the leader's.
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
