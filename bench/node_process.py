"""`holdfast node` as a process that can be killed, what it said, and a ZooKeeper for such nodes to meet at.

Always true: only processes of sessions that were begun here are ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.chaos.processes import end_session, give_way
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port

CLUSTER = "bench"
DEADLINE_SECONDS = 600.0
LOOK_SECONDS = 0.02
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Message:
    """What a node said, and when: seconds since 1970."""

    at: float
    text: str


class Node:
    """A node of the job in `app.py` of a directory, over the checkpoint `ck` there. Its processes have a
    session of their own. `options`: of `holdfast node`."""

    def __init__(
        self,
        name: str,
        place: Path,
        hosts: str,
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` comes on top of this process's own."""
        self.name, self._errors = name, place / f"{name}.log"
        command = [
            sys.executable, "-m", "holdfast", "node", "app.py", "--name", name, "--json",
            "--cluster", CLUSTER, "--zookeeper", hosts, "--checkpoint", "ck", *options,
        ]  # fmt: skip
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=place, env={**os.environ, **path, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.said: list[Message] = []
        self.epoch_seconds: dict[tuple[str, int], float] = {}
        """Job and epoch -> how long it took."""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def session(self) -> int:
        """What all of its processes have in common."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a word
            event = json.loads(line)
            if event["event"] == "message":
                self.said.append(Message(event["at_ms"] / 1_000, event["text"]))
            elif event["epoch_seconds"]:
                self.epoch_seconds[event["job"], event["epoch"]] = event["epoch_seconds"]

    def must_run(self) -> None:
        """Fail, with what it said, if it has ended."""
        assert self._process.poll() is None, f"{self.name} ended: {self.last_words()}"

    def told_at(self, text: str) -> float | None:
        """When it first said something with this text in it; None: it has not. It must not have ended."""
        self.must_run()
        return next((message.at for message in list(self.said) if text in message.text), None)

    def told(self, text: str) -> bool:
        return self.told_at(text) is not None

    def last_words(self) -> str:
        """For the message of an error."""
        errors = self._errors.read_text(errors="replace").splitlines()
        return "; ".join([*(message.text for message in self.said[-3:]), *errors[-3:]])

    def give_way(self, niceness: int) -> None:
        """What it gets of the machine beside other nodes, relative to this process."""
        give_way(self.session, os.getpriority(os.PRIO_PROCESS, 0) + niceness)

    def kill(self) -> float:
        """SIGKILL of the driver; when that was."""
        at = time.time()
        self._process.kill()
        self._process.wait()
        return at

    def lose(self) -> float:
        """SIGKILL of all its processes, as if its machine were gone; when that began."""
        at = self.kill()
        self.close()
        return at

    def close(self) -> None:
        """End what is left of it: its JVM and its workers."""
        end_session(self.session)
        self._process.wait()


@contextmanager
def zookeeper(place: Path) -> Iterator[str]:
    """A ZooKeeper that keeps its data below `place`, and the hosts to reach it by."""
    server = ZooKeeperServer(place / "zookeeper", free_port())
    server.start()
    try:
        yield server.hosts
    finally:
        server.kill()


def wait_for(condition: Callable[[], bool], what: str, look_seconds: float = LOOK_SECONDS) -> None:
    """Wait until it holds; not without end. `look_seconds`: how often it is asked; that costs, too."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"waited {DEADLINE_SECONDS} s in vain for {what}"
        time.sleep(look_seconds)
