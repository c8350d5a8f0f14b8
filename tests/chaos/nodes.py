"""Real nodes of a real cluster, as processes that can be killed, stopped and resumed.

Always true: whatever was started is gone when the context ends, also when the test fails; only processes that
it started are ended.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.chaos.history import History as Story
from holdfast.chaos.processes import give_way
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.ids import CommitNumber
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from holdfast.steps import Step
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from tests.chaos import nemesis, recorded_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Verdict, check
from tests.chaos.cluster import arguments as spark_arguments
from tests.chaos.harness import ROOT, wait_until
from tests.chaos.nemesis import Action, Fault
from tests.services.cable import Cable
from tests.services.object_store import ObjectStore

CLUSTER = "chaos"
ENDLESS = 1_000_000
"""Epochs of a job that does not end by itself."""
SESSION = os.environ.get("HOLDFAST_CHAOS_SESSION", "4s")
APP = """
from pathlib import Path
from tests.chaos.apps import Place, Shape, declare
job = declare(Place(Path({root!r})), Shape(**{shape!r}))
"""
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.ui.enabled": "false",
}
LOCAL = ("--master", "local[2]")


class NodeProcess:
    """`holdfast node`, in a session of its own."""

    def __init__(
        self, name: str, root: Path, arguments: Sequence[str], settings: NodeSettings, cables: Cables
    ) -> None:
        self.name, self.cables, self._log = name, cables, root / f"{name}.log"
        self._token = root / f"{name}.token"
        self._lines, self._read = list[str](), 0
        environment = {
            **os.environ,
            **settings.environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": shlex.join([*spark_arguments(SPARK), *settings.spark, "pyspark-shell"]),
        }
        if settings.stop_at is not None:
            environment.update(recorded_storage.environment(self.writes))
            # While the token is there nobody stops: see `arm`.
            self._token.touch()
            environment.update(Fault(settings.stop_at, 1, Action.STOP).setting(self._token))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "node", *arguments, "--name", name, "--json"],
                cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def writes(self) -> Path:
        """What its processes wrote into storage, if it has a step to stop at."""
        return self._log.with_suffix(".writes")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def said(self) -> str:
        """Its messages, and whatever else it wrote, line by line."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            for raw in log:
                if not raw.endswith(b"\n"):
                    break  # still being written
                self._read += len(raw)
                self._note(raw.decode(errors="replace").rstrip("\n"))
        return "\n".join(self._lines)

    def _note(self, line: str) -> None:
        """Progress is left out: there is much of it, and nobody asks for it."""
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            self._lines.append(f"{self.name}: {line}")
            return
        if event.get("event") == "message":
            self._lines.append(f"{self.name}: {event['at_ms'] % 10_000_000 / 1000:.2f} {event['text']}")

    def told(self, *parts: str) -> bool:
        return self.times_told(*parts) > 0

    def times_told(self, *parts: str) -> int:
        """How many lines have all of these in them."""
        return sum(all(part in line for part in parts) for line in self.said().splitlines())

    def last_told_at(self, *parts: str) -> float:
        """When it last said so, in seconds by the machine's clock."""
        lines = [line for line in self.said().splitlines() if all(part in line for part in parts)]
        return float(lines[-1].split()[1])

    def arm(self) -> None:
        """From now on, the first of its processes that gets to the step of `stop_at` stops itself."""
        self._token.unlink()

    @property
    def hit(self) -> bool:
        """Whether one has, since it was armed."""
        return self._token.exists()

    def kill(self) -> None:
        """SIGKILL of the driver; its JVM and its workers are left to notice by themselves."""
        self._process.kill()
        self._process.wait()

    def ask_to_end(self) -> None:
        """SIGTERM: it gives its seats up in good order."""
        self._process.terminate()

    def pause_all(self) -> None:
        """Stop it with its JVM and its workers: a machine that is frozen."""
        for process in nemesis.members(self.pid):
            nemesis.pause(process.pid)

    def resume_all(self) -> None:
        for process in nemesis.members(self.pid):
            nemesis.resume(process.pid)

    def give_way(self, niceness: int) -> None:
        """What it gets of the machine beside other nodes."""
        give_way(self.pid, niceness)

    def close(self) -> None:
        nemesis.end_session(self.pid)
        self._process.wait()
        self.cables.zookeeper.close()
        if self.cables.storage is not None:
            self.cables.storage.close()


