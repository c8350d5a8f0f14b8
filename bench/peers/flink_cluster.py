"""A Flink cluster on this machine: a job manager, and task managers of one slot each.

One task manager for each core, because the Python threads of one share its interpreter's lock. Everything
comes from the apache-flink package.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bench.peers.environments import LeftOut, last_error
from holdfast.chaos.processes import Life
from holdfast.nodes.zookeeper_server import free_port

READY_SECONDS = 180.0
POLL_SECONDS = 0.2


class FlinkCluster:
    """Use as a context: at its end every process that it started is gone."""

    def __init__(self, python: Path, place: Path, task_managers: int) -> None:
        self._python, self._place, self._task_managers = str(python), place, task_managers
        told = [self._python, "-c", "import pyflink; print(pyflink.__path__[0])"]
        self._home = Path(subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip())
        self._rest, self._rpc = free_port(), free_port()
        self._address = f"127.0.0.1:{self._rest}"
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        try:
            lives = [self._start("jobmanager", 0)]
            lives += [self._start("taskmanager", number) for number in range(self._task_managers)]
            self._wait(lives)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def submit(self, job: Path, *arguments: str) -> Life:
        """Run a job on all slots. Its process ends with it."""
        command = [str(self._home / "bin/flink"), "run", "-m", self._address, "-p", str(self._task_managers)]
        command += ["-pyclientexec", self._python, "-pyexec", self._python, "-py", str(job), *arguments]
        return self._life("client", command)

    def _start(self, role: str, number: int) -> Life:
        place = self._place / f"{role}-{number}"
        settings = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": self._rpc,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": self._rest,
            "io.tmp.dirs": place,
        }
        command = [str(self._home / f"bin/{role}.sh"), "start-foreground"]
        for name, value in settings.items():
            command += ["-D", f"{name}={value}"]
        life = self._life(place.name, command)
        self._opened.callback(life.close)
        return life

    def _life(self, name: str, command: list[str]) -> Life:
        place = self._place / name
        place.mkdir(parents=True)
        environment = {
            "FLINK_HOME": self._home,
            "FLINK_LOG_DIR": place,
            "FLINK_PID_DIR": place,
            # Python within Java knows nothing of the environment that Java was started from.
            "PYTHONPATH": self._home.parent,
        }
        told = {variable: str(value) for variable, value in environment.items()}
        return Life(name, command, told, place / "said.log")

    def _wait(self, lives: list[Life]) -> None:
        give_up = time.monotonic() + READY_SECONDS
        while self._free_slots() < self._task_managers:
            ended = next((life for life in lives if not life.running), None)
            if ended is not None:
                raise LeftOut(f"its {ended.name} ended: {last_error(ended.said())}")
            if time.monotonic() > give_up:
                raise LeftOut(f"its cluster was not there after {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _free_slots(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{self._address}/overview", timeout=5) as answer:
                return int(json.load(answer)["slots-available"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0
