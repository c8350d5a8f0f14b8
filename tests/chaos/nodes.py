"""Real nodes of a real cluster, as processes that can be killed, stopped and resumed.

Always true: whatever was started is gone when the context ends, also when the test fails; only processes that
it started are ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.chaos.history import History as Story
from holdfast.checkpoint.failovers import read_failovers
from holdfast.checkpoint.history import History
from holdfast.checkpoint.records import CommitRecord, FailoverRecord
from holdfast.engine.zookeeper_server import ZooKeeperServer, free_port
from holdfast.storage.places import open_storage
from tests.chaos import nemesis
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Verdict, check
from tests.chaos.harness import ROOT, wait_until

CLUSTER = "chaos"
SESSION = "4s"
APP = """
from pathlib import Path
from tests.chaos.apps import Place, Shape, declare
job = declare(Place(Path({root!r})), Shape(**{shape!r}))
"""
SPARK = " ".join(
    f"--conf {setting}"
    for setting in (
        "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.driver.memory=700m",
        "spark.ui.enabled=false",
    )
)  # fmt: skip


class NodeProcess:
    """`holdfast node`, in a session of its own."""

    def __init__(self, name: str, root: Path, arguments: Sequence[str]) -> None:
        self.name, self._log = name, root / f"{name}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] {SPARK} pyspark-shell",
        }
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
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def said(self) -> str:
        """Its messages, and whatever else it wrote, line by line."""
        lines = []
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                lines.append(line)
                continue
            if event.get("event") == "message":
                lines.append(f"{event['at_ms'] % 10_000_000 / 1000:.2f} {event['text']}")
        return "\n".join(f"{self.name}: {line}" for line in lines)

    def told(self, *parts: str) -> bool:
        return any(all(part in line for part in parts) for line in self.said().splitlines())

    def kill(self) -> None:
        """SIGKILL of the driver; its JVM and its workers are left to notice by themselves."""
        self._process.kill()
        self._process.wait()

    def pause_all(self) -> None:
        """Stop it with its JVM and its workers: a machine that is frozen."""
        for process in nemesis.members(self.pid):
            nemesis.pause(process.pid)

    def resume_all(self) -> None:
        for process in nemesis.members(self.pid):
            nemesis.resume(process.pid)

    def close(self) -> None:
        nemesis.end_session(self.pid)
        self._process.wait()


@dataclass
class Cluster:
    """One job, its nodes and their ZooKeeper. Use as a context."""

    root: Path
    shape: Shape = field(default_factory=lambda: Shape(epochs=120))
    epoch_interval: str = "300ms"
    nodes: list[NodeProcess] = field(default_factory=list)
    story: Story = field(default_factory=Story)

    def __enter__(self) -> Self:
        self.place = Place(self.root)
        self.server = ZooKeeperServer(self.root / "zookeeper", free_port())
        self.server.start()
        shape = {name: getattr(self.shape, name) for name in ("epochs", "rows", "keys", "buckets", "pad")}
        (self.root / "app.py").write_text(APP.format(root=str(self.root), shape=shape))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.close()
        self.server.kill()

    def start(self, name: str, standby: str = "hot") -> NodeProcess:
        arguments = [
            "app.py", "--cluster", CLUSTER, "--zookeeper", self.server.hosts, "--checkpoint", "ck",
            "--standby", standby, "--session-timeout", SESSION, "--until", "exhausted",
            "--max-rows-per-epoch", str(self.shape.rows), "--parallelism", str(self.shape.shards),
            "--retain", "100", "--working-dir", str(self.root / "working"),
            "--epoch-interval", self.epoch_interval,
        ]  # fmt: skip
        self.nodes.append(NodeProcess(name, self.root, arguments))
        return self.nodes[-1]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; after the deadline, fail with what every node said."""
        try:
            wait_until(condition, what, self.story)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.told()}") from late

    def pair(self) -> tuple[NodeProcess, NodeProcess]:
        """A leader that commits, and a standby that follows it."""
        first = self.start("first")
        self.wait(lambda: self.number() >= 2 or not first.running, "the first node to lead")
        second = self.start("second")
        self.wait(lambda: second.told("HOT: ") or not second.running, "the second node to follow")
        return first, second

    def number(self) -> int:
        """The newest commit."""
        return History(open_storage(str(self.place.checkpoint))).load().number

    def commits(self) -> list[CommitRecord]:
        history = History(open_storage(str(self.place.checkpoint)))
        newest = history.load()
        return [history.record(n) for n in range(max(newest.retained_from, 1), newest.number + 1)]

    def leader(self) -> str:
        """Who committed for the first time after the newest takeover."""
        return self.failovers()[-1].node

    def failovers(self) -> list[FailoverRecord]:
        return read_failovers(open_storage(str(self.place.checkpoint)))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line, about this cluster."""
        about = ["--cluster", CLUSTER, "--zookeeper", self.server.hosts]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments, *about],
            cwd=self.root, env=environment, capture_output=True, text=True, timeout=180,
        )  # fmt: skip

    def finish(self, *nodes: NodeProcess) -> None:
        """Wait until the nodes have ended, in good order, and judge what they left behind."""
        self.wait(lambda: not any(node.running for node in nodes), "every node to end")
        assert [node.code for node in nodes] == [0] * len(nodes), self.told()
        finding = check(self.place, self.shape)
        assert finding.verdict is Verdict.TRUE, f"{finding}\n{self.told()}"
        terms = [record.term for record in self.commits()]
        assert terms == sorted(terms), f"an old leader committed after a new one\n{self.told()}"

    def told(self) -> str:
        return "\n".join(node.said() for node in self.nodes)
