"""Positions, shares and tasks: arithmetic over partitions."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kafka.positions import (
    Partition,
    Place,
    Position,
    Range,
    in_tasks,
    shares,
)

WAITING = st.dictionaries(st.integers(0, 9).map(lambda n: Partition("t", n)), st.integers(0, 1_000))


def test_a_position_comes_back_from_json() -> None:
    position = Position(
        {"a": "id-a", "b": "id-b"}, {Partition("a", 10): Place(7, 2), Partition("b", 0): Place(0, -1)}
    )
    assert Position.of(json.loads(json.dumps(position.stored()))) == position


def test_a_topic_without_partitions_keeps_its_id() -> None:
    assert Position.of(Position({"a": "id"}, {}).stored()).ids == {"a": "id"}


@given(waiting=WAITING, most=st.integers(1, 3_000))
def test_shares_keep_the_limit_use_it_up_and_favour_nobody(waiting: dict[Partition, int], most: int) -> None:
    given_out = shares(waiting, most)
    assert all(0 <= given_out[each] <= waiting[each] for each in waiting)
    assert sum(given_out.values()) == min(most, sum(waiting.values()))
    cut = [given_out[each] for each in waiting if given_out[each] < waiting[each]]
    assert not cut or max(given_out.values()) - min(cut) <= 1


def test_without_a_limit_all_is_read() -> None:
    assert shares({Partition("t", 0): 5}, None) == {Partition("t", 0): 5}


@given(
    sizes=st.lists(st.integers(0, 5_000), max_size=8), tasks=st.integers(1, 6), least=st.integers(1, 1_000)
)
def test_tasks_hold_every_offset_once(sizes: list[int], tasks: int, least: int) -> None:
    ranges = [Range("t", n, 100, 100 + size, 3, False) for n, size in enumerate(sizes)]
    dealt = in_tasks(ranges, tasks, least)
    assert len(dealt) <= tasks
    assert all(dealt)
    offsets = [
        (each.number, offset) for task in dealt for each in task for offset in range(each.first, each.end)
    ]
    assert sorted(offsets) == [(each.number, o) for each in ranges for o in range(each.first, each.end)]
    assert all(each.leader_epoch == 3 for task in dealt for each in task)


def test_one_large_partition_is_read_by_all_tasks() -> None:
    assert len(in_tasks([Range("t", 0, 0, 100_000, 0, False)], 4, 20_000)) == 4
    assert len(in_tasks([Range("t", 0, 0, 30_000, 0, False)], 4, 20_000)) == 2
