"""The nodes of one case: part `main` on one that is never hurt, the protected part on others.

Always true: when `settle` has returned, `main` is on the node that was started first, and no node has two
seats. Each node has a working directory of its own, as on a machine of its own.
"""

from __future__ import annotations

import random
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.node_process import CLUSTER, Node, wait_for, zookeeper
from bench.protection.cases import APP, MAIN_SEAT, PART, PART_SEAT, Case
from holdfast.admin.cluster import hand_over, visit
from holdfast.chaos.processes import QUICK_JVM
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.clock import SystemClock
from holdfast.cluster.membership import Cluster
from holdfast.cluster.zookeeper import ZooKeeperSettings
from holdfast.errors import HoldfastError
from holdfast.storage.urls import open_storage

EPOCH_INTERVAL = "1s"
EPOCH_ROWS_MAX = 20_000
RETAIN = 100
"""More commits than are made between two looks at them."""
HAND_OVER_SECONDS = 120.0
LOOK_SECONDS = 0.2
START_NICENESS = 5
FOLLOWS = f"{PART_SEAT}: HOT: "
"""What a node says whose working state of the part has caught up with the leader's."""


@dataclass(frozen=True)
class Settings:
    """`rate`: rows per second. `session`: the time-out of ZooKeeper, `warm_up` and `stretch`: how long before
    the measuring and how long for it; seconds."""

    rate: int
    session: float
    warm_up: float
    stretch: float
    kills: int


