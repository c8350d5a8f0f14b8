"""An open source on the driver: what the next slice reads, and whether that is there still."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from holdfast.connectors.contract import Arrived, Json, MalformedRow, Sifted, Slice
from holdfast.connectors.kafka.client import Cluster, Refused, Topic, not_allowed
from holdfast.connectors.kafka.positions import (
    Partition,
    Place,
    Position,
    Range,
    in_tasks,
    ranges_of,
    shares,
)
from holdfast.connectors.kafka.reading import RangesReader
from holdfast.connectors.kafka.times import ReadTimes, times_read, within
from holdfast.connectors.kafka.values import ValueRows
from holdfast.errors import DefinitionError, InputVanished, Unavailable

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.connectors.kafka.source import KafkaSource

LOOK_MS = 5_000
"""How often topics that fit a pattern are looked for."""
TASK_ROWS_MIN = 20_000
"""A partition is read by several tasks only in pieces of at least so many offsets."""
MISSES_MAX = 3
"""How often in a row a topic has to be missing before it counts as gone: a broker that has just started may
not know of all."""


class KafkaReader:
    """A position is that of `positions`: the next offset of every partition."""

    place_words: Final = ("partition", "offset")

    def __init__(self, source: KafkaSource, cluster: Cluster) -> None:
        self._source, self._cluster = source, cluster
        self._servers = source.connection.servers
        self._names: list[str] = []
        self._named_ms: int | None = None
        self._ends: dict[Partition, Place] = {}
        self._beginning: Position | None = None
        self._last: Position | None = None
        """What `end_at` has fixed."""
        self._misses: dict[str, int] = {}
        self._looked_at: set[str] = set()
        """Topics of which it is known whether they are compacted."""
        self._news: list[str] = []
        self._trouble = ""
        self._times: Accumulator[ReadTimes] | None = None
        """What tasks have told of the messages that they read."""

    def next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        with self._asking():
            return self._next(after, max_rows, now_ms)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The cluster is asked; what it says of trouble is shown until it answers again."""
        try:
            yield
        except Refused as error:
            # It let us in before: a password that is being rotated, a broker that has not loaded its users.
            self._trouble = str(error)
            raise Unavailable(str(error)) from error
        except Unavailable as error:
            self._trouble = str(error)
            raise
        self._trouble = ""

    def _next(self, after: Json | None, max_rows: int | None, now_ms: int) -> Slice | None:
        topics = self._topics(now_ms, Position.of(after or {}))
        partitions = [Partition(name, n) for name, topic in topics.items() for n in range(topic.partitions)]
        self._look_at(topics)
        firsts, self._ends = self._cluster.bounds(partitions)
        position = Position.of(after) if after is not None else self._begun(topics, firsts)
        ids = {name: topic.id for name, topic in topics.items()}
        at = {each: position.places.get(each, firsts[each]) for each in partitions}
        at = {each: self._still_there(each, place, firsts[each]) for each, place in at.items()}
        ends = {each: self._limited(each, at[each]) for each in partitions}
        share = shares({each: ends[each] - at[each].offset for each in partitions}, max_rows)
        ranges, places = [], dict(position.places)
        for each in sorted(partitions):
            first, epoch = at[each].offset, self._ends[each].leader_epoch
            end = first + share[each]
            ranges.append(Range(*each, first, end, at[each].leader_epoch, self._ends[each].offset > end))
            places[each] = Place(end, epoch if share[each] else at[each].leader_epoch)
        fixes_the_start = after is None and self._source.start != "earliest"
        if not any(each.size for each in ranges) and not fixes_the_start:
            return None
        stored = Position({**position.ids, **ids}, places).stored()
        rows = None if any(each.size for each in ranges) else 0
        return Slice(after, stored, rows, [list(each) for each in ranges])

    def exhausted(self, after: Json | None) -> bool:
        return not self.lag(after)

    def end_at(self, after: Json | None, now_ms: int, end: Json | None) -> Json:
        if end is None:
            with self._asking():
                topics = self._topics(now_ms, Position.of(after or {}))
                every = [Partition(name, n) for name, each in topics.items() for n in range(each.partitions)]
                _, self._ends = self._cluster.bounds(every)
            given = Position.of(after or {})
            ends = {**given.places, **self._ends}
            # As the slice says that ends there: a place that does not move keeps its epoch.
            same = {each: place for each, place in given.places.items() if place.offset == ends[each].offset}
            ids = {**given.ids, **{name: topic.id for name, topic in topics.items()}}
            end = Position(ids, {**ends, **same}).stored()
        self._last = Position.of(end)
        return end

    def frame(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._rows(spark, slice).strict()

    def sifted(self, spark: SparkSession, slice: Slice) -> Sifted:
        return self._rows(spark, slice).sifted()

    def malformed(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._rows(spark, slice).letters()

    def first_malformed(self, spark: SparkSession, slice: Slice) -> MalformedRow | None:
        for found in self.malformed(spark, slice).orderBy("file", "line").limit(1).collect():
            return MalformedRow(found["file"], "", found["line"], found["row"], found["reason"])
        return None

    def verify(self, slice: Slice) -> None:
        """The rows came from the topics that were planned, if these are the same still."""
        with self._asking():
            self._compare_ids(slice, self._cluster.topics(list(slice.end)))

    def partitions(self, slice: Slice) -> Mapping[str, bool]:
        return {str(each.partition): each.size > 0 or each.waits for each in ranges_of(slice.detail)}

    def lag(self, after: Json | None) -> int | None:
        if not self._ends:
            return None
        given = after or (self._beginning.stored() if self._beginning is not None else {})
        places = Position.of(given).places
        ends = {each: self._limited(each, Place(0, -1)) for each in self._ends}
        return sum(max(0, ends[each] - places.get(each, Place(0, -1)).offset) for each in ends)

    def committed(self, position: Json) -> None:
        if self._source.group is not None:
            with self._asking():
                self._cluster.commit(self._source.group, Position.of(position).places)

    def arrived(self, slice: Slice) -> Sequence[Arrived]:
        """By the times of the messages, as tasks found them."""
        if self._times is None:
            return []
        read, self._times.value = self._times.value, {}
        return within(read, ranges_of(slice.detail))

    def health(self) -> str:
        return self._trouble

    def news(self) -> Sequence[str]:
        told, self._news = self._news, []
        return told

    def _rows(self, spark: SparkSession, slice: Slice) -> ValueRows:
        ranges = ranges_of(slice.detail)
        wanted = [each for each in ranges if each.size]
        with self._asking():
            self._compare_ids(slice, self._cluster.topics(list(slice.end)))
            firsts, ends = self._cluster.bounds(each.partition for each in wanted)
        for each in wanted:
            first, end = firsts[each.partition].offset, ends[each.partition].offset
            if first > each.first:
                raise self._vanished(each.partition, each.first, min(first, each.end), "have expired")
            if end < each.end:
                raise self._vanished(each.partition, max(end, each.first), each.end, "are gone")
        form = self._source.form
        places = Position.of(slice.end).places
        tasks = in_tasks(wanted, places, spark.sparkContext.defaultParallelism, TASK_ROWS_MIN)
        if not tasks:
            return ValueRows(form, spark.createDataFrame([], form.read_columns))
        if self._times is None:
            self._times = times_read(spark)
        reader = RangesReader(self._source.connection, tuple(tasks), form.decode, self._times)
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        return ValueRows(form, numbers.mapInArrow(reader, form.read_columns))

    def _topics(self, now_ms: int, position: Position) -> dict[str, Topic]:
        """The topics to read, as they are now."""
        if self._source.pattern is None:
            self._names = list(self._source.topics)
        elif self._named_ms is None or not 0 <= now_ms - self._named_ms < LOOK_MS:
            every = self._cluster.topic_names()
            self._names = [name for name in every if re.fullmatch(self._source.pattern, name)]
            self._named_ms = now_ms
        # A topic that a pattern no longer finds was deleted, which has to be told.
        wanted = sorted({*self._names, *position.ids})
        found = self._cluster.topics(wanted)
        self._count_misses(wanted, found)
        for name, topic in found.items():
            if position.ids.get(name, topic.id) != topic.id:
                raise self._made_again(name)
            if not topic.readable:
                raise not_allowed(self._source.connection, f"the rows of topic {name!r}")
        return found

    def _look_at(self, topics: Iterable[str]) -> None:
        """Say once of each topic that is compacted what that means."""
        new = set(topics) - self._looked_at
        for name in sorted(self._cluster.compacted(new)):
            self._news.append(
                f"topic {name!r} is compacted: a slice that is read twice may have fewer rows the second "
                "time; put transform(fn, materialize=True) behind the source, so that all see the same"
            )
        self._looked_at |= new

    def _count_misses(self, wanted: Sequence[str], found: Mapping[str, Topic]) -> None:
        missing = [name for name in wanted if name not in found]
        self._misses = {name: self._misses.get(name, 0) + 1 for name in missing}
        for name in missing:
            if self._misses[name] >= MISSES_MAX:
                raise InputVanished(
                    f"topic {name!r} of Kafka at {self._servers} was deleted; take it out of the source, "
                    "which gives up what was not read of it, or read its replacement under another uid"
                )
        if missing:
            raise Unavailable(f"Kafka at {self._servers} does not know topic {missing[0]!r}")

    def _compare_ids(self, slice: Slice, found: Mapping[str, Topic]) -> None:
        self._count_misses(list(slice.end), found)
        for name, id in Position.of(slice.end).ids.items():
            if found[name].id != id:
                raise self._made_again(name)

    def _made_again(self, name: str) -> InputVanished:
        return InputVanished(
            f"topic {name!r} of Kafka at {self._servers} was deleted and made again: offsets "
            "of the old one mean other rows in it; read the new one under another uid of the source"
        )

    def _begun(self, topics: Mapping[str, Topic], firsts: Mapping[Partition, Place]) -> Position:
        """Where a new job begins: fixed once, and then by the first slice."""
        if self._beginning is not None:
            return self._beginning
        start = self._source.start
        places = dict(firsts)
        if start == "latest":
            places = dict(self._ends)
        elif isinstance(start, datetime):
            ago = self._cluster.at_time(firsts, int(start.timestamp() * 1000))
            places = {each: ago.get(each, self._ends[each]) for each in firsts}
        elif isinstance(start, Mapping):
            for topic, offsets in start.items():
                for number, offset in offsets.items():
                    places[Partition(topic, int(number))] = self._given(topic, int(number), offset)
        self._beginning = Position({name: topic.id for name, topic in topics.items()}, places)
        return self._beginning

    def _given(self, topic: str, number: int, offset: int) -> Place:
        partition = Partition(topic, number)
        if partition not in self._ends:
            raise DefinitionError(f"start=... names {partition}, which there is not; correct it")
        if offset > self._ends[partition].offset:
            raise DefinitionError(
                f"start=... begins {partition} at offset {offset}, and it ends at "
                f"{self._ends[partition].offset}; correct it"
            )
        return Place(offset, -1)

    def _still_there(self, partition: Partition, place: Place, first: Place) -> Place:
        """Where to read on. InputVanished: not where the position says."""
        end = self._ends[partition].offset
        if end < place.offset:
            raise self._vanished(partition, end, place.offset, "were read, and are gone")
        if first.offset <= place.offset:
            return place
        if self._source.on_expired == "fail":
            raise self._vanished(partition, place.offset, first.offset, "expired before they were read")
        self._news.append(
            f"LOST: offsets {place.offset} to {first.offset - 1} of {partition} expired unread; going "
            "on without them, as on_expired='continue' says"
        )
        return first

    def _vanished(self, partition: Partition, first: int, end: int, what: str) -> InputVanished:
        return InputVanished(
            f"offsets {first} to {end - 1} of {partition} in Kafka at {self._servers} {what}; "
            "restore them, or go on without them: on_expired='continue' for what is not planned yet, "
            "`holdfast skip --epoch ... --checkpoint ...` for a planned epoch"
        )

    def _limited(self, partition: Partition, at: Place) -> int:
        """Up to where a partition may be read now."""
        end = self._ends[partition].offset
        if self._last is not None:
            end = min(end, self._last.places.get(partition, at).offset)
        return max(end, at.offset)
