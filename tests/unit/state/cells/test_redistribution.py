from __future__ import annotations

import pytest

from holdfast.state.cells.redistribution import ShardList, gathered, redistributed


def of(*lists: str) -> list[ShardList]:
    return [ShardList(tuple(items)) for items in lists]


def shown(lists: list[ShardList]) -> list[str]:
    return ["".join(each.items) for each in lists]


@pytest.mark.parametrize(
    ("lists", "shards", "dealt"),
    [
        (("abc", "de"), 3, ["ad", "be", "c"]),
        (("abc", "de"), 1, ["abcde"]),
        (("", "x"), 3, ["x", "", ""]),
        (("", ""), 3, ["", "", ""]),
        (("abc",), 1, ["abc"]),
    ],
)
def test_a_split_deals_the_items_out_in_the_order_of_the_shards(
    lists: tuple[str, ...], shards: int, dealt: list[str]
) -> None:
    assert shown(redistributed(of(*lists), shards, "split")) == dealt


def test_a_union_gives_everything_to_every_shard() -> None:
    assert shown(redistributed(of("abc", "de"), 3, "union")) == ["abcde"] * 3


def test_a_union_after_a_union_does_not_multiply() -> None:
    first = redistributed(of("ab", "c"), 3, "union")
    assert shown(redistributed(first, 2, "union")) == ["abc"] * 2


def test_what_shards_add_after_a_union_is_added_once_each() -> None:
    first, second, third = redistributed(of("ab"), 3, "union")
    grown = [ShardList([*first.items, "x"], 2), second, ShardList([*third.items, "y", "x"], 2)]
    assert shown(redistributed(grown, 2, "union")) == ["abxyx"] * 2


def test_what_came_by_union_goes_when_nobody_has_it_any_more() -> None:
    kept, replaced = ShardList("ab", 2), ShardList("c")
    assert gathered([replaced, kept]) == ["a", "b", "c"]
    assert gathered([replaced, replaced]) == ["c", "c"]


def test_a_state_that_is_split_from_now_on_is_dealt_out_once() -> None:
    everywhere = redistributed(of("ab", "c"), 3, "union")
    assert shown(redistributed(everywhere, 2, "split")) == ["ac", "b"]
