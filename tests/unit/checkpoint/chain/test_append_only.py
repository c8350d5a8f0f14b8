from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.chain.append_only import Prefix

EDITS = st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(), max_size=4), st.integers(0, 3)))


@given(EDITS)
def test_every_version_keeps_its_items_whatever_is_made_of_the_others(
    edits: list[tuple[int, list[int], int]],
) -> None:
    versions: list[tuple[Prefix[int], list[int]]] = [(Prefix(), [])]
    for pick, more, dropped in edits:
        prefix, items = versions[pick % len(versions)]
        grown, expected = prefix.appended(more), [*items, *more]
        dropped = min(dropped, len(expected))
        versions.append((grown.without_first(dropped), expected[dropped:]))
    for prefix, items in versions:
        assert list(prefix) == items
        assert len(prefix) == len(items)
        assert prefix[:2] == items[:2]
        if items:
            assert (prefix[0], prefix[-1]) == (items[0], items[-1])
