"""The door to confluent-kafka: how a cluster is reached, and what the driver asks it.

Secrets in the options stay references until a client is made. What the library says is told in our errors:
Unavailable where the cluster is not there now, Refused where it does not want us.
Never here: rows (see reading), or what a position means (see source).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from holdfast.connectors.kafka.positions import Partition, Place
from holdfast.errors import DefinitionError, HoldfastError, MachineError, Unavailable
from holdfast.secret import Secret

REQUEST_SECONDS = 10.0
POLL_SECONDS = 0.05
NO_ROWS = -1
"""What a cluster answers for a time after which a partition has no rows."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a cluster that gives topics no ids (before Kafka 2.8) says is one."""
QUICK = {"reconnect.backoff.max.ms": 1_000}
"""A broker that is back is noticed within a second; options may say otherwise."""
OWN_OPTIONS = {
    "acks", "auto.offset.reset", "bootstrap.servers", "delivery.report.only.error", "delivery.timeout.ms",
    "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof",
    "group.id", "isolation.level", "message.timeout.ms", "request.required.acks", "transaction.timeout.ms",
    "transactional.id",
}  # fmt: skip
"""What Holdfast itself has to say."""
SECRET_OPTIONS = {
    "sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password", "ssl.key.pem",
    "ssl.keystore.password", "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
}  # fmt: skip


_ENDED = "mechanism handshake failed: Local: "
"""In what the library calls a failure to authenticate: the connection ended in the middle of it, as it does
where a broker is started again."""


class Refused(DefinitionError):
    """The cluster is there and does not let us in."""


@dataclass(frozen=True)
class Connection:
    """How a cluster is reached. `options` are those of librdkafka; plain data, sent to tasks."""

    servers: str
    options: Mapping[str, str | int | float | bool | Secret] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers.strip():
            raise DefinitionError('Kafka has no servers; give them as "host:9092,other:9092"')
        for name, value in self.options.items():
            if name in OWN_OPTIONS:
                raise DefinitionError(f"options={{{name!r}: ...}} is set by Holdfast itself; leave it out")
            if name in SECRET_OPTIONS and not isinstance(value, Secret):
                raise DefinitionError(
                    f"options={{{name!r}: ...}} is a secret written down in the job; "
                    'give hf.Secret.env("NAME") or hf.Secret.file("/path") instead'
                )

    def settings(self, **own: Any) -> dict[str, Any]:
        """What a client is made with, secrets resolved: for its constructor only. Log lines of the library
        go nowhere: what matters in them comes as errors, too."""
        given = {
            name: value.resolve() if isinstance(value, Secret) else value
            for name, value in self.options.items()
        }
        mine = {name.replace("_", "."): value for name, value in own.items()}
        return {**QUICK, "log_level": 2, **given, "bootstrap.servers": self.servers, **mine}

    def client(self, kind: Any, troubles: Troubles, **own: Any) -> Any:
        """A new client of the library. DefinitionError: it does not take the options."""
        settings: dict[str, Any] = {**self.settings(**own), "error_cb": troubles}
        try:
            return kind(settings)
        except confluent().KafkaException as error:
            said = self.without_secrets(error.args[0].str())
            raise DefinitionError(
                f"the client of Kafka at {self.servers} cannot be made with options={{...}}: {said}; correct "
                "the option, or the file that it names"
            ) from error

    def without_secrets(self, text: str) -> str:
        for value in self.options.values():
            text = value.hide_in(text) if isinstance(value, Secret) else text
        return text


