from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.chain.live_files import SharedList, is_outdated
from tests.unit.checkpoint.kept import snapshot

EDITS = st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(), max_size=4), st.integers(0, 3)))


@given(EDITS)
def test_every_version_keeps_its_items_whatever_is_made_of_the_others(
    edits: list[tuple[int, list[int], int]],
) -> None:
    versions: list[tuple[SharedList[int], list[int]]] = [(SharedList(), [])]
    for pick, more, dropped in edits:
        shared, items = versions[pick % len(versions)]
        grown, expected = shared.appended(more), [*items, *more]
        dropped = min(dropped, len(expected))
        versions.append((grown.without_first(dropped), expected[dropped:]))
    for shared, items in versions:
        assert list(shared) == items
        assert len(shared) == len(items)
        assert shared[:2] == items[:2]
        if items:
            assert (shared[0], shared[-1]) == (items[0], items[-1])


def test_a_snapshot_is_outdated_when_newer_ones_have_all_of_its_key_groups() -> None:
    left = snapshot(5, 0, 4, operator="a-1").object
    assert not is_outdated(left, [snapshot(4, 0, 4)])
    assert not is_outdated(left, [snapshot(6, 0, 2), snapshot(4, 2, 4)]), "a half of it is newer"
    assert is_outdated(left, [snapshot(6, 0, 2), snapshot(5, 2, 8)])
    assert not is_outdated(left, [snapshot(5, 0, 4, operator="a-1")]), "not by itself"
    assert not is_outdated("snapshots/000000000005/of-another-kind", [snapshot(6)]), "it does not tell"
