"""A real OpenSearch for tests: one node on loopback. Its jars are fetched by Maven the first time.

It keeps what it acknowledged over a kill of its process, and has the same address after a restart.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.services.kafka_broker import fetched
from tests.services.servers import free_port

VERSION = "2.19.1"
"""The newest line that runs on Java 17."""
START_SECONDS = 240.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast.tests</groupId><artifactId>search</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.opensearch</groupId><artifactId>opensearch</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.opensearch.plugin</groupId><artifactId>transport-netty4-client</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.21.0</version>
    </dependency>
  </dependencies>
</project>
"""
_MAIN = """
import java.util.List;
import java.util.Map;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** As the distribution starts a node, without its scripts: the plugin comes from the class path. */
public class SearchNode extends Node {
    SearchNode(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test"),
              List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] given) throws Exception {
        LogConfigurator.setNodeName("test");
        new SearchNode(Settings.builder()
            .put("path.home", given[0])
            .put("http.host", "127.0.0.1").put("http.port", given[1]).put("http.type", "netty4")
            .put("transport.host", "127.0.0.1").put("transport.port", "0").put("transport.type", "netty4")
            .put("discovery.type", "single-node")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build()).start();
        Thread.currentThread().join();
    }
}
"""


class SearchNode:
    """Use as a context. It can be killed and started again on the same directory and port."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, free_port()
        self._jars = fetched(f"opensearch-{VERSION}", _POM)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        (directory / "SearchNode.java").write_text(_MAIN)

    def __enter__(self) -> SearchNode:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
        # It ends with this process, however that ends.
        command = [
            "setpriv", "--pdeathsig", "KILL", java, "-Xmx300m", "-XX:TieredStopAtLevel=1",
            "-cp", f"{self._jars}/*", str(self._directory / "SearchNode.java"),
            str(self._directory), str(self._port),
        ]  # fmt: skip
        log = self._directory / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"OpenSearch ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"OpenSearch does not answer: {log.read_text()[-2000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """With SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def make(self, index: str) -> None:
        """An index that remembers deletions for longer than any test."""
        settings = {"number_of_shards": 1, "number_of_replicas": 0, "index.gc_deletes": "1d"}
        self._ask("PUT", f"/{index}", {"settings": settings})

    def documents(self, index: str) -> list[dict[str, Any]]:
        """All of them, as a reader finds them."""
        self._ask("POST", f"/{index}/_refresh")
        found = self._ask("GET", f"/{index}/_search?size=10000")
        return [hit["_source"] for hit in found["hits"]["hits"]]

    def _answers(self) -> bool:
        try:
            health = self._ask("GET", "/_cluster/health")
        except OSError:
            return False
        # After a restart its indices are there a little later than itself.
        return health["status"] == "green"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as refused:
            raise AssertionError(f"{method} {path}: {refused.read().decode()}") from refused
