"""The cluster of `holdfast chaos`, as the crash tests start their job on it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from holdfast.chaos import processes, spark_cluster
from holdfast.chaos.processes import Process
from tests.chaos import nemesis
from tests.chaos.harness import ROOT, wait_until


class Cluster(spark_cluster.Cluster):
    """Two workers on two loopback addresses. Use as a context."""

    def arguments(
        self, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """What to start the job with. `environment` is that of the Python workers."""
        conf = {
            **self.conf(str(ROOT)),
            **{f"spark.executorEnv.{name}": value for name, value in (environment or {}).items()},
            **(settings or {}),
        }
        return ("--master", self.url, *arguments(conf))

    def kill_master(self) -> None:
        self._end("master")

    def kill_worker(self, number: int) -> None:
        """With its executors, as if the machine were gone."""
        self._end(f"worker-{number}")

    def executor_in(self, directory: str) -> Process:
        """The executor that works in `directory`: a task's working directory tells its executor."""
        return next(process for process in self.executors() if process.directory == directory)

    def executor_of(self, worker: Process) -> Process:
        """The executor that a Python worker belongs to."""
        return self.executor_in(worker.directory)

    def lose_machine(self, executor: str) -> None:
        """The executor that works in this directory is gone, with all working state on its machine's disk."""
        number = int(Path(executor).relative_to(self._directory).parts[0].removeprefix("work-"))
        worker = self._started[f"worker-{number}"].pid
        # It would start another executor at once, over what is being removed.
        nemesis.pause(worker)
        try:
            killed = self.executor_in(executor)
            for process in [each for each in self.python_workers() if each.directory == executor]:
                nemesis.kill(process.pid)
            nemesis.kill(killed.pid)
            for state in (self._directory / f"local-worker-{number}").rglob("holdfast"):
                shutil.rmtree(state, ignore_errors=True)
        finally:
            nemesis.resume(worker)

    def stopped_worker(self) -> Process:
        """Wait for the Python worker that stops itself."""

        def stopped() -> list[Process]:
            there = [each for started in self._started.values() for each in processes.members(started.pid)]
            return [process for process in there if process.state == "T"]

        wait_until(lambda: bool(stopped()), "a Python worker to stop itself")
        return stopped()[0]


def arguments(conf: Mapping[str, str]) -> list[str]:
    """Settings as options of a command line."""
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
