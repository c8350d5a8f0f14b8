"""What a node is told, checked before anything is connected to."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import DefinitionError
from holdfast.nodes.registration import NodeSettings

ZOOKEEPER = ZooKeeperSettings(hosts="h:2181")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cluster": "a b"}, "the cluster name 'a b' cannot be used"),
        ({"name": "../x"}, "the node name '../x' cannot be used"),
        ({"standby": "tepid"}, "choose one of hot, warm, cold"),
        ({"resign_seconds": 0.0}, "cannot resign after no time"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told.replace(".", r"\.")):
        NodeSettings(**{"cluster": "shop", "zookeeper": ZOOKEEPER, **given})


def test_no_zookeeper_is_told() -> None:
    with pytest.raises(DefinitionError, match="no ZooKeeper was given"):
        ZooKeeperSettings(hosts=" ")
