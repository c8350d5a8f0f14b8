"""Marks in a topic of their own: one partition for each lane, in which the writer of that lane alone writes.

A mark is a message in the transaction of its rows. What a reader has to know is where the newest committed
one is, and that none is on its way: it takes the end of the partition as it is without regard to
transactions, and reads what is committed until it has come there. A transaction of another lane, which
nobody may end for a while, is in another partition and holds nothing up.
Always true: a mark that was read is committed; a lane of which the end was not reached has no answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client import Connection, Refused, Troubles, confluent
from holdfast.connectors.lanes import LANES, LaneMark
from holdfast.errors import DefinitionError, Unavailable

WINDOW_OFFSETS = 64
"""How many offsets before the end are read first. Marks are at the end, and may be behind what transactions
left that were not committed; where none is found the window grows."""
WINDOW_GROWS = 16
SLICE_SECONDS = 1.0
"""Requests that block are cut into such pieces, so that a refusal by the server is heard between them."""
POLL_SECONDS = 0.1
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1"}


@dataclass(frozen=True)
class MarkTopic:
    """Where the marks of one sink of one job are. `owner` names both, in the keys of the messages."""

    name: str
    owner: str

    def key(self, lane: int) -> bytes:
        return f"{self.owner}/{lane}".encode()

    def value(self, mark: LaneMark, term: int, topic_id: str) -> bytes:
        told = {"epoch": mark.epoch, "rows": mark.rows, "input": mark.input, "term": term, "topic": topic_id}
        return json.dumps(told).encode()


@dataclass(frozen=True, slots=True)
class NotedMark:
    """A mark, the term of the leader that had it written, and the id of the topic that shows the rows (empty:
    it was written before marks held ids)."""

    mark: LaneMark
    term: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """A transaction in a lane that was not over when we looked. `first`: its first offset."""

    first: int
    end: int


class MarkReader:
    """Reads marks, by consumers of its own: one that sees what is committed, and one that sees how far it all
    goes (asked of the first, the end is where the first open transaction begins). Every call comes back in
    about `seconds`, or raises Unavailable."""

    def __init__(self, connection: Connection, topic: MarkTopic, seconds: float) -> None:
        self._connection, self._topic, self._seconds = connection, topic, seconds
        self._troubles = Troubles(connection)
        self._committed = self._new_consumer("read_committed")
        self._whole = self._new_consumer("read_uncommitted")

    def close(self) -> None:
        self._committed.close()
        self._whole.close()

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is none of this name. Refused: we may not know."""
        kafka = confluent()
        told = self._described(topic)
        if told.error is None:
            return len(told.partitions)
        if told.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return 0
        if told.error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise Refused(
                f"Kafka at {self._connection.servers} does not let this user at topic {topic!r}; grant it, "
                "or use another user"
            )
        raise self._troubles.unavailable(f"topic {topic!r}", told.error.str())

    def appeared(self, topic: str) -> int:
        """How many partitions a topic has that was just made, as soon as it can be used."""
        give_up = self._give_up()
        while True:
            told = self._described(topic)
            if told.error is None and all(each.leader >= 0 for each in told.partitions.values()):
                return len(told.partitions)
            self._look(give_up, f"topic {topic!r}", "it was made, and is not there yet")

    def replicas(self, topic: str) -> int:
        """How many copies every partition of a topic has at least."""
        return min((len(each.replicas) for each in self._described(topic).partitions.values()), default=1)

    def read(
        self, lanes: Collection[int], patience: float
    ) -> tuple[dict[int, NotedMark], dict[int, OpenWrite]]:
        """The newest committed mark of each lane that has one; and the writes that were not over after
        `patience` seconds: their lanes may have a newer mark in a moment, or one from long before."""
        bounds = {lane: self._bounds(lane) for lane in lanes}
        waiting = {lane: place for lane, place in bounds.items() if place[0] < place[1]}
        found: dict[int, NotedMark] = {}
        under_way: dict[int, OpenWrite] = {}
        window = WINDOW_OFFSETS
        while waiting:
            firsts = {lane: max(low, end - window) for lane, (low, end) in waiting.items()}
            ends = {lane: end for lane, (_, end) in waiting.items()}
            marks, still = self._tail(firsts, ends, patience)
            found |= marks
            under_way |= still
            waiting = {
                lane: place
                for lane, place in waiting.items()
                if lane not in found and lane not in still and firsts[lane] > place[0]
            }
            window *= WINDOW_GROWS
        return found, under_way

    def term_of(self, lane: int, write: OpenWrite) -> int | None:
        """Under which term an open write was begun; None: it is not one of this sink."""
        marks, _ = self._read_from(self._whole, {lane: write.first}, {lane: write.end}, self._seconds)
        return marks[lane].term if lane in marks else None

    def _tail(
        self, firsts: Mapping[int, int], ends: Mapping[int, int], patience: float
    ) -> tuple[dict[int, NotedMark], dict[int, OpenWrite]]:
        marks, stopped = self._read_from(self._committed, firsts, ends, patience)
        return marks, {lane: OpenWrite(at, ends[lane]) for lane, at in stopped.items()}

    def _read_from(
        self, consumer: Any, firsts: Mapping[int, int], ends: Mapping[int, int], patience: float
    ) -> tuple[dict[int, NotedMark], dict[int, int]]:
        """The last mark from `firsts` on, in each lane; and the lanes where nothing more comes, before the
        end, with the offset where that is. Unavailable: a lane says nothing at all."""
        kafka, name = confluent(), self._topic.name
        places = [kafka.TopicPartition(name, lane, first) for lane, first in firsts.items()]
        consumer.assign(places)
        marks: dict[int, NotedMark] = {}
        stopped: dict[int, int] = {}
        waiting = set(firsts)
        patient_until = time.monotonic() + patience
        give_up = self._give_up()
        while waiting and not (waiting <= set(stopped) and time.monotonic() >= patient_until):
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                self._look(give_up, f"the marks in topic {name!r}")
                continue
            lane, at = message.partition(), message.offset()
            if message.error() is None:
                marks |= self._mark_in(message)
                at += 1
            elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
                stopped[lane] = at
            else:
                raise self._troubles.unavailable(f"the marks in topic {name!r}", message.error().str())
            if at >= ends[lane]:
                waiting.discard(lane)
        consumer.unassign()
        return marks, {lane: stopped[lane] for lane in waiting}

    def _mark_in(self, message: Any) -> dict[int, NotedMark]:
        lane = message.partition()
        if message.key() != self._topic.key(lane) or message.value() is None:
            return {}
        told = json.loads(message.value())
        mark = LaneMark(told["epoch"], told["rows"], told["input"])
        return {lane: NotedMark(mark, told["term"], told.get("topic", ""))}

    def _bounds(self, lane: int) -> tuple[int, int]:
        """The first offset of a lane and its end, without regard to transactions."""
        kafka = confluent()
        where = kafka.TopicPartition(self._topic.name, lane)
        give_up = self._give_up()
        while True:
            try:
                low, end = self._whole.get_watermark_offsets(where, timeout=SLICE_SECONDS, cached=False)
                return low, end
            except kafka.KafkaException as error:
                self._look(give_up, f"the end of {self._topic.name}-{lane}", error.args[0].str())

    def _described(self, topic: str) -> Any:
        kafka = confluent()
        give_up = self._give_up()
        while True:
            try:
                return self._whole.list_topics(topic, timeout=SLICE_SECONDS).topics[topic]
            except kafka.KafkaException as error:
                self._look(give_up, f"topic {topic!r}", error.args[0].str())

    def _give_up(self) -> float:
        """Until when the server may be silent."""
        self._troubles.clear()
        return time.monotonic() + self._seconds

    def _look(self, give_up: float, what: str, why: str = "") -> None:
        """Hear what the server has against us; raise it, and Unavailable when the time is over."""
        # Between two assignments nothing comes but what the library calls us for.
        self._whole.poll(POLL_SECONDS if why else 0.0)
        self._troubles.raise_refusal()
        if time.monotonic() > give_up:
            raise self._troubles.unavailable(what, why)

    def _new_consumer(self, isolation: str) -> Any:
        return self._connection.client(
            confluent().Consumer, self._troubles, group_id="holdfast-unused", enable_auto_commit=False,
            enable_partition_eof=True, enable_auto_offset_store=False, auto_offset_reset="error",
            isolation_level=isolation, fetch_wait_max_ms=20,
        )  # fmt: skip


