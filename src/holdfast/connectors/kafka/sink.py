"""Rows into a topic of Kafka, by Spark's tasks, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from holdfast.connectors.kafka.avro import AvroValues
from holdfast.connectors.kafka.client import Cluster, Connection
from holdfast.connectors.kafka.lane_producer import LaneProducer
from holdfast.connectors.kafka.lane_writer import KafkaLaneWriter
from holdfast.connectors.kafka.messages import MessageForm
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import Atomic
from holdfast.errors import DefinitionError, Unavailable
from holdfast.secret import Secret

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaSink:
    """Writes each row as a message into `topic`, which is there already, exactly once for readers with
    `isolation.level=read_committed`.

    `key`: the column of the key (text and binary as they are, other types as text), or several, as a JSON
    object; messages with the same key go into the same partition. `format`: "json" (an object of the `value`
    columns; without `value` all but those of headers and time), "avro" (the record in `schema`, Avro's own
    JSON, in plain binary form) or "bytes" (one column of binary or text; null is a tombstone). `headers`: a
    column of map<string,binary>, map<string,string> or array<struct<key:string,value:binary>>. `timestamp`: a
    column with the time of the message; by default, and where it is null, that is when it is sent.

    The rows of a lane in an epoch (a sixteenth, about) are one transaction, which may take
    `transaction_seconds`; the cluster has a limit for that, 15 minutes by default. `marks` names the topic in
    which the sink remembers what it shows, for one sink only; it is made if it is not there, and must be kept
    with the topic. `options` are librdkafka's, for a producer; passwords in them are `hf.Secret`s.
    """

    exactly_once: Final = True
    shared: Final = False
    atomic: Final[Atomic] = "lane"

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | Sequence[str] = (),
        value: str | Sequence[str] = (),
        format: Literal["json", "avro", "bytes"] = "json",
        schema: str = "",
        headers: str | None = None,
        timestamp: str | None = None,
        marks: str = "",
        transaction_seconds: float = 60.0,
        timeout_seconds: float = 10.0,
        options: Mapping[str, str | int | float | bool | Secret] | None = None,
    ) -> None:
        self.topic: Final = topic
        self.form: Final = MessageForm(format, schema, _names(key), _names(value), headers, timestamp)
        self.marks: Final = marks
        self.transaction_seconds: Final = transaction_seconds
        self.timeout_seconds: Final = timeout_seconds
        self.connection: Final = Connection(servers, dict(options or {}))
        self._refuse_mistakes()

    def _refuse_mistakes(self) -> None:
        form = self.form
        if not self.topic:
            raise DefinitionError('KafkaSink has no topic; give its name: KafkaSink("host:9092", "totals")')
        if form.format not in ("bytes", "json", "avro"):
            raise DefinitionError(f"KafkaSink has no format {form.format!r}; use json, avro or bytes")
        if (form.format == "avro") is not bool(form.schema):
            raise DefinitionError(
                f"format={form.format!r} with schema={form.schema!r} does not fit; give avro a schema, and "
                "the others none"
            )
        if form.format == "avro":
            assert AvroValues(form.schema).type
        if self.transaction_seconds < 1:
            raise DefinitionError(
                f"transaction_seconds={self.transaction_seconds} is less than a second; give more"
            )

    def check_schema(self, schema: pa.Schema) -> None:
        self.form.check(schema)

    def check(self) -> None:
        """That the options are right, that the cluster lets us in and has the topic. One that is not there
        now is waited for later."""
        LaneProducer(
            self.connection, "holdfast-check", self.transaction_seconds, self.timeout_seconds
        ).close()
        try:
            found = Cluster(self.connection).topics([self.topic])
        except Unavailable:
            return
        if self.topic not in found:
            raise DefinitionError(
                f"Kafka at {self.connection.servers} has no topic {self.topic!r}; correct the name, or "
                "create the topic first"
            )

    def lane_writer(self, job: str, uid: str) -> KafkaLaneWriter:
        return KafkaLaneWriter(
            self.connection, self.topic, self.form, job, uid, self.marks, self.transaction_seconds,
            self.timeout_seconds,
        )  # fmt: skip

    def publisher(self, job: str, uid: str) -> LanePublisher:
        return LanePublisher(self.lane_writer(job, uid))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
