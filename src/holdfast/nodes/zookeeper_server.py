"""A real ZooKeeper server from the jars inside PySpark: one process, on loopback, for development and tests.

Always true: it listens on loopback alone; it answers a write after that is in its log on disk, so it can be
killed and started again on the same directory.
Never here: an ensemble. In production run three or five servers of your own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, RetryableError
from holdfast.runtime.spark_session import require_java

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
HOST = "127.0.0.1"
TICK_MS = 500
"""Sessions are ended on multiples of this."""
READY_SECONDS = 60.0
LOOK_SECONDS = 0.05


class ZooKeeperServer:
    """One server; it can be started and ended again and again."""

    def __init__(
        self, data_dir: str | Path, port: int = 2181, *, settings: Mapping[str, object] | None = None
    ) -> None:
        """`settings`: more lines of zoo.cfg."""
        self.port, self.data_dir = port, Path(data_dir).absolute()
        self._settings, self._clock = settings or {}, SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process, while it is not known to have ended."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.data_dir / "zookeeper.log"

    def start(self, say_to: IO[bytes] | None = None) -> None:
        """Start it and wait until it answers. DefinitionError: the port is taken."""
        require_java()
        self._refuse_taken_port()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [
            f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java",
            "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{_jars()}/*", MAIN, str(self._configured()),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            out = say_to or log
            self._process = subprocess.Popen(
                command, cwd=self.data_dir, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        give_up = self._clock.monotonic() + READY_SECONDS
        while not self.answers():
            if self._process.poll() is not None:
                raise RetryableError(
                    f"ZooKeeper ended at once, with exit code {self._process.returncode}; see {self.log}"
                )
            if self._clock.monotonic() > give_up:
                self.kill()
                raise RetryableError(f"ZooKeeper did not answer in {READY_SECONDS:.0f} s; see {self.log}")
            self._clock.sleep(LOOK_SECONDS)

    def answers(self) -> bool:
        """Whether it serves."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"ruok")
                return connection.recv(16) == b"imok"
        except OSError:
            return False

    def wait(self) -> int:
        """Wait for its end."""
        assert self._process is not None, "it was not started"
        return self._process.wait()

    def ask_to_end(self) -> None:
        """Have it end in good order; returns at once, `wait` waits. For signal handlers."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _configured(self) -> Path:
        file = self.data_dir / "zoo.cfg"
        settings = {
            "tickTime": TICK_MS,
            "minSessionTimeout": 2 * TICK_MS,
            "maxSessionTimeout": 600_000,
            "dataDir": self.data_dir / "data",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr",
            "maxClientCnxns": 0,
            **self._settings,
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file

    def _refuse_taken_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError as cause:
                raise DefinitionError(
                    f"port {self.port} of {HOST} is taken ({cause.strerror}); choose another with --port"
                ) from cause


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _jars() -> Path:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    if not list(jars.glob("zookeeper-3*.jar")):
        raise DefinitionError(f"there is no ZooKeeper in {jars}; install PySpark with its jars")
    return jars
