"""However a topic grows, and wherever its slices are cut: every offset is in exactly one slice, and in one
task of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from holdfast.connectors.kafka.client import Topic
from holdfast.connectors.kafka.positions import Partition, Place, Position, in_tasks, ranges_of
from holdfast.connectors.kafka.reader import KafkaReader
from holdfast.connectors.kafka.source import KafkaSource


@dataclass
class Growing:
    """A cluster with one topic, as far as planning asks it. `ends` has the last stable offset of each
    partition, `epoch` is that of the leader."""

    ends: list[int] = field(default_factory=lambda: [0])
    epoch: int = 0

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {"t": Topic("id", len(self.ends))}

    def compacted(self, names: Iterable[str]) -> set[str]:
        return set()

    def bounds(
        self, partitions: Iterable[Partition]
    ) -> tuple[dict[Partition, Place], dict[Partition, Place]]:
        ends = {each: Place(self.ends[each.number], self.epoch) for each in partitions}
        return {each: Place(0, 0) for each in ends}, ends


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, 3), st.integers(1, 40)),
        st.tuples(st.just("add"), st.just(0), st.just(0)),
        st.tuples(st.just("elect"), st.just(0), st.just(0)),
        st.tuples(st.just("plan"), st.integers(1, 50), st.integers(1, 4)),
        st.tuples(st.just("plan and die"), st.integers(1, 50), st.integers(1, 4)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_every_offset_is_read_once_wherever_slices_are_cut(steps: list[tuple[str, int, int]]) -> None:
    cluster: Any = Growing()
    source = KafkaSource("localhost:9092", "t")
    reader, after, seen = KafkaReader(source, cluster), None, list[tuple[int, int]]()

    def take(max_rows: int | None, tasks: int) -> bool:
        nonlocal after
        slice = reader.next(after, max_rows, 0)
        if slice is None:
            return False
        ranges = ranges_of(json.loads(json.dumps(slice.detail)))
        for task in in_tasks(ranges, Position.of(slice.end).places, tasks, least=3):
            seen.extend((each.number, offset) for each in task for offset in range(each.first, each.end))
        after = json.loads(json.dumps(slice.end))
        return True

    for kind, number, more in steps:
        if kind == "grow":
            cluster.ends[number % len(cluster.ends)] += more
        elif kind == "add":
            cluster.ends.append(0)
        elif kind == "elect":
            cluster.epoch += 1
        elif kind == "plan":
            take(number, more)
        elif kind == "plan and die":
            reader.next(after, number, 0)
            reader = KafkaReader(source, cluster)
        else:
            reader = KafkaReader(source, cluster)
    while take(7, 2):
        pass
    every = [(number, offset) for number, end in enumerate(cluster.ends) for offset in range(end)]
    assert sorted(seen) == every
    assert reader.exhausted(after)
    assert reader.lag(after) == 0
