from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, RestoreError
from holdfast.state.cells.redistribution import ShardList
from holdfast.state.cells.shard_list import LIST_FORMAT, OperatorListCell, pack_list, unpack_list
from holdfast.state.encoding.layout import StateField, StateKind
from holdfast.state.encoding.types import parse_type


def state(type: str = "string") -> StateField:
    return StateField(1, "seen", StateKind.LIST, parse_type(type))


@pytest.mark.parametrize(
    ("type", "items"),
    [
        ("string", ["a", None, "", "\u2603"]),
        ("long", []),
        ("struct<a:int,b:array<string>>", [(1, ["x", None]), None, (None, [])]),
        ("map<string,double>", [{"x": 1.5}, {}]),
        ("decimal(10,2)", [Decimal("1.50")]),
        ("timestamp", [dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)]),
        ("binary", [b"\x00\xff"]),
    ],
)
def test_a_list_reads_back_as_it_was(type: str, items: list[Any]) -> None:
    assert unpack_list(pack_list("op", state(type), items), state(type), "here") == items


def test_the_bytes_say_what_they_are() -> None:
    table = pa.ipc.open_stream(pack_list("op", state("int"), [1])).read_all()
    assert table.to_pydict() == {"item": [1]}
    assert table.schema.metadata == {
        b"holdfast.format": b"1",
        b"holdfast.operator": b"op",
        b"holdfast.state": b"seen",
        b"holdfast.type": b"int",
    }


def test_narrower_numbers_are_widened_and_nothing_else_is_guessed() -> None:
    data = pack_list("op", state("int"), [1, None])
    assert unpack_list(data, state("long"), "here") == [1, None]
    big = pack_list("op", state("long"), [1 << 40])
    with pytest.raises(RestoreError, match="declared int, the list in here holds long that does not fit"):
        unpack_list(big, state("int"), "here")


def test_damage_is_refused_by_name() -> None:
    with pytest.raises(CorruptionError, match="the list in here cannot be read"):
        unpack_list(pack_list("op", state(), ["a"])[:40], state(), "here")


@pytest.mark.parametrize("format", [str(LIST_FORMAT + 1), None])
def test_another_format_is_refused(format: str | None) -> None:
    metadata = {} if format is None else {"holdfast.format": format}
    schema = pa.schema([("item", pa.string())], metadata=metadata)
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, schema):
        pass
    with pytest.raises(RestoreError, match="upgrade Holdfast"):
        unpack_list(buffer.getvalue().to_pybytes(), state(), "here")


def test_a_cell_is_a_list() -> None:
    cell = OperatorListCell(state(), ShardList(["a"]))
    assert not cell.changed
    cell.append("b")
    cell.extend(["c", "d"])
    assert (list(cell), len(cell), cell.changed) == (["a", "b", "c", "d"], 4, True)
    cell.replace(item for item in cell if item > "b")
    assert list(cell) == ["c", "d"]
    cell.clear()
    assert (list(cell), len(cell)) == ([], 0)


def test_a_cell_refuses_what_does_not_fit() -> None:
    cell = OperatorListCell(state("int"), ShardList())
    with pytest.raises(TypeError, match="state 'seen' is declared int but got 'a'"):
        cell.append("a")
    assert not cell.changed


def test_an_item_changed_in_place_counts_as_the_list_replaced() -> None:
    held = ShardList([[1], [5]], inherited=2)
    cell = OperatorListCell(state("array<int>"), held)
    assert list(cell) == [[1], [5]]
    assert not cell.changed
    mark = cell.mark()
    next(iter(cell)).append(2)
    added = [3]
    cell.append(added)
    added.append(4)
    assert list(cell) == [[1, 2], [5], [3]]
    assert cell.changed
    assert cell.held() == ShardList([[1, 2], [5], [3]], inherited=0)
    cell.undo(mark)
    assert cell.held() == held
    assert not cell.changed
    next(iter(cell)).append("x")
    with pytest.raises(TypeError, match=r"state '.*' is declared array<int> but got 'x' \(str\) at \[1\]"):
        cell.check()


def test_undoing_brings_back_what_was_and_what_was_inherited() -> None:
    cell = OperatorListCell(state(), ShardList(["a"], inherited=1))
    mark = cell.mark()
    cell.append("b")
    cell.replace(["x"])
    assert cell.held() == ShardList(["x"], inherited=0)
    cell.undo(mark)
    assert cell.held() == ShardList(["a"], inherited=1)
    assert not cell.changed


def test_adding_keeps_what_was_inherited_apart() -> None:
    cell = OperatorListCell(state(), ShardList(["a"], inherited=1))
    cell.append("b")
    assert cell.held() == ShardList(["a", "b"], inherited=1)
    cell.clear()
    cell.append("c")
    assert cell.held() == ShardList(["c"], inherited=0)