@dataclass(frozen=True)
class Cables:
    """What a node reaches the world through; either can be cut."""

    zookeeper: Cable
    storage: Cable | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """`stop_at`: a step of the protocol, for `arm`. `spark`: options of spark-submit."""

    stop_at: Step | None = None
    spark: tuple[str, ...] = LOCAL
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Cluster:
    """One job, its nodes and their ZooKeeper. Use as a context.

    `store`: where the checkpoint is, if not on disk. `spark`: options of spark-submit for every node.
    """

    root: Path
    shape: Shape = field(default_factory=lambda: Shape(epochs=120))
    epoch_interval: str = "300ms"
    session: str = SESSION
    resign_after: str = "60s"
    retain: int = 100
    store: ObjectStore | None = None
    spark: tuple[str, ...] = LOCAL
    nodes: list[NodeProcess] = field(default_factory=list)
    story: Story = field(default_factory=Story)

    def __enter__(self) -> Self:
        self.place = Place(self.root)
        self.server = ZooKeeperServer(self.root / "zookeeper", free_port())
        self.server.start()
        (self.root / "app.py").write_text(self.app())
        return self

    def app(self) -> str:
        """The file that declares the job."""
        shape = {name: getattr(self.shape, name) for name in ("epochs", "rows", "keys", "buckets", "pad")}
        return APP.format(root=str(self.root), shape=shape)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.close()
        self.server.kill()

    def start(
        self,
        name: str,
        standby: str = "hot",
        *,
        stop_at: Step | None = None,
        app: str = "app.py",
        more: Sequence[str] = (),
    ) -> NodeProcess:
        """Start a node that reaches ZooKeeper, and the store if there is one, through cables of its own.
        `more`: options of `holdfast node`.
        """
        cables = Cables(Cable(self.server.port), Cable(self.store.port) if self.store else None)
        arguments = [
            app, "--cluster", CLUSTER, "--zookeeper", cables.zookeeper.hosts, "--checkpoint", self.url,
            "--standby", standby, "--session-timeout", self.session, "--until", "exhausted",
            "--max-rows-per-epoch", str(self.shape.rows), "--parallelism", str(self.shape.shards),
            "--retain", str(self.retain), "--working-dir", str(self.root / "working"),
            "--epoch-interval", self.epoch_interval, "--resign-after", self.resign_after, *more,
        ]  # fmt: skip
        reaching = self.store.environment(cables.storage.port) if self.store and cables.storage else {}
        settings = NodeSettings(stop_at=stop_at, spark=self.spark, environment=reaching)
        self.nodes.append(NodeProcess(name, self.root, arguments, settings, cables))
        return self.nodes[-1]

    @property
    def url(self) -> str:
        """The checkpoint."""
        return f"{self.store.url}/{self.root.name}" if self.store else str(self.place.checkpoint)

    @property
    def storage(self) -> Storage:
        return open_storage(self.url)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; after the deadline, fail with what every node said."""
        try:
            wait_until(condition, what, self.story)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.told()}") from late

    def pair(self, *steps: Step) -> tuple[NodeProcess, NodeProcess]:
        """A leader that commits, and a hot standby. `steps`: where each stops once it is armed."""
        stop_at = [*steps, None, None]
        first = self.start("first", stop_at=stop_at[0])
        self.wait(lambda: self.number() >= 2 or not first.running, "the first node to lead")
        second = self.start("second", stop_at=stop_at[1])
        self.wait_joined(second)
        return first, second

    def wait_joined(self, node: NodeProcess) -> None:
        self.wait(lambda: node.told("is in cluster") or not node.running, f"{node.name} to stand by")
        assert node.running, self.told()

    def standing_by(self, leader: NodeProcess) -> list[NodeProcess]:
        """Who could take over from the leader."""
        others = [node for node in self.nodes if node is not leader]
        return [node for node in others if node.running and node.told("is in cluster")]

    def wait_standing_by(self, node: NodeProcess) -> None:
        """Wait until every run that it has begun has ended."""
        begun = node.times_told("TAKING THE SEAT")
        self.wait(lambda: node.times_told("the run ended") >= begun, f"{node.name} to stand by again")

    def wait_progress(self, commits: int = 2) -> None:
        """Wait for that many commits more than there are now."""
        before = self.number()
        self.wait(lambda: self.number() >= before + commits, f"{commits} commits after {before}")

    def number(self) -> int:
        """The newest commit."""
        found = [names.number_of(entry.name) for entry in self.storage.list(names.COMMITS)]
        return max((number for number in found if number is not None), default=0)

    def term(self) -> int:
        """Of the newest commit."""
        number = self.number()
        return History(self.storage).record(CommitNumber(number)).term if number else 0

    def commits(self) -> list[CommitRecord]:
        history = History(self.storage)
        newest = history.load()
        return [history.record(n) for n in range(max(newest.retained_from, 1), newest.number + 1)]

    def leader(self) -> NodeProcess:
        """Who committed for the first time after the newest takeover."""
        name = self.failovers()[-1].node
        return next(node for node in self.nodes if node.name == name)

    def failovers(self) -> list[FailoverRecord]:
        return read_failovers(self.storage)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line, about this cluster."""
        return self.run(*arguments, "--cluster", CLUSTER, "--zookeeper", self.server.hosts)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            cwd=self.root, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def stop(self, *nodes: NodeProcess) -> None:
        """Have the job stop where it is, and judge what it has done so far."""
        asked = self.run("stop", "--checkpoint", self.url, "--timeout", "3m")
        assert asked.returncode == 0, asked.stderr + self.told()
        self.finish(*nodes)

    def finish(self, *nodes: NodeProcess) -> None:
        """Wait until the nodes have ended, in good order, and judge what they left behind."""
        self.wait(lambda: not any(node.running for node in nodes), "every node to end")
        assert [node.code for node in nodes] == [0] * len(nodes), self.told()
        newest = History(self.storage).load()
        if self.store is not None:
            fetch(self.storage, self.place.checkpoint)
        done = newest.last_epoch if self.shape.epochs == ENDLESS else self.shape.epochs
        finding = check(self.place, replace(self.shape, epochs=done))
        assert finding.verdict is Verdict.TRUE, f"{finding}\n{self.told()}"
        terms = [record.term for record in self.commits()]
        assert terms == sorted(terms), f"an old leader committed after a new one\n{self.told()}"

    def told(self) -> str:
        return "\n".join(node.said() for node in self.nodes)


def fetch(storage: Storage, directory: Path) -> None:
    """Copy a checkpoint to a disk, where the checker reads it."""
    for entry in storage.list(""):
        path = directory / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.get(entry.name))