def confluent() -> Any:
    """The library, or the error that says how to install it."""
    try:
        import confluent_kafka
    except ImportError as cause:
        raise MachineError(
            "Kafka needs the package confluent-kafka; install it: pip install 'holdfast[kafka]'"
        ) from cause
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; `readable`: as far as the cluster tells what this user may do."""

    id: str
    partitions: int
    readable: bool = True


def is_another_topic(id: str, ours: str) -> bool:
    """Whether these are ids of two topics. One that is not known, or is none, is of any."""
    return id != ours and {id, ours}.isdisjoint({"", NO_ID})


class Troubles:
    """What a client meets on its way, by the callbacks of its library: requests themselves only time out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._refused = self._newest = ""

    def __call__(self, error: Any) -> None:
        kafka = confluent()
        refusals = (
            kafka.KafkaError._AUTHENTICATION, kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
            kafka.KafkaError._SSL,
        )  # fmt: skip
        with self._lock:
            if error.code() in refusals and _ENDED not in error.str():
                self._refused = error.str()
            elif error.code() != kafka.KafkaError._ALL_BROKERS_DOWN:
                self._newest = error.str()

    def clear(self) -> None:
        with self._lock:
            self._refused = self._newest = ""

    @property
    def refusal(self) -> Refused | None:
        """What we were told at the door, if it was shut."""
        if not self._refused:
            return None
        said = self._connection.without_secrets(self._refused)
        return Refused(
            f"Kafka at {self._connection.servers} refuses us, or we it ({said}); check security.protocol, "
            "the mechanism, the user, the password and the certificates in options"
        )

    def raise_refusal(self) -> None:
        if (refusal := self.refusal) is not None:
            raise refusal

    def unavailable(self, what: str, error: object = "") -> Unavailable:
        why = self._connection.without_secrets(self._newest or str(error) or "no answer")
        return Unavailable(f"Kafka at {self._connection.servers} is not there for {what}: {why}")


