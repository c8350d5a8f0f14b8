"""One real ZooKeeper for all of these tests; a test that hurts it leaves it running."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from tests.services.harness import Running, nodes_of


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """A cluster of the test's own."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:80]


@pytest.fixture
def start(server: ZooKeeperServer, cluster: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts nodes of that cluster."""
    with nodes_of(tmp_path / "ck", server.hosts) as begin:

        def start(name: str, *jobs: Any, **more: Any) -> Running:
            return begin(name, *jobs, **{"cluster": cluster, **more})

        yield start
