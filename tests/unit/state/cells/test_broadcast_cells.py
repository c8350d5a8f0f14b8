"""A broadcast state as a dict that one half writes and the other reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast as hf
from holdfast.state.cells.broadcast_cells import BroadcastCell, BroadcastView
from holdfast.state.cells.misuse import Misuse
from holdfast.state.cells.shard_list import pack_list, unpack_list


class Kept:
    rules = hf.BroadcastState("string", "struct<most:long>")
    tags = hf.BroadcastState("long", "array<string>")
    days = hf.BroadcastState("timestamp", "array<string>")


RULES, TAGS, DAYS = (
    Kept.__dict__[name].field(number) for number, name in enumerate(("rules", "tags", "days"), 1)
)


def test_it_behaves_like_a_dict_and_is_stored_as_its_entries() -> None:
    cell = BroadcastCell(RULES, {})
    assert not cell.changed
    cell["a"] = (1,)
    cell["b"] = {"most": 2}
    cell.update({"c": (3,)})
    assert cell.pop("a").most == 1
    assert (dict(cell), len(cell), "a" in cell) == ({"b": (2,), "c": (3,)}, 2, False)
    assert cell.setdefault("b", (9,)).most == 2
    assert cell.changed
    again = unpack_list(pack_list("op.broadcast", RULES, cell.items_held()), RULES, "test")
    assert dict(BroadcastCell(RULES, dict(again))) == {"b": (2,), "c": (3,)}
    cell.clear()
    assert cell.items_held() == []
    with pytest.raises(KeyError):
        del cell["b"]


def test_a_key_may_be_given_in_any_form_that_fits() -> None:
    """A datetime without a time zone is in UTC, here as everywhere."""
    at, naive = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)
    cell = BroadcastCell(DAYS, {at: ["x"]})
    cell[naive].append("y")
    assert cell.items_held() == [(at, ["x", "y"])]
    view = BroadcastView(DAYS, {at: ["x"]})
    assert view[naive] == ["x"]
    view.check()
    assert cell.pop(naive) == ["x", "y"]
    assert cell.items_held() == []


def test_the_entries_that_it_began_with_stay_as_they_were() -> None:
    start: dict[Any, Any] = {1: ["x"]}
    cell = BroadcastCell(TAGS, start)
    cell[1].append("y")
    cell[2] = []
    assert cell.items_held() == [(1, ["x", "y"]), (2, [])]
    assert start == {1: ["x"]}


def test_what_does_not_fit_is_refused() -> None:
    cell = BroadcastCell(RULES, {})
    for key in (None, 1):
        with pytest.raises(TypeError, match="the key of broadcast state 'rules'"):
            cell[key] = (1,)
        with pytest.raises(TypeError, match="the key of broadcast state 'rules'"):
            cell.get(key)
    with pytest.raises(TypeError, match="state 'rules'"):
        cell["a"] = ("many",)
    assert not cell.changed


def test_a_row_that_failed_is_undone() -> None:
    cell = BroadcastCell(TAGS, {1: ["x"], 2: ["y"]})
    cell[3] = ["z"]
    mark = cell.mark()
    cell[1].append("more")
    del cell[2]
    cell[3] = []
    cell[4] = []
    cell.check()
    cell.undo(mark)
    assert dict(cell) == {1: ["x"], 2: ["y"], 3: ["z"]}


@pytest.mark.parametrize(
    "write",
    [
        lambda rules: rules.__setitem__("a", (2,)),
        lambda rules: rules.__delitem__("a"),
        lambda rules: rules.update(a=(2,)),
        lambda rules: rules.pop("a"),
        lambda rules: rules.popitem(),
        lambda rules: rules.setdefault("b", (1,)),
        lambda rules: rules.clear(),
    ],
)
def test_readers_cannot_write(write: Any) -> None:
    view = BroadcastView(RULES, {"a": (1,)})
    with pytest.raises(Misuse, match=r"'rules' is read-only here.*; write it in process_broadcast"):
        write(view)
    assert dict(view) == {"a": (1,)}


def test_readers_cannot_write_in_place_either() -> None:
    entries: dict[Any, Any] = {1: ["x"]}
    view = BroadcastView(TAGS, entries)
    view.load(0)
    assert view[1] == ["x"]
    view.keep(0)
    view[1].append("y")
    with pytest.raises(Misuse, match="broadcast state 'tags' is read-only here"):
        view.keep(0)
    view.undo(view.mark())
    assert (view[1], entries) == (["x"], {1: ["x"]})
