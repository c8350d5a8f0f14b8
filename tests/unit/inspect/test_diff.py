"""Two states beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import RestoreError
from holdfast.inspect import diff
from holdfast.inspect.diff import OperatorDifference, differences
from holdfast.inspect.stored_state import open_stored
from tests.unit.inspect.stored import MadeCheckpoint

LONG = "k" * 600


@pytest.fixture(params=["keys looked up", "everything read"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compare give the same."""
    if request.param == "everything read":
        monkeypatch.setattr(diff, "KEYS_MAX", -1)


def grown(tmp_path: Path, **options: int) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path, **options)
    made.commit({(f"u{i}", i): {"total": i, "tags": ["a"]} for i in range(30)}, snapshots=True)
    made.commit({("u1", 1): {"total": 100}, ("u2", 2): {}, ("new", 0): {"seen": {"p": 1, LONG: 2}}})
    return made


def of(made: MadeCheckpoint, a: int, b: int, examples: int = 10) -> OperatorDifference:
    before, after = (open_stored(made.url, commit=number) for number in (a, b))
    (one,) = differences(before, after, examples)
    return one


def test_what_was_added_removed_and_changed_is_counted_and_shown(tmp_path: Path) -> None:
    found = of(grown(tmp_path), 1, 2)
    assert (found.added, found.removed, found.changed, found.differs) == (1, 1, 1, True)
    by_kind = {example.kind: example for example in found.examples}
    assert by_kind["changed"].key == {"user": "u1", "day": 1}
    assert by_kind["changed"].before == {"total": 1, "tags": ["a"], "seen": None, "user": None}
    assert by_kind["changed"].after == {"total": 100, "tags": None, "seen": None, "user": None}
    assert by_kind["removed"].after is None
    assert by_kind["added"].before is None
    assert by_kind["added"].after is not None
    assert by_kind["added"].after["seen"] == [(LONG, 2), ("p", 1)] or by_kind["added"].after["seen"]


def test_the_other_way_round_added_is_removed(tmp_path: Path) -> None:
    found = of(grown(tmp_path), 2, 1)
    assert (found.added, found.removed, found.changed) == (1, 1, 1)
    assert {e.kind: e.key["user"] for e in found.examples} == {
        "added": "u2",
        "removed": "new",
        "changed": "u1",
    }


def test_equal_states_are_equal_whatever_files_they_lie_in(tmp_path: Path) -> None:
    made = grown(tmp_path)
    same = dict(made.model)
    made.commit({("u1", 1): {"total": 5}})
    made.rescale(3)
    made.commit({("u1", 1): same["u1", 1]}, snapshots=True)
    found = of(made, 2, made.view.number)
    assert not found.differs
    assert found.examples == []


def test_where_only_deltas_differ_the_rest_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)
    monkeypatch.setattr(diff, "KEYS_MAX", 100)
    monkeypatch.setattr(diff, "live_entries", lambda *args: pytest.fail("everything was read"))
    assert of(made, 1, 2).changed == 1


def test_a_change_that_only_a_newer_snapshot_holds_is_found(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.commit({("u5", 5): {"total": 500}}, snapshots=True)
    found = of(made, 2, 3)
    assert [(example.kind, example.key["user"]) for example in found.examples] == [("changed", "u5")]


def test_key_groups_of_the_very_same_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)
    read: list[str] = []
    plain = diff.live_entries

    def seen(stored, uid, groups=None):  # type: ignore[no-untyped-def]
        read.append(str(groups))
        return plain(stored, uid, groups)

    monkeypatch.setattr(diff, "live_entries", seen)
    assert not of(made, 2, 2).differs
    assert read == []


def test_a_key_with_only_its_name_left_does_not_count(tmp_path: Path) -> None:
    made = MadeCheckpoint(tmp_path)
    made.commit({("a", 1): {"total": 1}})
    made.commit({(LONG, 1): {"seen": {"p": 1}}})
    made.commit({(LONG, 1): {}})
    assert not of(made, 1, 3).differs


def test_examples_are_as_many_as_asked_for(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.commit({(f"u{i}", i): {"total": -1} for i in range(30)})
    found = of(made, 2, 3, examples=4)
    assert found.changed + found.added == 30
    assert len(found.examples) == 4


def test_other_numbers_of_key_groups_are_refused(tmp_path: Path) -> None:
    a, b = grown(tmp_path / "a", key_groups=8), grown(tmp_path / "b", key_groups=16)
    with pytest.raises(RestoreError, match=r"has 8 key groups.*has 16.*savepoints convert"):
        differences(open_stored(a.url), open_stored(b.url))


def test_lists_of_operators_without_keys_are_compared_item_by_item(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.commit_lists([1, 2, 2], [3])
    made.commit_lists([3, 1], [2, 4, 4])
    before, after = (open_stored(made.url, commit=number) for number in (3, 4))
    keyed, lists = differences(before, after)
    assert not keyed.differs
    assert (lists.uid, lists.added, lists.removed, lists.changed) == ("buffer", 2, 1, 0)
    assert [(e.kind, e.before, e.after) for e in lists.examples] == [
        ("removed", {"item": "2"}, None),
        ("added", None, {"item": "4"}),
    ]
    made.commit_lists([4], [4], [1, 2, 3])
    assert not differences(after, open_stored(made.url))[1].differs
