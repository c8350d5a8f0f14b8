"""TLS to a real ZooKeeper that asks its clients for a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.cluster.zookeeper import ZooKeeper, ZooKeeperSettings
from holdfast.errors import RetryableError
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from tests.services.certificates import issued


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperSettings]:
    """How a client with the right certificate reaches a server that asks for one."""
    place, port = tmp_path_factory.mktemp("tls"), free_port()
    authority = issued("authority")
    server, client = issued("server", authority), issued("client", authority)
    (place / "ca.pem").write_bytes(authority.certificate_pem)
    (place / "server.pem").write_bytes(server.key_pem + server.certificate_pem)
    (place / "client.pem").write_bytes(client.certificate_pem)
    (place / "client.key").write_bytes(client.key_pem)
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": place / "server.pem",
        "ssl.trustStore.location": place / "ca.pem",
    }
    running = ZooKeeperServer(place / "zookeeper", free_port(), settings=settings)
    running.start()
    yield ZooKeeperSettings(
        hosts=f"127.0.0.1:{port}", tls=True, tls_ca=str(place / "ca.pem"),
        tls_certificate=str(place / "client.pem"), tls_key=str(place / "client.key"),
    )  # fmt: skip
    running.kill()


def connected(settings: ZooKeeperSettings, seconds: float) -> ZooKeeper:
    zookeeper = ZooKeeper(settings, lambda change: None, SystemClock())
    zookeeper.connect(seconds)
    return zookeeper


def test_a_node_with_a_certificate_is_let_in(guarded: ZooKeeperSettings) -> None:
    zookeeper = connected(guarded, 15.0)
    assert zookeeper.create("/here", b"yes", ephemeral=True)
    found = zookeeper.read("/here")
    assert found is not None
    assert found.data == b"yes"
    zookeeper.close()


def test_without_a_certificate_or_with_an_unknown_authority_there_is_no_connection(
    guarded: ZooKeeperSettings, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_bytes(issued("somebody else").certificate_pem)
    for changed in ({"tls_certificate": None, "tls_key": None}, {"tls_ca": str(tmp_path / "other.pem")}):
        settings = {name: getattr(guarded, name) for name in ZooKeeperSettings.__dataclass_fields__}
        with pytest.raises(RetryableError, match=r"did not answer within 1\.5 s; .* the certificates"):
            connected(ZooKeeperSettings(**{**settings, **changed}), 1.5)
