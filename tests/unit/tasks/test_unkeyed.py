"""Operators without keys, epoch after epoch, shard by shard, without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.view import EMPTY, fold, from_manifest, to_manifest
from holdfast.checkpoint.store.records import OperatorSchema, Parent, StateSchema
from holdfast.connectors.memory import MemorySource
from holdfast.graph.column_types import state_layout
from holdfast.graph.functions import OperatorFunction
from holdfast.graph.streams import Declaration
from holdfast.runtime.epoch.list_state import Lists, TakenLists, lists_of, take_lists
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.program import Program
from holdfast.state.cells.declarations import ListState
from holdfast.state.encoding.types import parse_schema, type_ddl
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.held_lists import unpacked
from holdfast.tasks.messages import (
    EpochWork,
    TaskResult,
    UnkeyedTask,
    Workspace,
    decode_result,
    encode_result,
)
from holdfast.tasks.task_output import INLINE_BYTES, StagedReader
from holdfast.tasks.unkeyed import unkeyed_result
from tests.unit.checkpoint.kept import draft

ROWS = parse_schema("word string")
LONG = [hashlib.sha512(str(number).encode()).hexdigest() for number in range(400)]
"""Words that make a list too long for a result."""


class Seen(OperatorFunction):
    output = "word string, n long"
    outputs: ClassVar = {"again": "word string, shard int"}
    words = ListState("string", redistribute="split")

    def process(self, row: Any, ctx: Any) -> Any:
        if row.word == "bad":
            self.words.append("half done")
            raise ValueError("a bad word")
        if row.word == "look":
            return
        if row.word == "clear":
            self.words.clear()
        elif row.word in list(self.words):
            ctx.emit_to("again", (row.word, ctx.shard))
        else:
            self.words.append(row.word)
        yield row.word, len(self.words)


class Everywhere(Seen):
    words = ListState("string", redistribute="union")


class WithMore(Seen):
    words = ListState("string", redistribute="split")
    more = ListState("int")


class Renamed(OperatorFunction):
    output = "word string, n long"
    heard = ListState("string", was="words")

    def process(self, row: Any, ctx: Any) -> Any:
        self.heard.append(row.word)


class Shop:
    """Runs one operator epoch after epoch; `commit` and `restart` as the driver would."""

    def __init__(self, path: Path, function: OperatorFunction, shards: int, *, saves: bool = True) -> None:
        self.storage = LocalStorage(path)
        self.workspace = Workspace("id", self.storage.url, None, "lmdb")
        self.function, self.shards, self.saves = function, shards, saves
        self.view, self.epoch, self.on_error = EMPTY, 0, "fail"
        self.lists: Lists = {}
        self.taken: list[TakenLists] = []
        self.outputs: dict[str, list[Any]] = {}
        self.restart(shards)

    @property
    def schema(self) -> OperatorSchema:
        layout = state_layout("op", self.function, ROWS, ())
        states = [
            StateSchema(id=f.id, name=f.name, kind=str(f.kind), type=type_ddl(f.type)) for f in layout.fields
        ]
        return OperatorSchema(uid="op", key=(), states=tuple(states))

    def restart(self, shards: int, function: OperatorFunction | None = None) -> None:
        """Forget everything that was not committed."""
        self.function, self.shards, self.taken = function or self.function, shards, []
        self.epoch = self.view.last_epoch
        job = Declaration("job")
        job.source(MemorySource([], schema="word string"), uid="in").process(self.function, uid="op")
        program = Program(job.graph(), (), {}, {}, {}, {})
        self.lists = lists_of(self.view, (self.schema,), program, shards, self.storage, self.saves)

    def run(self, *words: str) -> list[TaskResult]:
        """One epoch: a text of words for each shard that gets rows."""
        self.epoch += 1
        task = UnkeyedTask(
            work=EpochWork(self.workspace, self.epoch, 1, "run", clock_ms=7),
            uid="op",
            function=self.function,
            on_error=self.on_error,  # type: ignore[arg-type]
            outputs=("", "again", "!dead"),
            saves_state=self.saves,
            layout=state_layout("op", self.function, ROWS, ()),
            lists=self.lists["op"].shards,
        )
        given = [*words, *[""] * (self.shards - len(words))]
        results = [self.one(task, shard, text) for shard, text in enumerate(given)]
        taken, bundle = TakenLists(), Bundle(self.storage, f"data/{self.epoch:012d}/bundle")
        take_lists(taken, "op", results, self.lists, bundle if self.saves else None)
        bundle.write()
        self.lists |= taken.after
        self.taken.append(taken)
        return results

    def one(self, task: UnkeyedTask, shard: int, text: str) -> TaskResult:
        rows = pa.Table.from_arrays([pa.array(text.split(), pa.string())], schema=ROWS)
        result = decode_result(encode_result(unkeyed_result(task, shard, rows.to_batches())))
        self.outputs = {}
        for output in result.outputs:
            schemas = {"": parse_schema(Seen.output), "again": parse_schema("word string, shard int")}
            if output.name in schemas:
                reader = StagedReader(self.storage.url, (output.payload,), schemas[output.name])
                batches = reader(iter([pa.record_batch({"id": [0]})]))
                self.outputs[output.name] = [tuple(row.values()) for b in batches for row in b.to_pylist()]
        return result

    def commit(self) -> list[tuple[int, str]]:
        """Gives the shards and states that the record names."""
        files = [file for taken in self.taken for file in taken.files]
        parent = Parent(number=self.view.number, checksum=self.view.checksum)
        record = changed(
            draft(self.view, epochs=self.epoch - self.view.last_epoch),
            number=parent.number + 1, parent=parent, lists=tuple(files), operators=(self.schema,),
        )  # fmt: skip
        self.view = fold(self.view, record, f"sum-{record.number}")
        self.view = from_manifest(to_manifest(self.view), "m")
        self.taken = []
        return [(file.shard, file.state) for file in files]

    def held(self, state: str = "words") -> list[list[str]]:
        """What the next epoch will find, shard by shard."""
        field = state_layout("op", self.function, ROWS, ()).field(state)
        return [
            list(unpacked(self.storage, field, each[state]).items) if state in each else []
            for each in self.lists["op"].shards
        ]


def test_each_shard_keeps_a_list_of_its_own(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a b a", "a")
    assert shop.held() == [["a", "b"], ["a"]]
    (first, second) = shop.run("b c")
    assert shop.held() == [["a", "b", "c"], ["a"]]
    assert (first.rows, second.rows, second.lists) == (2, 0, {})


def test_outputs_and_side_outputs_come_with_the_row(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 1)
    shop.run("a b a")
    assert shop.outputs == {"": [("a", 1), ("b", 2), ("a", 2)], "again": [("a", 0)]}


def test_a_record_names_the_lists_that_changed_and_no_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 3)
    shop.run("a", "look", "b")
    assert shop.commit() == [(0, "words"), (2, "words")]
    shop.run("a", "look", "look")
    assert shop.commit() == []


def test_what_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a", "b")
    shop.commit()
    shop.run("c")
    shop.restart(2)
    assert shop.held() == [["a"], ["b"]]
    assert shop.lists["op"].stored


def test_an_emptied_list_stays_empty(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a b", "c")
    shop.commit()
    shop.run("clear", "clear")
    shop.commit()
    shop.restart(1)
    shop.run("look")
    assert shop.commit() == [(0, "words")]
    shop.restart(2)
    assert shop.held() == [[], []]


def test_the_first_epoch_of_a_new_parallelism_writes_all_lists(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a b c", "d e")
    shop.commit()
    shop.restart(3)
    assert shop.held() == [["a", "d"], ["b", "e"], ["c"]]
    shop.run("", "x")
    shop.run("y")
    shop.restart(3)
    assert shop.held() == [["a", "d"], ["b", "e"], ["c"]], "nothing of it was committed"
    shop.run("", "x")
    assert shop.commit() == [(0, "words"), (1, "words"), (2, "words")]
    shop.run("y")
    assert shop.commit() == [(0, "words")]
    shop.restart(3)
    assert shop.held() == [["a", "d", "y"], ["b", "e", "x"], ["c"]]
    shop.restart(1)
    assert shop.held() == [["a", "d", "y", "b", "e", "x", "c"]]


def test_an_epoch_without_any_row_still_writes_a_new_distribution(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a", "b")
    shop.commit()
    shop.restart(1)
    shop.run()
    assert shop.commit() == [(0, "words")]
    shop.restart(1)
    assert (shop.held(), shop.lists["op"].stored) == ([["a", "b"]], True)


def test_a_union_gives_all_to_all_and_is_stored_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Everywhere(), 2)
    shop.run("a b", "c")
    shop.commit()
    shop.restart(3)
    assert shop.held() == [["a", "b", "c"]] * 3
    shop.run("", "x")
    shop.commit()
    first, second, third = shop.view.lists["op"]
    assert first.extent == third.extent != second.extent
    shop.restart(2)
    assert shop.held() == [["a", "b", "c", "x"]] * 2, "what everybody had is there once"


def test_a_union_forgets_what_every_shard_cleared(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Everywhere(), 1)
    shop.run("a b")
    shop.commit()
    shop.restart(2)
    shop.run("clear x", "clear y")
    shop.commit()
    shop.restart(3)
    assert shop.held() == [["x", "y"]] * 3


def test_a_state_that_is_new_begins_empty_and_the_others_stay(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a", "b")
    shop.commit()
    shop.restart(2, WithMore())
    assert (shop.held(), shop.held("more")) == ([["a"], ["b"]], [[], []])
    shop.run("c")
    assert len(shop.commit()) == 4, "the set is written anew under the new schema"
    shop.restart(2)
    assert shop.held() == [["a", "c"], ["b"]]


def test_a_renamed_list_is_found_by_its_number_and_written_under_its_new_name(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    shop.run("a", "b")
    shop.commit()
    shop.restart(2, Renamed())
    assert shop.held("heard") == [["a"], ["b"]]
    shop.run("c")
    assert shop.commit() == [(0, "heard"), (1, "heard")]
    assert {file.state for file in shop.view.lists["op"]} == {"heard"}
    shop.restart(2)
    assert shop.held("heard") == [["a", "c"], ["b"]]


def test_long_lists_are_objects_of_their_own(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2)
    words = " ".join(LONG)
    shop.run(words, "a")
    shop.commit()
    long, short = shop.view.lists["op"]
    assert long.extent.length > INLINE_BYTES
    assert long.extent.object.endswith("list.arrow")
    assert short.extent.object.endswith("bundle")
    shop.restart(2)
    assert shop.held()[0] == LONG


def test_where_state_is_not_saved_lists_live_in_memory_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 2, saves=False)
    words = " ".join(LONG)
    shop.run("a", words)
    shop.run("b")
    assert shop.held() == [["a", "b"], LONG]
    assert shop.commit() == []
    assert not [entry.name for entry in shop.storage.list("data/") if "list" in entry.name]
    shop.restart(2)
    assert shop.held() == [[], []]


def test_lists_of_a_run_that_saved_them_are_not_taken_up_by_one_that_does_not(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 1)
    shop.run("a")
    shop.commit()
    shop.saves = False
    shop.restart(1)
    assert shop.held() == [[]]


def test_a_damaged_list_is_told_and_never_read_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 1)
    shop.run("a b")
    shop.commit()
    (kept,) = shop.view.lists["op"]
    data = bytearray(shop.storage.get(kept.extent.object))
    data[kept.extent.offset + kept.extent.length // 2] ^= 1
    (tmp_path / kept.extent.object).write_bytes(data)
    (result,) = shop.run("c")
    assert result.failure is not None
    assert result.failure.kind == "CorruptionError"
    assert kept.extent.object in str(result.failure.args)


def test_a_failing_row_ends_the_task_with_the_row(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 1)
    (result,) = shop.run("a bad")
    assert result.failure is not None
    assert result.failure.kind == "UserCodeError"
    assert "bad" in result.failure.args[3]
    assert "a bad word" in result.failure.args[4]


def test_a_dead_letter_leaves_nothing_in_the_list(tmp_path: Path) -> None:
    shop = Shop(tmp_path, Seen(), 1)
    shop.on_error = "dead-letter"
    (result,) = shop.run("a bad b")
    assert shop.held() == [["a", "b"]]
    assert {output.name: output.rows for output in result.outputs} == {"": 2, "!dead": 1}


@pytest.mark.parametrize("sequence", [(2, 3, 1), (1, 4, 2, 5), (3, 3, 2)])
def test_a_split_keeps_every_word_through_all_restarts(tmp_path: Path, sequence: Sequence[int]) -> None:
    shop = Shop(tmp_path, Seen(), sequence[0])
    expected = set()
    for number, shards in enumerate(sequence):
        shop.restart(shards)
        for shard in range(shards):
            words = [f"w{number}-{shard}-{k}" for k in range(shard + 1)]
            shop.run(*[""] * shard, " ".join(words))
            expected |= set(words)
        shop.commit()
    found = [word for each in shop.held() for word in each]
    assert sorted(found) == sorted(expected)
