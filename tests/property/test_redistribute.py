"""Lists through any sequence of parallelisms."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.cells.redistribution import ShardList, redistributed

SHARDS = st.integers(1, 7)
CHANGES = st.lists(st.tuples(SHARDS, st.lists(st.integers(0, 6), max_size=5)), min_size=1, max_size=6)
"""Each: a new number of shards, and which shards then add an item each."""


@given(CHANGES)
def test_a_split_loses_and_doubles_nothing(changes: list[tuple[int, list[int]]]) -> None:
    fresh, added = count(), Counter[int]()
    lists = [ShardList([next(fresh) for _ in range(5)])]
    added.update(lists[0].items)
    for shards, adding in changes:
        lists = redistributed(lists, shards, "split")
        assert len(lists) == shards
        lengths = [len(each.items) for each in lists]
        assert max(lengths) - min(lengths) <= 1
        for shard in adding:
            item = next(fresh)
            added[item] += 1
            old = lists[shard % shards]
            lists[shard % shards] = ShardList([*old.items, item], old.inherited)
        assert Counter(item for each in lists for item in each.items) == added


@given(CHANGES, st.sets(st.integers(0, 40)))
def test_a_union_gives_everybody_everything_once(
    changes: list[tuple[int, list[int]]], replacing: set[int]
) -> None:
    """`replacing`: which of the additions come with a clear of the shard's list before."""
    fresh = count()
    lists = [ShardList([next(fresh) for _ in range(5)])]
    for shards, adding in changes:
        held = {item for each in lists for item in each.items}
        lists = redistributed(lists, shards, "union")
        for each in lists:
            assert Counter(each.items) == Counter(held), "everything that anybody had, once"
        for shard in adding:
            item, old = next(fresh), lists[shard % shards]
            cleared = item in replacing
            lists[shard % shards] = (
                ShardList([item]) if cleared else ShardList([*old.items, item], old.inherited)
            )
