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
    dealt = in_tasks(ranges, {each.partition: Place(each.end, 5) for each in ranges}, tasks, least)
    assert len(dealt) <= tasks
    assert all(dealt)
    offsets = [
        (each.number, offset) for task in dealt for each in task for offset in range(each.first, each.end)
    ]
    assert sorted(offsets) == [(each.number, o) for each in ranges for o in range(each.first, each.end)]
    epochs = {each.leader_epoch == (3 if each.first == 100 else -1) for task in dealt for each in task}
    assert epochs <= {True}, "the position's epoch says nothing of places within the range"


def test_an_epoch_is_compared_only_where_leaders_have_changed() -> None:
    whole = Range("t", 0, 100, 200, 3, False)
    for end_epoch, compared in ((3, -1), (4, 3)):
        ((piece,),) = in_tasks([whole], {whole.partition: Place(200, end_epoch)}, 1, 1)
        assert piece.leader_epoch == compared


def test_one_large_partition_is_read_by_all_tasks() -> None:
    ends = {Partition("t", 0): Place(100_000, 0)}
    assert len(in_tasks([Range("t", 0, 0, 100_000, 0, False)], ends, 4, 20_000)) == 4
    assert len(in_tasks([Range("t", 0, 0, 30_000, 0, False)], ends, 4, 20_000)) == 2
