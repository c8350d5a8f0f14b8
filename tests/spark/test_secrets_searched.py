"""A job with a password for every server that it speaks to; then everything is searched that it wrote, said,
answered and showed of itself to the system."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import psycopg
import pytest
import redis

from holdfast.chaos.processes import QUICK_JVM, Life, members
from holdfast.nodes.zookeeper_server import free_port
from holdfast.storage.urls import open_storage
from tests.services import kafka_broker
from tests.services.kafka_broker import KafkaBroker, kafka, topic
from tests.services.object_store import ObjectStore
from tests.services.servers import PostgresDirectory, rabbitmq_server, redis_server

__all__ = ["kafka", "topic"]
SECONDS = 280.0
FROM_FILES = {
    "postgres": "of-the-table-60117",
    "rabbit": "of-the-queue-60118",
    "kafka": kafka_broker.PASSWORD,
}
FROM_THE_ENVIRONMENT = {
    "REDIS_OF_THE_TEST": "of-the-stream-60119",
    "AWS_SECRET_ACCESS_KEY": "of-the-bucket-60120",
}
"""What the user has set there every process inherits that the run starts: that is the user's own choice."""
WRONG = "of-nobody-60121"
ANSWERS = ("status", "metrics", "checkpoints", "failures", "health", "ready")

APP = """
import json
from pathlib import Path
import holdfast as hf

PLACES = json.loads(Path(__file__).with_name("places.json").read_text())

def secret(name):
    return hf.Secret.file(PLACES["secrets"] + "/" + name)

job = hf.Job("secrets")
table = {"dsn": PLACES["postgres"], "password": secret("postgres"), "timeout_seconds": 30}
job.source(
    hf.TableSource("orders", by="txid", schema="name string", **table), uid="table"
).sink(hf.PostgresSink("copied", **table), uid="table-out")

stream = {"password": hf.Secret.env("REDIS_OF_THE_TEST"), "timeout_seconds": 30}
job.source(
    hf.RedisStreamSource(PLACES["redis"], "orders", schema="name string", **stream), uid="stream"
).sink(hf.RedisSink(PLACES["redis"], "copied", form="stream", **stream), uid="stream-out")

queue = {"username": "guest", "password": secret("rabbit"), "timeout_seconds": 30}
job.source(
    hf.RabbitSource(PLACES["rabbit"], "orders", schema="name string", **queue), uid="queue"
).sink(hf.RabbitSink(PLACES["rabbit"], "copied", **queue), uid="queue-out")

sasl = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": PLACES["user"],
    "sasl.password": secret("kafka"),
}
job.source(
    hf.KafkaSource(PLACES["kafka"], PLACES["topic"], format="json", schema="name string", options=sasl),
    uid="topic",
).transform(lambda frame: frame.select("value.name")).sink(
    hf.FileSink(PLACES["bucket"] + "/copied", format="json"), uid="topic-out"
)
"""

SPARK = """spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir file:{place}/events
spark.local.dir {place}/local
spark.broadcast.compress false
spark.shuffle.compress false
spark.rdd.compress false
"""
"""Spark keeps and says what it does, all of it as plain bytes."""
LOG = """rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n
"""


@dataclass(frozen=True)
class Servers:
    """Each with a password, an order in it, and what tells whether the job has copied that."""

    places: dict[str, str]
    copied: Callable[[], list[bool]]
    environment: dict[str, str]


@pytest.fixture
def servers(kafka: KafkaBroker, topic: str) -> Iterator[Servers]:
    in_stream = FROM_THE_ENVIRONMENT["REDIS_OF_THE_TEST"]
    with contextlib.ExitStack() as running:
        directory = running.enter_context(PostgresDirectory(guests=("keeper",)))
        postgres = running.enter_context(directory.running())
        stream = running.enter_context(redis_server("--requirepass", in_stream))
        queue = running.enter_context(rabbitmq_server(password=FROM_FILES["rabbit"]))
        bucket = running.enter_context(ObjectStore())
        db = running.enter_context(psycopg.connect(postgres.url, autocommit=True))
        db.execute(f"CREATE ROLE keeper LOGIN PASSWORD '{FROM_FILES['postgres']}'")
        db.execute("GRANT CREATE ON SCHEMA public TO keeper")
        db.execute("CREATE TABLE orders (txid xid8 NOT NULL DEFAULT pg_current_xact_id(), name text)")
        db.execute("CREATE INDEX ON orders (txid)")
        db.execute("CREATE TABLE copied (name text)")
        db.execute("GRANT SELECT ON orders TO keeper")
        db.execute("GRANT ALL ON copied TO keeper")
        db.execute("INSERT INTO orders (name) VALUES ('anna')")
        client = running.enter_context(redis.Redis.from_url(stream.url, password=in_stream))
        client.xadd("orders", {"name": "ben"})
        login = pika.URLParameters(queue.url)
        login.credentials = pika.PlainCredentials("guest", FROM_FILES["rabbit"])
        channel = running.enter_context(pika.BlockingConnection(login)).channel()
        for name in ("orders", "copied"):
            channel.queue_declare(name, durable=True)
        channel.basic_publish("", "orders", b'{"name": "cleo"}')
        kafka.make(topic)
        kafka.send(topic, [b'{"name": "dora"}'])
        environment = {**bucket.environment(bucket.port), **FROM_THE_ENVIRONMENT}

        def copied() -> list[bool]:
            rows = db.execute("SELECT count(*) FROM copied").fetchone()
            waiting = channel.queue_declare("copied", passive=True).method.message_count
            with pytest.MonkeyPatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                files = [entry.name for entry in open_storage(f"{bucket.url}/copied").list("")]
            shown = any(name.endswith(".json") for name in files)
            return [bool(rows and rows[0]), client.xlen("copied") > 0, waiting > 0, shown]

        yield Servers(
            {
                "postgres": f"postgresql://keeper@127.0.0.1:{directory.port}/postgres",
                "redis": stream.url, "rabbit": queue.url, "bucket": bucket.url, "kafka": kafka.guarded,
                "topic": topic, "user": kafka_broker.USER,
            },
            copied,
            environment,
        )  # fmt: skip