class Cluster:
    """A cluster as the driver asks it. Every call takes at most `seconds`.

    Its client is kept as long as it is answered. One that failed is made anew: it may hold on to what it knew
    last, such as that a topic that was just made has no leader.
    """

    def __init__(self, connection: Connection, seconds: float | None = None) -> None:
        """`seconds`: how long a request may take; by default REQUEST_SECONDS."""
        self._connection, self._seconds = connection, seconds or REQUEST_SECONDS
        self.troubles = Troubles(connection)
        self._client: Any = None

    def topic_names(self) -> list[str]:
        """All topics that are not Kafka's own."""
        kafka = confluent()
        self.troubles.clear()
        try:
            found = self._admin().list_topics(timeout=self._seconds).topics
        except kafka.KafkaException as error:
            self._poll()
            self._client = None
            self.troubles.raise_refusal()
            raise self.troubles.unavailable("the list of its topics", error) from error
        return sorted(name for name in found if not name.startswith("__"))

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """The topics of these names that there are."""
        kafka = confluent()
        if not names:
            return {}
        missing = kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
        found = {}
        asked = self._ask(
            lambda admin: admin.describe_topics(
                kafka.TopicCollection(list(names)),
                include_authorized_operations=True,
                request_timeout=self._seconds,
            )
        )
        for name, future in asked.items():
            told = self._answer(future, f"topic {name!r}", missing)
            if told is not None:
                # A cluster without rights, or one that tells none, names none.
                may = [each.name for each in told.authorized_operations or ()]
                found[name] = Topic(str(told.topic_id), len(told.partitions), "READ" in may or not may)
        return found

    def compacted(self, names: Iterable[str]) -> set[str]:
        """Those of these topics that are compacted, as far as this user may know."""
        confluent()
        from confluent_kafka import admin

        kind: Any = vars(admin)["ConfigResource"]
        wanted = [kind(kind.Type.TOPIC, name) for name in names]
        if not wanted:
            return set()
        asked = self._ask(lambda admin: admin.describe_configs(wanted, request_timeout=self._seconds))
        found = set()
        for resource, future in asked.items():
            told = self._answer(future, f"the settings of topic {resource.name!r}", *_denied())
            if told is not None and "compact" in told["cleanup.policy"].value:
                found.add(resource.name)
        return found

    def bounds(
        self, partitions: Iterable[Partition]
    ) -> tuple[dict[Partition, Place], dict[Partition, Place]]:
        """The first offsets that are still there, and the last stable ones: what comes at or after these may
        belong to transactions that are not over."""
        wanted = list(partitions)
        first, last = self._asked(wanted, _spec("earliest")), self._asked(wanted, _spec("latest"))
        return self._places(first), self._places(last)

    def at_time(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, Place]:
        """The first offsets whose rows are not older; partitions without such rows are left out."""
        found = self._places(self._asked(list(partitions), _spec("for_timestamp", time_ms)))
        return {partition: place for partition, place in found.items() if place.offset != NO_ROWS}

    def commit(self, group: str, places: Mapping[Partition, Place]) -> None:
        """Tell monitors how far a group is."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        offsets = [TopicPartition(*partition, place.offset) for partition, place in places.items()]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        asked = self._ask(
            lambda admin: admin.alter_consumer_group_offsets(request, request_timeout=self._seconds)
        )
        for future in asked.values():
            self._answer(future, f"the offsets of group {group!r}")

    def _asked(self, partitions: list[Partition], spec: Any) -> dict[Any, Future[Any]]:
        from confluent_kafka import IsolationLevel, TopicPartition

        wanted = {TopicPartition(*partition): spec for partition in partitions}
        level = IsolationLevel.READ_COMMITTED
        if not wanted:
            return {}
        return self._ask(
            lambda admin: admin.list_offsets(wanted, isolation_level=level, request_timeout=self._seconds)
        )

    def _places(self, asked: Mapping[Any, Future[Any]]) -> dict[Partition, Place]:
        found = {}
        for of, future in asked.items():
            partition = Partition(of.topic, of.partition)
            told = self._answer(future, f"the offsets of {partition}")
            if told.offset < NO_ROWS:
                # Where a connection ends in between, the library calls it answered, with no offset in it.
                self._client = None
                raise self.troubles.unavailable(f"the offsets of {partition}")
            epoch = told.leader_epoch
            found[partition] = Place(told.offset, -1 if epoch is None else epoch)
        return found

    def _admin(self) -> Any:
        if self._client is None:
            confluent()
            from confluent_kafka import admin

            self._client = self._connection.client(admin.AdminClient, self.troubles)
        return self._client

    def _ask(self, request: Callable[[Any], dict[Any, Future[Any]]]) -> dict[Any, Future[Any]]:
        self.troubles.clear()
        return request(self._admin())

    def _answer(self, future: Future[Any], what: str, *missing: int) -> Any:
        """What a request gave; None: an error that the caller knows the meaning of."""
        try:
            return self._answered(future, what, *missing)
        except HoldfastError:
            self._client = None
            raise

    def _answered(self, future: Future[Any], what: str, *missing: int) -> Any:
        kafka = confluent()
        while not wait([future], POLL_SECONDS).done:
            self._poll()
            self.troubles.raise_refusal()
        try:
            return future.result()
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code in missing:
                return None
            if code in _denied():
                raise not_allowed(self._connection, what) from error
            raise self.troubles.unavailable(what, error.args[0].str()) from error

    def _poll(self) -> None:
        self._admin().poll(0)


def _denied() -> tuple[int, ...]:
    error = confluent().KafkaError
    return (
        error.TOPIC_AUTHORIZATION_FAILED, error.GROUP_AUTHORIZATION_FAILED,
        error.CLUSTER_AUTHORIZATION_FAILED,
    )  # fmt: skip


def not_allowed(connection: Connection, what: str) -> Refused:
    return Refused(
        f"Kafka at {connection.servers} does not let this user at {what}; grant it, or use another user"
    )


def _spec(name: str, *arguments: Any) -> Any:
    """Which offset to ask for."""
    from confluent_kafka import admin

    kinds: Any = vars(admin)["OffsetSpec"]
    return getattr(kinds, name)(*arguments)
