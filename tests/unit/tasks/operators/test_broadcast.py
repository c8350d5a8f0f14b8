"""The halves of a BroadcastFunction in their tasks: what is read, what is refused, what is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.column_types import state_layout
from holdfast.runtime.epoch.list_state import OperatorLists, TakenLists, broadcast_lists, take_lists
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.state.cells.redistribution import ShardList
from holdfast.storage.urls import open_storage
from holdfast.tasks.held_lists import broadcast_entries, packed
from holdfast.tasks.messages import BroadcastLists, EpochWork, TaskResult, UnkeyedTask, Workspace
from holdfast.tasks.operators.broadcast import run_broadcast_rows
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.unkeyed import unkeyed_result
from holdfast.testing import Harness

RULES = pa.schema([("rule", pa.string()), ("most", pa.int64())])


class Judge(hf.BroadcastFunction):
    output = "user string, n long"
    outputs = {"changes": "rule string"}  # noqa: RUF012
    rules = hf.BroadcastState("string", "long")
    tags = hf.BroadcastState("string", "array<string>")
    seen = hf.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        if row.rule == "touch state":
            self.seen.value += 1
        if row.rule == "ask for the key":
            return [(ctx.key, 1)]
        self.rules[row.rule] = row.most
        ctx.emit_to("changes", (row.rule,))
        return None

    def process(self, row: Any, ctx: Any) -> Any:
        if row.user == "writer":
            self.rules["x"] = 1
        if row.user == "assigner":
            self.rules = {}
        self.seen.value += 1
        yield row.user, sum(self.rules.values())


def harness(**options: Any) -> Harness:
    return Harness(
        Judge(), key="user", schema="user string", right_schema="rule string, most long", **options
    )


def test_writing_where_rows_of_keys_are_handled_is_one_clear_error() -> None:
    judge = harness()
    judge.broadcast(("a", 1))
    with pytest.raises(hf.UserCodeError, match="'rules' is read-only here, as all keys share it; write"):
        judge.send(("writer",))
    with pytest.raises(hf.UserCodeError, match=r"'rules' is a state, not a variable; write self\.rules"):
        judge.send(("assigner",))
    assert judge.send(("anna",)) == [("anna", 1)]


def test_writing_a_broadcast_state_there_sets_no_row_aside() -> None:
    with pytest.raises(hf.UserCodeError, match="is read-only here") as refused:
        harness(on_error="dead-letter").send(("writer",))
    assert "dead-letter" not in str(refused.value)


def test_the_broadcast_half_has_no_key() -> None:
    judge = harness()
    with pytest.raises(hf.HoldfastError, match="state 'seen' has a value only inside process"):
        judge.broadcast(("touch state", 1))
    with pytest.raises(hf.UserCodeError, match="'BroadcastContext' object has no attribute 'key'") as failed:
        judge.broadcast(("ask for the key", 1))
    assert "function.broadcast" in str(failed.value)
    assert judge.broadcast_state == {}


def test_what_the_broadcast_half_gives_out_is_output_of_the_operator() -> None:
    judge = harness()
    judge.broadcast(("a", 1), ("b", 2))
    assert judge.output("changes") == [("a",), ("b",)]


def test_only_states_that_were_written_are_stored_again() -> None:
    layout = state_layout("judge.broadcast", BroadcastSide(Judge()), RULES, ())
    rows = pa.Table.from_pylist([{"rule": "a", "most": 1}], schema=RULES)
    ctx = EpochContext("judge.broadcast", 1, 0, 0, "fail")
    done = run_broadcast_rows(
        BroadcastSide(Judge()), layout.fields, rows, {"tags": ShardList([("k", [])])}, ctx
    )
    assert {name: list(held.items) for name, held in done.lists.items()} == {"rules": [("a", 1)]}


def test_tasks_of_the_epoch_read_what_its_commit_will_name(tmp_path: Path) -> None:
    """The bundle that holds a changed state is written at the end of the epoch, after they have read it."""
    storage = open_storage(str(tmp_path / "ck"))
    layout = state_layout("judge.broadcast", BroadcastSide(Judge()), RULES, ())
    field = layout.field("rules")
    before, after = (packed(layout.operator, field, ShardList([("a", each)])) for each in (1, 2))
    lists = {layout.operator: OperatorLists(({"rules": before},))}
    result = TaskResult(0, "host", "executor", lists={"rules": after})

    held = broadcast_lists(lists[layout.operator], [result])
    taken, bundle = TakenLists(), Bundle(storage, "data/bundle")
    take_lists(taken, layout.operator, [result], lists, bundle)
    assert broadcast_entries(storage, BroadcastLists(layout, held)) == {"rules": {"a": 2}, "tags": {}}
    assert taken.files[0].extent.checksum == held["rules"].payload.checksum
    bundle.write()
    committed = broadcast_lists(taken.after[layout.operator], [])
    assert broadcast_entries(storage, BroadcastLists(layout, committed)) == {"rules": {"a": 2}, "tags": {}}


def test_a_state_that_did_not_change_is_read_once(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "ck"))
    layout = state_layout("read.once", BroadcastSide(Judge()), RULES, ())
    held = packed("read.once", layout.field("rules"), ShardList([("a", 1)]))
    other = packed("read.once", layout.field("rules"), ShardList([("a", 2)]))
    first = broadcast_entries(storage, BroadcastLists(layout, {"rules": held}))
    assert broadcast_entries(storage, BroadcastLists(layout, {"rules": held}))["rules"] is first["rules"]
    assert broadcast_entries(storage, BroadcastLists(layout, {"rules": other}))["rules"] == {"a": 2}


def test_a_long_state_is_an_object_that_tasks_of_the_same_epoch_read(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "ck"))
    layout = state_layout("long.broadcast", BroadcastSide(Judge()), RULES, ())
    work = EpochWork(Workspace("job", storage.url, None, "memory"), epoch=1, attempt=1, run="r", clock_ms=0)
    task = UnkeyedTask(
        work=work, uid=layout.operator, function=BroadcastSide(Judge()), on_error="fail", outputs=("",),
        saves_state=True, layout=layout, lists=({},), order_by=("rule",),
    )  # fmt: skip
    names = [f"{number:05}-{number * 7919:x}" * 3 for number in range(5_000)]
    rows = pa.table([names[::-1], list(range(5_000, 0, -1))], schema=RULES)
    result = unkeyed_result(task, 0, rows.to_batches())
    assert result.failure is None
    assert result.lists["rules"].payload.extent is not None
    held = broadcast_lists(OperatorLists(({},)), [result])
    entries = broadcast_entries(storage, BroadcastLists(layout, held))["rules"]
    assert list(entries.items()) == list(zip(names, range(1, 5_001), strict=True))