class Place:
    """A directory for everything: the app, where its secrets are, and whatever a run writes."""

    def __init__(self, path: Path, servers: Servers) -> None:
        self.path, self._servers = path, servers
        self.port = free_port()
        for name in ("secrets", "conf", "events", "local", "tmp", "said"):
            (path / name).mkdir()
        for name, value in FROM_FILES.items():
            (path / "secrets" / name).write_text(value)
        (path / "app.py").write_text(APP)
        places = {**servers.places, "secrets": str(path / "secrets")}
        (path / "places.json").write_text(json.dumps(places))
        (path / "conf" / "spark-defaults.conf").write_text(SPARK.format(place=path))
        (path / "conf" / "log4j2.properties").write_text(LOG)

    def call(self, name: str, *arguments: str) -> Life:
        """A command, whose words are kept in said/NAME."""
        environment = {
            **self._servers.environment,
            "SPARK_CONF_DIR": str(self.path / "conf"),
            "TMPDIR": str(self.path / "tmp"),
            "JAVA_TOOL_OPTIONS": f"{QUICK_JVM} -Djava.io.tmpdir={self.path / 'tmp'}",
        }
        command = [sys.executable, "-m", "holdfast", *arguments]
        return Life(name, command, environment, self.path / "said" / name, self.path)

    def run(self, name: str) -> Life:
        return self.call(
            name, "run", "app.py", "--checkpoint", "ck", "--guarantee", "at-least-once", "--json",
            "--verbose", "--master", "local[2]", "--working-dir", "working",
            "--http", f"127.0.0.1:{self.port}",
        )  # fmt: skip

    def answers(self) -> dict[str, bytes]:
        found = {}
        for path in ANSWERS:
            url = f"http://127.0.0.1:{self.port}/{path}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                found[url] = answer.read()
        return found

    def written(self) -> Iterator[tuple[str, bytes]]:
        """All files but those in which the user keeps secrets."""
        for path in self.path.rglob("*"):
            if path.parent != self.path / "secrets":
                # What Spark keeps for a moment may go meanwhile.
                with contextlib.suppress(OSError):
                    if path.is_file():
                        yield str(path.relative_to(self.path)), path.read_bytes()


def of_processes(session: int) -> Iterator[tuple[str, bytes]]:
    """What anybody sees of the processes of a run, and their environments without what the user has set."""
    own = tuple(f"{name}=".encode() for name in FROM_THE_ENVIRONMENT)
    for process in members(session):
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{process.pid}")
            yield f"command of {process.pid}", (folder / "cmdline").read_bytes()
            variables = (folder / "environ").read_bytes().split(b"\0")
            yield f"environment of {process.pid}", b"\0".join(v for v in variables if not v.startswith(own))


def leaks(*found: Iterator[tuple[str, bytes]] | dict[str, bytes]) -> list[str]:
    secrets = [value.encode() for value in (*FROM_FILES.values(), *FROM_THE_ENVIRONMENT.values(), WRONG)]
    pairs = [pair for each in found for pair in (each.items() if isinstance(each, dict) else each)]
    assert pairs, "there is nothing to search"
    return [name for name, data in pairs if any(value in data for value in secrets)]


def wait_until(condition: Callable[[], Any], life: Life) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert life.running, life.said()[-3000:]
        assert time.monotonic() < end, life.said()[-3000:]
        time.sleep(0.2)


def ended(life: Life) -> int:
    end = time.monotonic() + SECONDS
    while life.running:
        assert time.monotonic() < end, life.said()[-3000:]
        time.sleep(0.1)
    code = life.exit_code
    assert code is not None
    return code


@pytest.fixture
def place(servers: Servers) -> Iterator[Place]:
    # With a short name: Spark makes sockets in its temporary directory, whose paths have an end.
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as directory:
        yield Place(Path(directory), servers)


def test_no_password_is_in_anything_that_a_run_leaves_says_or_shows(servers: Servers, place: Place) -> None:
    life = place.run("run")
    try:
        wait_until(lambda: all(servers.copied()), life)
        assert leaks(of_processes(life.pid), place.answers(), place.written()) == []
        assert len(list(of_processes(life.pid))) > 4, "Spark's processes are among them"
        life.stop()
        assert ended(life) == 0, life.said()[-3000:]
    finally:
        life.close()
    for name, *arguments in (
        ("plan", "plan", "app.py", "--svg", "plan.svg"),
        ("plan-json", "plan", "app.py", "--json"),
        ("guarantees", "guarantees", "app.py"),
        ("status", "status", "--checkpoint", "ck", "--json"),
        ("sinks", "sinks", "list", "--checkpoint", "ck"),
    ):
        command = place.call(name, *arguments)
        assert ended(command) == 0, command.said()
    written = dict(place.written())
    for part in ("ck/commits/", "events/", "said/run", "plan.svg", "said/status"):
        assert any(name.startswith(part) for name in written), f"nothing of {part} was searched"
    assert leaks(written) == []

    for name in FROM_FILES:
        (place.path / "secrets" / name).write_text(WRONG)
        refused = place.run(f"wrong-{name}")
        try:
            assert ended(refused) == 2, refused.said()[-3000:]
        finally:
            refused.close()
        (place.path / "secrets" / name).write_text(FROM_FILES[name])
    assert leaks(place.written()) == []
