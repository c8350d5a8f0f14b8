"""The connection to a real ZooKeeper, where the server does not do as it should."""

from __future__ import annotations

from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import Connection, ZooKeeper, ZooKeeperSettings
from holdfast.nodes.zookeeper_server import ZooKeeperServer
from tests.services.cable import Cable
from tests.services.harness import wait_until

SESSION_SECONDS = 4.0


def test_a_server_that_takes_a_connection_and_never_answers_does_not_cost_the_session(
    server: ZooKeeperServer,
) -> None:
    """One that is just starting does that."""
    changes: list[Connection] = []
    with Cable(server.port) as cable:
        settings = ZooKeeperSettings(hosts=cable.hosts, session_seconds=SESSION_SECONDS)
        zookeeper = ZooKeeper(settings, changes.append, SystemClock())
        zookeeper.connect()
        try:
            session = zookeeper.session
            cable.refuse()
            wait_until(lambda: Connection.SUSPENDED in changes, "the loss to be noticed")
            cable.swallow = 1
            cable.restore()
            wait_until(lambda: zookeeper.connected, "the connection to be back")
            assert cable.swallow == 0
            assert zookeeper.session == session
            assert Connection.LOST not in changes
        finally:
            zookeeper.close()
