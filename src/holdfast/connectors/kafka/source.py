"""Topics of a Kafka cluster, read by offsets: what a slice reads is fixed before it is read.

Always true: a slice ends at the last stable offset, so that its rows are final; positions hold the id of each
topic and the leader epoch of each offset, so that another topic of the same name, or a log that was cut
short, is noticed; what is gone is InputVanished, with the range. Recovery never depends on a consumer group:
offsets are committed to one for monitors alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from holdfast.connectors.contract import Json
from holdfast.connectors.kafka.client import Cluster, Connection, confluent, not_allowed
from holdfast.connectors.kafka.reader import KafkaReader
from holdfast.connectors.kafka.values import PARTITION_COLUMN, ValueForm
from holdfast.errors import DefinitionError, Unavailable
from holdfast.secret import Secret

Start = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]


class KafkaSource:
    """Messages of `topics`, or of all topics whose whole name fits `pattern` (a regular expression).

    Columns: `key binary, value ..., headers array<struct<key:string,value:binary>>, timestamp timestamp,
    partition int, offset long, topic string, topic_partition string`. `value` is binary with
    `format="bytes"`; with "json" a struct of the columns in `schema` (Spark SQL), with "avro" one of the
    record in `schema` (Avro's own JSON). A value that does not fit fails the epoch or is set aside, as
    `on_error=` of the job's source says; null always fits.

    `start`: where a new job begins: "earliest", "latest", a datetime with a time zone (rows not older than
    it), or offsets by topic and partition. Partitions that are found later, and those without an offset
    there, are read from their beginning. `group`: a consumer group to which committed offsets are told, for
    monitors alone. `on_expired="continue"` goes on with what is left, and says so, where retention has
    deleted rows before they were read; by default that is InputVanished. `options` are librdkafka's;
    passwords in them are `hf.Secret`s. `max_rows` of an epoch counts offsets; markers of transactions are
    among them.
    """

    replayable: Final = True
    partition_column: Final = PARTITION_COLUMN
    forgets: Final = True

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        format: Literal["bytes", "json", "avro"] = "bytes",
        schema: str = "",
        start: Start = "earliest",
        group: str | None = None,
        on_expired: Literal["fail", "continue"] = "fail",
        options: Mapping[str, str | int | float | bool | Secret] | None = None,
    ) -> None:
        self.topics: Final = (topics,) if isinstance(topics, str) else tuple(topics)
        self.pattern: Final = pattern
        self.form: Final = ValueForm(format, schema)
        self.start: Final = start
        self.group: Final = group
        self.on_expired: Final = on_expired
        self.connection: Final = Connection(servers, dict(options or {}))
        self._refuse_mistakes()

    def _refuse_mistakes(self) -> None:
        form, start = self.form, self.start
        if bool(self.topics) == (self.pattern is not None):
            raise DefinitionError("KafkaSource reads topics or a pattern; give one of topics=, pattern=")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise DefinitionError(
                    f"pattern={self.pattern!r} is no pattern: {error}; correct it"
                ) from error
        if form.format not in ("bytes", "json", "avro"):
            raise DefinitionError(f"KafkaSource has no format {form.format!r}; use bytes, json or avro")
        if (form.format == "bytes") is bool(form.schema):
            raise DefinitionError(
                f"format={form.format!r} with schema={form.schema!r} does not fit; give json or avro a "
                "schema, and bytes none"
            )
        if form.decode is not None:
            assert form.decode.type
        if isinstance(start, datetime) and start.tzinfo is None:
            raise DefinitionError(f"start={start!r} has no time zone; give it one, such as datetime.UTC")
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise DefinitionError(
                f"start={start!r} is no place; use 'earliest', 'latest', a datetime, or offsets by topic and "
                "partition"
            )
        if self.on_expired not in ("fail", "continue"):
            raise DefinitionError(f"on_expired={self.on_expired!r} is unknown; use 'fail' or 'continue'")

    @property
    def schema(self) -> str:
        return self.form.columns

    @property
    def sifts(self) -> bool:
        return self.form.format != "bytes"

    def check(self) -> None:
        """That the cluster lets us in and has the topics. One that is not there now is waited for later."""
        confluent()
        self.connection.settings()
        cluster = Cluster(self.connection)
        try:
            if not self.topics:
                cluster.topic_names()
            found = cluster.topics(self.topics)
        except Unavailable:
            return
        missing = sorted(set(self.topics) - set(found))
        if missing:
            raise DefinitionError(
                f"Kafka at {self.connection.servers} has no topic {', '.join(map(repr, missing))}; correct "
                "the name, or create the topic first"
            )
        for name in self.topics:
            if not found[name].readable:
                raise not_allowed(self.connection, f"the rows of topic {name!r}")

    def reader(self, notes: Sequence[Json]) -> KafkaReader:
        return KafkaReader(self, Cluster(self.connection))
