"""A real Kafka broker for tests: one process that is its own controller (KRaft), on loopback.

Its jars are fetched by Maven the first time, into a cache outside of the checkout. It keeps what it
acknowledged over a kill of its process, and has the same addresses after a restart.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as admin_module
from confluent_kafka.admin import AdminClient

from tests.services.cable import Cable
from tests.services.certificates import Identity, issued
from tests.services.servers import free_port, program

API: Any = admin_module
"""Its types do not say all that is in it."""
VERSION = "4.1.1"
START_SECONDS = 280.0
USER, PASSWORD = "bob", "the-pass-of-bob-7319"
"""Who may come in by the listeners with SASL; everybody else is ANONYMOUS, who may do anything."""
QUIET = {"log_level": 2}
"""A client says nothing about a broker that a test has killed."""
_PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SSL": "SSL", "SASL_SSL": "SASL_SSL",
    "CABLE": "PLAINTEXT", "CONTROLLER": "PLAINTEXT",
}  # fmt: skip
"""The listeners, and what is spoken at each."""
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast.tests</groupId><artifactId>broker</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""


def cache_directory() -> Path:
    """Where what tests fetch is kept."""
    given = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) / "holdfast-tests"


def fetched(name: str, pom: str) -> Path:
    """A directory with the jars that a Maven project depends on; fetched once, where it is missing."""
    place = cache_directory() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            maven = program("mvn", "maven")
            with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=f"{name}-") as directory:
                (Path(directory) / "pom.xml").write_text(pom)
                command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900)
                assert done.returncode == 0, f"Maven could not fetch {name}: {done.stdout[-2000:]}"
                (Path(directory) / "jars").rename(place)
    return place


class KafkaBroker:
    """One broker; it can be killed and started again on the same directory and ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = {name: free_port() for name in _PROTOCOLS}
        self._cable_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._jars = fetched(f"kafka-{VERSION}", _POM)
        self.admin = self._new_admin()
        self.authority = issued("authority")
        self._write_identity("broker.pem", issued("broker", self.authority))
        (directory / "ca.pem").write_bytes(self.authority.certificate_pem)
        (directory / "server.properties").write_text(self._properties())
        self._java("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c").wait(
            START_SECONDS
        )

    @property
    def servers(self) -> str:
        """Where anyone may come in."""
        return self.listener("PLAINTEXT")

    @property
    def guarded(self) -> str:
        """Where one may come in with a password (SASL/PLAIN)."""
        return self.listener("SASL_PLAINTEXT")

    def listener(self, protocol: str) -> str:
        """Where it listens by a protocol, one of librdkafka's `security.protocol`."""
        return f"127.0.0.1:{self._ports[protocol]}"

    @property
    def ca(self) -> str:
        """The file of the authority that has signed its certificate."""
        return str(self.directory / "ca.pem")

    def cable(self) -> Cable:
        """Another way in, for anyone, that can be cut. One at a time."""
        return Cable(self._ports["CABLE"], self._cable_port)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._java("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "kafka.Kafka")
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            log = self.directory / "log"
            assert self._process.poll() is None, f"the broker ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"the broker does not answer: {log.read_text()[-2000:]}"
            time.sleep(0.1)

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """With SIGKILL."""
        self._end(signal.SIGKILL)

    def make(self, topic: str, partitions: int = 1, **config: str) -> None:
        made = API.NewTopic(
            topic, partitions, 1, config={key.replace("_", "."): config[key] for key in config}
        )
        self.admin.create_topics([made])[topic].result()
        self._await_leaders(topic, partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        while topic in self.admin.list_topics(timeout=30).topics:
            time.sleep(0.05)

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Let rows expire, as retention does."""
        gone = TopicPartition(topic, partition, before)
        next(iter(self.admin.delete_records([gone]).values())).result()

    def deny(self, user: str, topic: str, operation: Any) -> None:
        """Take one right at a topic from a user."""
        may = [
            self._right(user, topic, operation, API.AclPermissionType.DENY),
            self._right(user, topic, API.AclOperation.ALL, API.AclPermissionType.ALLOW),
        ]
        for future in self.admin.create_acls(may).values():
            future.result()

    def allow_again(self, topic: str) -> None:
        """Everyone may do everything at a topic, as with all others."""
        every = API.AclBindingFilter(
            API.ResourceType.TOPIC, topic, API.ResourcePatternType.LITERAL, None, None, API.AclOperation.ANY,
            API.AclPermissionType.ANY,
        )  # fmt: skip
        self.admin.delete_acls([every])[every].result()

    def _right(self, user: str, topic: str, operation: Any, kind: Any) -> Any:
        literal = API.ResourcePatternType.LITERAL
        return API.AclBinding(API.ResourceType.TOPIC, topic, literal, f"User:{user}", "*", operation, kind)

    def cut_short(self, topic: str, rows: int) -> None:
        """Kill it, and start it again without the rows from this offset on of partition 0, as if the disk had
        lost them. Rows that were sent together go together."""
        self.kill()
        partition = self.directory / "data" / f"{topic}-0"
        (log,) = partition.glob("*.log")
        log.write_bytes(_before(log.read_bytes(), rows))
        # They tell of rows that are gone; the broker makes them again.
        for path in [*partition.glob("*.index"), *partition.glob("*.timeindex"),
                     *partition.glob("*.snapshot")]:  # fmt: skip
            path.unlink()
        self.start()
        self._await_leaders(topic)

    def send(self, topic: str, rows: Sequence[Any], partition: int = 0, **more: Any) -> None:
        """Values, or (key, value)."""
        producer = Producer({"bootstrap.servers": self.servers, **QUIET})
        for row in rows:
            key, value = row if isinstance(row, tuple) else (None, row)
            producer.produce(topic, value, key, partition, **more)
        assert producer.flush(60) == 0, "not all rows were taken"

    def committed(self, topic: str, partitions: int = 1) -> list[Any]:
        """All messages that a reader sees that does not look at what was not committed."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers, "group.id": "tests", "isolation.level": "read_committed",
                "enable.partition.eof": True, "enable.auto.commit": False,
                **QUIET,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found, ends = list[Any](), set[int | None]()
        while len(ends) < partitions:
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    found.append(message)
                else:
                    ends.add(message.partition())
        consumer.close()
        return found

    def _await_leaders(self, topic: str, partitions: int = 1) -> None:
        """Until each partition has one that knows that it is: a broker answers before that."""
        wanted = {TopicPartition(topic, number): API.OffsetSpec.latest() for number in range(partitions)}
        end = time.monotonic() + START_SECONDS
        while not self._all_led(wanted):
            assert time.monotonic() < end, f"topic {topic} has no leader"
            time.sleep(0.05)

    def _all_led(self, wanted: dict[TopicPartition, Any]) -> bool:
        """Whether all these partitions have a leader by now."""
        # A client that asked too early keeps the answer, so each look is a client's first.
        admin = self._new_admin()
        return all(_is_known(each) for each in admin.list_offsets(wanted).values())

    def _new_admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, **QUIET})

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._ports["PLAINTEXT"]), timeout=1):
                return bool(self.admin.list_topics(timeout=2).brokers)
        except (OSError, KafkaException):
            return False

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
        # It ends with this process, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", java, "-cp", f"{self._jars}/*", *arguments]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.directory / "server.properties")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True,
            )  # fmt: skip

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write_identity(self, name: str, identity: Identity) -> None:
        (self.directory / name).write_bytes(identity.key_pem + identity.certificate_pem)

    def _properties(self) -> str:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ones = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        guarded = ("sasl_plaintext", "sasl_ssl")
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self.listener('CONTROLLER')}",
            "listeners": ",".join(f"{name}://{self.listener(name)}" for name in _PROTOCOLS),
            "advertised.listeners": ",".join(
                f"{name}://{f'127.0.0.1:{self._cable_port}' if name == 'CABLE' else self.listener(name)}"
                for name in _PROTOCOLS
                if name != "CONTROLLER"
            ),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{name}:{_PROTOCOLS[name]}" for name in _PROTOCOLS),
            "sasl.enabled.mechanisms": "PLAIN",
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";'
                for name in guarded
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.directory / "broker.pem",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.dirs": self.directory / "data",
            **{f"{name}.replication.factor": "1" for name in ones},
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # A topic that is to be compacted is so at once.
            "log.cleaner.backoff.ms": "100",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def _before(log: bytes, offset: int) -> bytes:
    """The batches of a log that begin before an offset."""
    at = 0
    while at < len(log):
        base, size = struct.unpack_from(">qi", log, at)
        if base >= offset:
            break
        at += 12 + size
    return log[:at]


def _is_known(offset: Future[Any]) -> bool:
    """Whether a partition has a leader by now."""
    try:
        return bool(offset.result().offset >= 0)
    except KafkaException:
        return False


@cache
def shared_broker() -> KafkaBroker:
    """One broker for all tests of a process, started when it is first needed; one that hurts it leaves it
    running."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
    broker = KafkaBroker(directory)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(broker.kill)
    broker.start()
    return broker


@pytest.fixture
def kafka() -> KafkaBroker:
    return shared_broker()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:80] + f"-{time.monotonic_ns()}"
