"""Real servers for tests: installed where they are missing, started on loopback, gone afterwards."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

START_SECONDS = 240.0
USER = "nobody"
"""Who a server is run by that must not be root: there is one everywhere."""


RABBIT_SETTINGS = """
max_message_size = 1000000
default_user = guest
default_permissions.configure = .*
default_permissions.read = ^(?!sealed)
default_permissions.write = ^(?!sealed)
"""
"""It takes no large messages, and nobody may read or write what is called `sealed`."""


@dataclass
class Server:
    """A running server: where it is, and its process, to be stopped and killed by tests."""

    url: str
    process: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        """To the server and everything it started."""
        for pid in _tree(self.process.pid):
            # What it had started for a moment may be gone by now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def program(name: str, package: str, *places: str) -> str:
    """The path of a program; its Debian package is installed if it is missing."""
    if (found := _find(name, places)) is None:
        _install(package)
        found = _find(name, places)
    assert found is not None, f"{package} is installed and there is no {name}"
    return found


def _install(package: str) -> None:
    """As root, or by a sudo that asks nothing."""
    become = [] if os.getuid() == 0 else ["sudo", "-n"]
    quietly = [*become, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*quietly, "update"], check=False, timeout=300)
    done = subprocess.run([*quietly, "install", "-y", package], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{package} is missing: apt-get install {package}\n{done.stderr[-2000:]}"


def _find(name: str, places: tuple[str, ...]) -> str | None:
    inside = [path for place in places for path in sorted(glob.glob(f"{place}/{name}"))]
    return inside[-1] if inside else shutil.which(name)


_given_ports = set[int]()


def free_port() -> int:
    """One that is free at the moment, and was not asked for before: a server with several needs others."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given_ports:
            _given_ports.add(port)
            return port


@contextmanager
def redis_server(*settings: str, directory: Path | None = None, port: int | None = None) -> Iterator[Server]:
    """A Redis that syncs every write. `settings`: more of them, as its command takes them. With a directory
    it finds there what it left."""
    path, port = program("redis-server", "redis-server"), port or free_port()
    with contextlib.ExitStack() as made:
        place = directory or Path(made.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-redis-")))
        command = [
            path, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", *settings,
        ]  # fmt: skip
        with _running(command, place / "log", lambda: _answers(port)) as process:
            yield Server(f"redis://127.0.0.1:{port}/0", process)


@contextmanager
def postgres_server() -> Iterator[Server]:
    """A Postgres with one database, which trusts everyone on this machine."""
    with PostgresDirectory() as directory, directory.running() as server:
        yield server


class PostgresDirectory:
    """The files of a Postgres, whose server can be started, stopped, killed and put back in time. A context.

    `guests` are users who need a password, `settings` are those of the server.
    """

    def __init__(self, guests: Sequence[str] = (), **settings: str) -> None:
        place = "/usr/lib/postgresql/*/bin"
        self._initdb = program("initdb", "postgresql", place)
        self._postgres = program("postgres", "postgresql", place)
        self._guests, self._settings = guests, settings
        self._as_user = _not_as_root()
        self.port = free_port()
        self.url = f"postgresql://holdfast@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        self._made = tempfile.TemporaryDirectory(prefix="holdfast-postgres-")
        self.path = Path(self._made.name)
        if self._as_user:
            shutil.chown(self.path, USER)
        self._by_user(self._initdb, "-D", f"{self.path}/data", "-A", "trust", "-U", "holdfast", "--no-sync")
        asked = "".join(f"host all {guest} 127.0.0.1/32 scram-sha-256\n" for guest in self._guests)
        rules = self.path / "data" / "pg_hba.conf"
        rules.write_text(asked + rules.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self._made.cleanup()

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Ends it without waiting for its clients."""
        given = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [
            *self._as_user, self._postgres, "-D", f"{self.path}/data", "-p", str(self.port),
            "-k", str(self.path), "-h", "127.0.0.1", *given,
        ]  # fmt: skip
        log = self.path / "log"
        with _running(command, log, lambda: "ready to accept" in log.read_text()) as process:
            yield Server(self.url, process)

    def save_copy(self) -> None:
        """Keep its files as they are; it must not run."""
        self._by_user("cp", "-a", f"{self.path}/data", f"{self.path}/copy")

    def go_back(self) -> None:
        """Be as it was when the copy was made; it must not run."""
        shutil.rmtree(self.path / "data")
        self._by_user("mv", f"{self.path}/copy", f"{self.path}/data")

    def _by_user(self, *command: str) -> None:
        subprocess.run([*self._as_user, *command], check=True, capture_output=True, cwd=self.path)


@contextmanager
def pooler(database: Server, mode: str, size: int = 4) -> Iterator[str]:
    """Where a pgbouncer is in front of a Postgres, by which everybody comes in as its owner. `mode`: what it
    pools (session, transaction, statement); `size`: how many sessions it has at the server."""
    path, port = program("pgbouncer", "pgbouncer", "/usr/sbin"), free_port()
    there = urlsplit(database.url)
    with tempfile.TemporaryDirectory(prefix="holdfast-pooler-") as made:
        settings, log = Path(made) / "settings", Path(made) / "log"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={there.port} user={there.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\ndefault_pool_size = {size}\n"
        )
        Path(made).chmod(0o755)
        with _running([*_not_as_root(), path, str(settings)], log, lambda: _listens(port)) as process:
            try:
                yield database.url.replace(f":{there.port}/", f":{port}/")
            finally:
                # It would wait for its clients.
                process.kill()


@contextmanager
def rabbitmq_server(
    directory: Path | None = None, port: int | None = None, password: str = "guest"
) -> Iterator[Server]:
    """A RabbitMQ node of its own, whose only user is guest. With a directory it finds there what it left."""
    path = program("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin")
    with contextlib.ExitStack() as made:
        place = directory or Path(made.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-rabbit-")))
        port = port or free_port()
        epmd = free_port()
        (place / "home").mkdir(exist_ok=True)
        (place / "plugins").write_text("[].")
        (place / "rabbitmq.conf").write_text(f"{RABBIT_SETTINGS}default_pass = {password}\n")
        settings = {
            "RABBITMQ_NODENAME": f"holdfast{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
            "RABBITMQ_LOG_BASE": str(place / "logs"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(place / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "HOME": str(place / "home"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd),
        }
        made.callback(_end_names, epmd)
        log = place / "log"
        command = ["env", *(f"{name}={value}" for name, value in settings.items()), path]
        with _running(command, log, lambda: _speaks_amqp(port)) as process:
            made.callback(_end_group, process)
            try:
                yield Server(f"amqp://127.0.0.1:{port}/%2F", process)
            finally:
                # The script that was started waits for the node, which takes no interrupt.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_names(epmd: int) -> None:
    """The name server that a node has started for itself."""
    subprocess.run(["epmd", "-port", str(epmd), "-kill"], capture_output=True, timeout=30)


def _speaks_amqp(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(connection.recv(1))
    except OSError:
        return False


@contextmanager
def _running(command: list[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, start_new_session=True)
    try:
        end = time.monotonic() + START_SECONDS
        while not ready():
            assert process.poll() is None, f"{command[0]} ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"{command[0]} does not answer: {log.read_text()[-2000:]}"
            time.sleep(0.05)
        yield process
    finally:
        # For Postgres: without waiting for its clients.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _not_as_root() -> list[str]:
    """Before a command that refuses to be run by root."""
    return ["setpriv", f"--reuid={USER}", "--clear-groups"] if os.getuid() == 0 else []


def _tree(pid: int) -> list[int]:
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