def made(connection: Connection, topic: MarkTopic, replicas: int, seconds: float) -> None:
    """Make the topic, if it is not there. Refused: we may not."""
    kafka, admin = confluent(), _admin_library()
    client = connection.client(admin.AdminClient, Troubles(connection))
    wanted = admin.NewTopic(topic.name, LANES, replicas, config=CONFIG)
    (asked,) = client.create_topics([wanted], request_timeout=seconds, operation_timeout=seconds).values()
    try:
        asked.result(seconds * 2)
    except TimeoutError as error:
        raise Unavailable(f"Kafka at {connection.servers} does not make topic {topic.name!r}") from error
    except kafka.KafkaException as error:
        problem = error.args[0]
        if problem.code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            return
        denied = (
            kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            kafka.KafkaError.POLICY_VIOLATION, kafka.KafkaError.INVALID_REPLICATION_FACTOR,
        )  # fmt: skip
        if problem.code() in denied:
            raise Refused(
                f"Kafka at {connection.servers} does not make topic {topic.name!r}, which is for the marks "
                f"of a sink ({problem.str()}); make it: {LANES} partitions, cleanup.policy=compact"
            ) from error
        raise Unavailable(
            f"Kafka at {connection.servers} does not make topic {topic.name!r}: {problem.str()}"
        ) from error


def refuse_unfit(connection: Connection, topic: MarkTopic, partitions: int, seconds: float) -> None:
    """DefinitionError: a topic in which marks would be lost, or have no place."""
    kafka, admin = confluent(), _admin_library()
    if partitions < LANES:
        raise DefinitionError(
            f"topic {topic.name!r} has {partitions} partitions, and marks need {LANES}: one for each lane, a "
            "number that never changes; name another topic with marks=, or none"
        )
    client = connection.client(admin.AdminClient, Troubles(connection))
    asked = admin.ConfigResource(admin.ResourceType.TOPIC, topic.name)
    try:
        (told,) = client.describe_configs([asked], request_timeout=seconds).values()
        policy = told.result(seconds * 2)["cleanup.policy"].value
    except (kafka.KafkaException, TimeoutError):
        return  # Who may write a topic need not be allowed to look at its settings.
    if policy != "compact":
        raise DefinitionError(
            f"topic {topic.name!r} holds marks and has cleanup.policy={policy}: it would delete them; set "
            "compact"
        )


def _admin_library() -> Any:
    confluent()
    import confluent_kafka.admin

    return confluent_kafka.admin