class ProtectedPart:
    """The nodes that run the job of a case in `place`."""

    def __init__(self, case: Case, settings: Settings, place: Path, hosts: str) -> None:
        self._case, self._settings, self._place, self._hosts = case, settings, place, hosts
        self._started = 0
        self.directory = place / "ck" / names.PARTS / PART
        """The checkpoint of the part."""
        self.nodes: list[Node] = []
        """Those that were not lost; the first has `main`."""

    @property
    def home(self) -> Node:
        """The node of `main`."""
        return self.nodes[0]

    @property
    def sessions(self) -> dict[str, list[int]]:
        """Of the processes of the nodes that the part is for, and of all."""
        found = [node.session for node in self.nodes]
        return {"part": found[1:], "all": found}

    @property
    def takes_over(self) -> bool:
        """Whether the part stands still until another node has taken it over."""
        return self._case.kind != "active"

    @property
    def failovers(self) -> list[FailoverRecord]:
        """Of the part."""
        return read_failovers(open_storage(str(self.directory)))

    def start(self) -> Node:
        """Start one more node."""
        self._started += 1
        name, settings = f"node-{self._started}", self._settings
        options = [
            "--session-timeout", f"{round(settings.session * 1_000)}ms", "--epoch-interval", EPOCH_INTERVAL,
            "--max-rows-per-epoch", str(EPOCH_ROWS_MAX), "--retain", str(RETAIN),
            "--working-dir", f"working-{name}",
        ]  # fmt: skip
        if self._case.commit_every and self.nodes:
            # Not `main`: the part is to have its rows as in every other case.
            options += ["--checkpoint-interval", self._case.commit_every]
        environment = {"PYSPARK_SUBMIT_ARGS": _spark(self._place), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.nodes.append(Node(name, self._place, self._hosts, options, environment))
        return self.nodes[-1]

    def start_all(self) -> None:
        """Start what the case needs; returns when every node has its place."""
        home = self.start()
        wait_for(lambda: home.told("is in cluster"), f"{home.name} to join")
        for _ in range(self._case.spread):
            self.start()
        self.settle()
        if self._case.kind == "passive":
            held = self.holders().values()
            for node in [each for each in self.nodes if each.name not in held]:
                wait_for(partial(node.told, FOLLOWS), f"{node.name} to follow")

    def settle(self) -> None:
        wait_for(self._settled, "each seat to be on a node of its own", LOOK_SECONDS)

    def _settled(self) -> bool:
        """Whether every seat is where it should be; where not, the next hand-over is done."""
        for node in self.nodes:
            node.must_run()
        # ZooKeeper may be slow to answer while many nodes start; a hand-over that the nodes have begun by
        # themselves comes to its end first.
        with suppress(HoldfastError), self._visited() as cluster:
            return self._in_place(cluster)
        return False

    def _in_place(self, cluster: Cluster) -> bool:
        seen, home = cluster.look(), self.home.name
        held = {name: seat.holder.node for name, seat in seen.seats.items() if seat.holder is not None}
        there = [node.name for node in self.nodes if node.name in seen.nodes]
        move = next_move(held, there, home)
        if move is not None:
            hand_over(cluster, *move, SystemClock(), HAND_OVER_SECONDS)
            return False
        return in_place(held, self._case, home)

    def holders(self) -> dict[str, str]:
        """Seat -> the node that holds it."""
        with self._visited() as cluster:
            seats = cluster.look().seats
        return {name: seat.holder.node for name, seat in seats.items() if seat.holder is not None}

    def _visited(self) -> AbstractContextManager[Cluster]:
        return visit(ZooKeeperSettings(hosts=self._hosts), CLUSTER, SystemClock())

    def kill_one(self, chance: random.Random) -> tuple[float, Node]:
        """Lose a node that runs the part, and start another; when it was lost, and the new one. Where others
        go on meanwhile the new one gives way to them: on a machine of its own its start would take nothing
        from them."""
        victims = {self.holders()[seat] for seat in self._case.seats}
        victim = chance.choice([node for node in self.nodes if node.name in victims])
        killed = victim.lose()
        self.nodes.remove(victim)
        replacement = self.start()
        if self._case.kind in ("active", "passive"):
            replacement.give_way(START_NICENESS)
        return killed, replacement

    def taken_since(self, killed: float) -> list[FailoverRecord]:
        """Which nodes have taken a seat of the part since then, and have seen a commit."""
        return [record for record in self.failovers if record.at_ms / 1_000 > killed]

    def protected_at(self, killed: float, replacement: Node) -> float | None:
        """When the part was as protected as before, beside that it commits again; None: not yet."""
        if self._case.kind == "passive":
            return replacement.told_at(FOLLOWS)
        if self._case.kind == "active":
            taken = [each for each in self.taken_since(killed) if each.node == replacement.name]
            return taken[0].at_ms / 1_000 if taken else None
        return killed

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def in_place(held: Mapping[str, str], case: Case, home: str) -> bool:
    """Whether every seat is held, `main` by its own node and each other one by a node that has no more.
    `held`: seat -> node."""
    wanted = {MAIN_SEAT, *case.seats}
    return held.keys() == wanted and held[MAIN_SEAT] == home and len({*held.values()}) == len(wanted)


def next_move(held: Mapping[str, str], there: Sequence[str], home: str) -> tuple[str, str] | None:
    """The seat that is to be handed over next, and the node that is to get it; None: none has to, or none can
    yet. `there`: the nodes that are in the cluster."""
    if held.get(MAIN_SEAT, home) != home:
        return (MAIN_SEAT, home) if home in there else None
    idle = [node for node in there if node not in held.values() and node != home]
    wrong = [seat for seat, node in sorted(held.items()) if node == home and seat != MAIN_SEAT]
    return (wrong[0], idle[0]) if wrong and idle else None


def _spark(place: Path) -> str:
    """One core for each node. Code is compiled quickly and not well: a minute would otherwise tell how long
    the JVM takes to make it fast."""
    conf = {
        "spark.driver.memory": "700m", "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(place / "spark"),
    }  # fmt: skip
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    return shlex.join(["--master", "local[1]", *options, "pyspark-shell"])


@contextmanager
def protected_part(case: Case, settings: Settings) -> Iterator[tuple[ProtectedPart, Path]]:
    """The nodes of a case, not started yet, and where they run."""
    with tempfile.TemporaryDirectory(prefix="holdfast-protection-") as root:
        place = Path(root)
        (place / "app.py").write_text(APP.format(slug=case.slug, rate=settings.rate, place=root))
        with zookeeper(place) as hosts:
            part = ProtectedPart(case, settings, place, hosts)
            try:
                yield part, place
            finally:
                part.close()
