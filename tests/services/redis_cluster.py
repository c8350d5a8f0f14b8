"""A Redis Cluster of three nodes on loopback, each with a third of the slots; no replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from redis.crc import key_slot

from tests.services.servers import START_SECONDS, Server, free_port, redis_server

NODES, SLOTS = 3, 16_384


class Cluster:
    def __init__(self, nodes: list[Server], buses: list[int]) -> None:
        """`buses`: the ports by which the nodes speak to each other."""
        self.nodes, self._buses = nodes, buses
        self.clients = [redis.Redis.from_url(node.url) for node in nodes]

    def meet(self) -> None:
        """Deal the slots, make the nodes known to each other, and wait until all agree."""
        ports = [node.url.rpartition(":")[2].removesuffix("/0") for node in self.nodes]
        for number, client in enumerate(self.clients):
            first, end = (SLOTS * each // NODES for each in (number, number + 1))
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            for port, bus in zip(ports, self._buses, strict=True):
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        end_at = time.monotonic() + START_SECONDS
        while not all(self._is_whole(client) for client in self.clients):
            assert time.monotonic() < end_at, "the nodes of the cluster do not come to agree"
            time.sleep(0.05)

    def _is_whole(self, client: Any) -> bool:
        told = client.execute_command("CLUSTER", "INFO").decode().split()
        return {"cluster_state:ok", f"cluster_known_nodes:{NODES}"} <= set(told)

    def of(self, key: str) -> tuple[Server, Any]:
        """The node that has the slot of a key, and a client of it."""
        number = next(n for n in range(NODES) if key_slot(key.encode()) < SLOTS * (n + 1) // NODES)
        return self.nodes[number], self.clients[number]

    def move(self, key: str, to: int) -> None:
        """Give the slot of a key, which holds no keys, to another node."""
        owner = self.clients[to].execute_command("CLUSTER", "MYID")
        for client in self.clients:
            client.execute_command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", owner)


@contextmanager
def redis_cluster() -> Iterator[Cluster]:
    with ExitStack() as running:
        buses = [free_port() for _ in range(NODES)]
        nodes = [
            running.enter_context(redis_server("--cluster-enabled", "yes", "--cluster-port", str(bus)))
            for bus in buses
        ]
        cluster = Cluster(nodes, buses)
        for client in cluster.clients:
            running.callback(client.close)
        cluster.meet()
        yield cluster
