"""Lanes in Kafka: rows and the mark of their lane are one transaction, under a transactional id of the lane.

Whoever takes an id over fences the one who had it, and has what that one left open ended; then the mark is
read. As long as nobody else takes the id over, nobody else can have moved the mark: so a producer that is
kept knows it, and a producer that was fenced learns it when it writes.
Always true: rows are sent by the producer with which, or after which, the mark was read; a mark counts for
the topic that it was written for, and for no other one of its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from holdfast.connectors.kafka.client import Cluster, Connection, is_another_topic
from holdfast.connectors.kafka.lane_producer import LaneProducer, NotWritten
from holdfast.connectors.kafka.mark_topic import (
    MarkReader,
    MarkTopic,
    NotedMark,
    OpenWrite,
    made,
    refuse_unfit,
)
from holdfast.connectors.kafka.messages import MessageForm, Messages
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, Outcome, Result, continues
from holdfast.errors import DefinitionError, SinkWentBack, Unavailable, one_line

OPEN_SECONDS = 3.0
"""How long a write that is under way is waited for, when marks are asked for."""
TRIES_MAX = 5
TOPIC_CHARS_MAX = 249
_NOTHING = Messages([])


@dataclass(frozen=True)
class KafkaLaneWriter:
    """One sink of one job. `marks`: the name of the topic of marks; empty: one of this sink alone."""

    connection: Connection
    topic: str
    form: MessageForm
    job: str
    uid: str
    marks: str
    transaction_seconds: float
    timeout_seconds: float

    def open(self, term: int) -> OpenKafkaLanes:
        lanes = OpenKafkaLanes(self, term)
        try:
            lanes.look_for_topic()
        except BaseException:
            lanes.close()
            raise
        return lanes

    @property
    def owner(self) -> str:
        """Names job and sink, in letters that Kafka takes in names."""
        digest = hashlib.sha256(f"{self.job}\0{self.uid}".encode()).hexdigest()[:16]
        return f"{re.sub('[^A-Za-z0-9._-]', '-', self.uid)[:40]}-{digest}"

    @property
    def mark_topic(self) -> MarkTopic:
        own = f"__holdfast-marks-{self.topic}"[: TOPIC_CHARS_MAX - 1 - len(self.owner)]
        return MarkTopic(self.marks or f"{own}-{self.owner}", self.owner)

    def transactional_id(self, lane: int) -> str:
        return f"holdfast-{self.owner}-{lane}"


class OpenKafkaLanes:
    def __init__(self, writer: KafkaLaneWriter, term: int) -> None:
        self._writer, self._term = writer, term
        self._marks = writer.mark_topic
        self._reader = self._new_reader()
        self._cluster = Cluster(writer.connection, writer.timeout_seconds)
        self._topic_id = ""
        self._looked_in = 0
        self._producers: dict[int, LaneProducer] = {}

    def look_for_topic(self) -> None:
        """DefinitionError: there is none to write to. Unavailable: nobody answers."""
        self._topic_id = self._id_now()

    def begin(self, through: int) -> None:
        """Lanes whose mark can be seen are left alone: their writers are not fenced."""
        writer, seconds = self._writer, self._writer.timeout_seconds
        if not self._reader.partitions(self._marks.name):
            made(writer.connection, self._marks, self._reader.replicas(writer.topic), seconds)
            # The one that did not find it may go on not finding it for a while.
            self._reader.close()
            self._reader = self._new_reader()
        refuse_unfit(writer.connection, self._marks, self._reader.appeared(self._marks.name), seconds)
        for _ in range(TRIES_MAX):
            found, _under_way = self._reader.read(range(LANES), OPEN_SECONDS)
            if self._marked(sorted(set(range(LANES)) - set(found)), LaneMark(through)):
                return
        raise Unavailable(
            f"another process makes the marks of sink {writer.uid!r} at the same time; it is asked again"
        )

    def _marked(self, lanes: Sequence[int], mark: LaneMark) -> bool:
        """Whether each of these lanes has a mark now; False: another process has come between."""

        def give(lane: int) -> None:
            self._send(self._producers[lane], lane, _NOTHING, mark)

        try:
            self._take(lanes)
            _each(give, [lane for lane in lanes if self._producers[lane].mark is None])
        except NotWritten as why:
            for lane in lanes:
                self._drop(lane)
            if why.outcome is Outcome.FENCED:
                return False
            raise _as_error(why) from why
        return True

    def marks(self) -> Mapping[int, LaneMark]:
        if not self._reader.partitions(self._marks.name):
            return {}
        found, under_way = self._reader.read(range(LANES), OPEN_SECONDS)
        self._refuse_other_topic(found)
        for lane, write in under_way.items():
            found |= self._ended(lane, write)
        return {lane: noted.mark for lane, noted in sorted(found.items())}

    def write(self, rows: LaneRows) -> Result:
        tables = list(rows.load())
        try:
            return self._write(rows, self._writer.form.messages(tables))
        except NotWritten as why:
            self._drop(rows.lane)
            return Result(why.outcome, reason=f"lane {rows.lane}, epoch {rows.epoch}: {why.reason}")
        except SinkWentBack as other:
            # Whether that is as it should be a person has to say: the sink waits for it, alone.
            self._drop(rows.lane)
            return Result(Outcome.REFUSED, reason=one_line(other))
        except (DefinitionError, Unavailable) as failure:
            self._drop(rows.lane)
            outcome = Outcome.REFUSED if isinstance(failure, DefinitionError) else Outcome.UNAVAILABLE
            return Result(outcome, reason=f"lane {rows.lane}, epoch {rows.epoch}: {one_line(failure)}")

    def close(self) -> None:
        for lane in list(self._producers):
            self._drop(lane)
        self._reader.close()

    def _write(self, rows: LaneRows, messages: Messages) -> Result:
        if rows.epoch != self._looked_in:
            self._look_again(rows.epoch)
            self._looked_in = rows.epoch
        producer = self._producers.get(rows.lane)
        if producer is not None and continues(producer.mark, rows) in (Outcome.WENT_BACK, Outcome.OTHER_ROWS):
            # Another writer may have gone on since.
            self._drop(rows.lane)
            producer = None
        if producer is None:
            if not self._reader.partitions(self._marks.name):
                return Result(Outcome.WENT_BACK, reason=f"its topic of marks {self._marks.name!r} is gone")
            self._take([rows.lane])
            producer = self._producers[rows.lane]
        start = continues(producer.mark, rows)
        if isinstance(start, Outcome):
            return Result(start, producer.mark, reason=f"its mark is {producer.mark}")
        self._send(producer, rows.lane, messages.after(start), rows.end)
        return Result(Outcome.WRITTEN, rows.end)

    def _take(self, lanes: Sequence[int]) -> None:
        """Have a producer for each of these lanes that alone may write it, and knows its mark."""
        writer = self._writer
        taken: dict[int, LaneProducer] = {}
        for lane in lanes:
            self._drop(lane)
            taken[lane] = LaneProducer(
                writer.connection, writer.transactional_id(lane), writer.transaction_seconds,
                writer.timeout_seconds,
            )  # fmt: skip
        try:
            _each(LaneProducer.take, list(taken.values()))
            found, under_way = self._reader.read(lanes, OPEN_SECONDS)
            if under_way:
                raise NotWritten(
                    Outcome.UNAVAILABLE,
                    f"a transaction of somebody else is open in {self._marks.name}-{min(under_way)}, which "
                    "is for marks of this sink alone; it is waited for",
                )
            if any(lane not in found or not found[lane].mark.rows for lane in lanes):
                # Whether the topic is another one is in the marks of lanes that have shown rows.
                others, _ = self._reader.read(set(range(LANES)) - set(lanes), 0.0)
                found = {**others, **found}
            self._refuse_other_topic(found)
        except BaseException:
            for producer in taken.values():
                producer.close()
            raise
        for lane, producer in taken.items():
            producer.mark = found[lane].mark if lane in found else None
        self._producers |= taken

    def _look_again(self, epoch: int) -> None:
        """SinkWentBack: it is another topic by now. DefinitionError: it is gone."""
        if is_another_topic(self._id_now(), self._topic_id):
            raise self._made_again(epoch - 1)

    def _id_now(self) -> str:
        topic = self._writer.topic
        found = self._cluster.topics([topic])
        if topic not in found:
            raise DefinitionError(
                f"Kafka at {self._writer.connection.servers} has no topic {topic!r}; correct the name, or "
                "create the topic first"
            )
        return found[topic].id

    def _refuse_other_topic(self, found: Mapping[int, NotedMark]) -> None:
        """SinkWentBack: the rows that these marks tell of were shown in another topic of this name."""
        gone = [
            noted.mark.epoch
            for noted in found.values()
            if noted.mark.rows and is_another_topic(noted.topic_id, self._topic_id)
        ]
        if gone:
            raise self._made_again(max(gone))

    def _made_again(self, through: int) -> SinkWentBack:
        writer = self._writer
        return SinkWentBack(
            f"topic {writer.topic!r} of Kafka at {writer.connection.servers} was deleted and made again: the "
            f"rows of epochs up to {through} that sink {writer.uid!r} had shown are gone with the old one; "
            "give the sink another uid: then it begins with the next epoch, without these"
        )

    def _send(self, producer: LaneProducer, lane: int, messages: Messages, end: LaneMark) -> None:
        told = self._marks.key(lane), self._marks.value(end, self._term, self._topic_id)
        producer.send(self._writer.topic, messages, self._marks.name, lane, told)
        producer.mark = end

    def _ended(self, lane: int, write: OpenWrite) -> dict[int, NotedMark]:
        """The mark of a lane in which a transaction stays open: one that was begun under our term, or an
        earlier one, is ended by taking the lane over. Unavailable: it is not ours to end."""
        term = self._reader.term_of(lane, write)
        if term is None or term > self._term:
            raise Unavailable(
                f"lane {lane} of sink {self._writer.uid!r} is being written by another process, and its mark "
                "cannot be known; it is asked again"
            )
        try:
            self._take([lane])
        except NotWritten as why:
            raise _as_error(why) from why
        mark = self._producers[lane].mark
        return {} if mark is None else {lane: NotedMark(mark, term, self._topic_id)}

    def _drop(self, lane: int) -> None:
        if lane in self._producers:
            self._producers.pop(lane).close()

    def _new_reader(self) -> MarkReader:
        return MarkReader(self._writer.connection, self._marks, self._writer.timeout_seconds)


Given = TypeVar("Given")


def _each(do: Callable[[Given], None], given: Sequence[Given]) -> None:
    """At the same time: it is the cluster that is waited for. Raises what the first of them does."""
    if given:
        with ThreadPoolExecutor(len(given)) as pool:
            list(pool.map(do, given))


def _as_error(why: NotWritten) -> DefinitionError | Unavailable:
    return DefinitionError(why.reason) if why.outcome is Outcome.REFUSED else Unavailable(why.reason)
