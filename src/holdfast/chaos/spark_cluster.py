"""A real Spark cluster on this machine: a master, and workers on loopback addresses of their own.

Several addresses, because Spark never runs a task's speculative twin on the host of the first. Every executor
has one core, so that all of them are needed. Everything comes from the pyspark package.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast.chaos import processes
from holdfast.chaos.processes import QUICK_JVM, Process
from holdfast.errors import DefinitionError, RetryableError

HOST = "127.0.0.1"
READY_SECONDS = 240.0
POLL_SECONDS = 0.1


class Cluster:
    """Use as a context: at its end every process that it started, or that came of one, is gone."""

    def __init__(self, directory: Path, workers: int = 2, *, applications: int = 1) -> None:
        """`applications`: how many can have an executor on each worker at the same time."""
        self._directory = directory
        self._hosts = tuple(f"127.0.0.{number + 1}" for number in range(workers))
        self._applications = applications
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self.start_master()
            for number in range(len(self._hosts)):
                self.start_worker(number)
            for number in range(len(self._hosts)):
                self.wait_registered(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed([*self._started]):
            self._end(name)

    def start_master(self) -> None:
        """Start it, at its old address if it had one. What it knew of workers and jobs it finds on disk."""
        recovery = (
            f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._directory}"
        )
        port = self.url.rpartition(":")[2] or "0"
        self._start("master", HOST, "master.Master", "--port", port, options=f"{recovery}/recovery")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")

    def start_worker(self, number: int) -> None:
        room = ("-c", str(self._applications), "-m", f"{self._applications}g")
        arguments = (*room, "-d", str(self._directory / f"work-{number}"), self.url)
        self._start(f"worker-{number}", self._hosts[number], "worker.Worker", *arguments)

    def wait_registered(self, number: int) -> None:
        """Wait until the master knows a worker."""
        self._said(f"worker-{number}", r"(Successfully registered with master)")

    def conf(self, python_path: str) -> dict[str, str]:
        """The settings of a session that is to use all of it. `python_path`: that of the Python workers."""
        return {
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(len(self._hosts)),
            "spark.executor.extraJavaOptions": QUICK_JVM,
            # No epoch begins before all are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.executorEnv.PYTHONPATH": python_path,
        }

    def executors(self) -> list[Process]:
        """The JVMs of the executors."""
        return [found for started in self._started.values() for found in processes.executors(started.pid)]

    def python_workers(self) -> list[Process]:
        return [
            found for started in self._started.values() for found in processes.python_workers(started.pid)
        ]

    def _end(self, name: str) -> None:
        process = self._started.pop(name)
        processes.end_session(process.pid)
        process.wait()

    def _start(self, name: str, host: str, role: str, *arguments: str, options: str = "") -> None:
        home = spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._directory / f"local-{name}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} {options}".strip(),
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", host, "--webui-port", "0", *arguments]
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                command,
                cwd=self._directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _said(self, name: str, pattern: str) -> str:
        """Wait until a process has written this; returns the part in parentheses."""
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(pattern, self._log(name).read_text(errors="replace"))
            return bool(found)

        _wait(said, f"{name} to say {pattern!r}")
        return found[0]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def spark_home() -> Path:
    """Where the pyspark package is: it brings a whole Spark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise DefinitionError("there is no pyspark package to start a cluster from; pip install pyspark")
    return Path(found.origin).parent


def _wait(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise RetryableError(
                f"waited {READY_SECONDS:.0f} s in vain for {what}; look at the cluster's logs"
            )
        time.sleep(POLL_SECONDS)
