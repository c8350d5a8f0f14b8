"""The cluster of `holdfast chaos`, as the crash tests start their job on it."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chaos import cluster
from holdfast.chaos.processes import Process
from tests.chaos.harness import ROOT, wait_until


class Cluster(cluster.Cluster):
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
        return ("--master", self.url, *cluster.arguments(conf))

    def stopped_worker(self) -> Process:
        """Wait for the Python worker that stops itself."""

        def stopped() -> list[Process]:
            return [process for process in self.processes() if process.state == "T"]

        wait_until(lambda: bool(stopped()), "a Python worker to stop itself")
        return stopped()[0]
