"""A real Spark cluster on this machine: a master, and two workers on two loopback addresses.

Two addresses, because Spark never runs a task's speculative twin on the host of the first. Every executor
has one core, so that both are needed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.chaos import nemesis
from tests.chaos.harness import ROOT, wait_until
from tests.chaos.nemesis import Process

HOSTS = ("127.0.0.1", "127.0.0.2")
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """Use as a context: at its end every process that it started, or that came of one, is gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        try:
            self._start("master", "127.0.0.1", "master.Master", "--port", "0")
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
            for number, host in enumerate(HOSTS):
                arguments = ("-c", "1", "-m", "1g", "-d", str(self._directory / f"work-{number}"), self.url)
                self._start(f"worker-{number}", host, "worker.Worker", *arguments)
            for number in range(len(HOSTS)):
                self._said(f"worker-{number}", r"(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            nemesis.end_session(process.pid)
            process.wait()

    def arguments(
        self, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """What to start the job with. `environment` is that of the Python workers."""
        conf = {
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(len(HOSTS)),
            "spark.executor.extraJavaOptions": QUICK_JVM,
            # No epoch begins before both are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            **{f"spark.executorEnv.{name}": value for name, value in (environment or {}).items()},
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            **(settings or {}),
        }
        given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return ("--master", self.url, *given)

    def processes(self) -> list[Process]:
        """Everything that runs in the cluster: executors and their Python workers, too."""
        return [process for started in self._started for process in nemesis.members(started.pid)]

    def executors(self) -> list[Process]:
        """The JVMs of the executors."""
        return [process for process in self.processes() if "CoarseGrainedExecutorBackend" in process.command]

    def executor_in(self, directory: str) -> Process:
        """The executor that works in `directory`: a task's working directory tells its executor."""
        return next(process for process in self.executors() if process.directory == directory)

    def stopped_worker(self) -> Process:
        """Wait for the Python worker that stops itself."""

        def stopped() -> list[Process]:
            return [process for process in self.processes() if process.state == "T"]

        wait_until(lambda: bool(stopped()), "a Python worker to stop itself")
        return stopped()[0]

    def executor_of(self, worker: Process) -> Process:
        """The executor that a Python worker belongs to."""
        return self.executor_in(worker.directory)

    def _start(self, name: str, host: str, role: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._directory / f"local-{name}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", host, "--webui-port", "0", *arguments]
        with self._log(name).open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    command,
                    cwd=self._directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        """Wait until a process has written this; returns the part in parentheses."""
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(pattern, self._log(name).read_text(errors="replace"))
            return bool(found)

        wait_until(said, f"{name} to say {pattern!r}")
        return found[0]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"
