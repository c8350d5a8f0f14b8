"""The cluster of `holdfast chaos`, as the crash tests start their job on it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from holdfast.chaos import spark_cluster
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
        return ("--master", self.url, *spark_cluster.arguments(conf))

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
            return [process for process in self.processes() if process.state == "T"]

        wait_until(lambda: bool(stopped()), "a Python worker to stop itself")
        return stopped()[0]
