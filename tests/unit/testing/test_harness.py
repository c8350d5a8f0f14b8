"""A function in the harness behaves as it does in a job: epochs, checkpoints, crashes, refusals."""

from __future__ import annotations

import datetime as dt
import gc
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.testing import Harness


class Total(hf.KeyedFunction):
    output = "user string, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.total.value += row.n
        yield row.user, self.total.value


class Everything(hf.KeyedFunction):
    """Every kind of state, a side output, and a failure on negative numbers."""

    output = "user string, n long, seen long, epoch long, at long"
    outputs = {"large": "user string, n long"}  # noqa: RUF012
    last = hf.ValueState("struct<n:long,tags:array<string>>")
    items = hf.ListState("long")
    names = hf.MapState("string", "long")
    top = hf.ReducingState("long", max)

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.items.append(row.n)
        self.names[f"n{row.n}"] = row.n
        self.top.add(row.n)
        if row.n > 100:
            ctx.emit_to("large", row)
        if row.n < 0:
            raise ValueError("negative")
        if row.n == 0:
            for state in (self.last, self.items, self.names, self.top):
                state.clear()
        else:
            self.last.value = {"n": row.n, "tags": ["a", None]}
        yield row.user, row.n, len(self.items), ctx.epoch, ctx.timestamp


class Newest(hf.BatchFunction):
    output = "user string, before long"
    newest = hf.ValueState("long")

    def process(self, rows: pa.Table, ctx: hf.BatchContext) -> pa.Table:
        before = self.newest.column
        self.newest.column = rows["n"].combine_chunks().take(pa.array(range(len(ctx.keys))))
        return ctx.keys.append_column("before", before)


class Buffer(hf.OperatorFunction):
    """Gives rows out three at a time."""

    output = "n long, of long"
    waiting = hf.ListState("long")

    def process(self, row: hf.Row, ctx: hf.ShardContext) -> Any:
        self.waiting.append(row.n)
        if len(self.waiting) == 3:
            yield from [(n, ctx.shards) for n in self.waiting]
            self.waiting.clear()


def anna(n: int) -> dict[str, Any]:
    return {"user": "anna", "n": n}


def test_state_continues_from_send_to_send_and_outputs_add_up() -> None:
    totals = Harness(Total(), key="user")
    assert totals.send(anna(1), {"user": "ben", "n": 5}) == [("anna", 1), ("ben", 5)]
    (row,) = totals.send(anna(2))
    assert (row.user, row["total"]) == ("anna", 3)
    assert totals.outputs == [("anna", 1), ("ben", 5), ("anna", 3)]
    assert totals.state("anna") == {"total": 3}
    assert totals.state("nobody") == {}
    assert sorted(totals.keys) == ["anna", "ben"]


def test_rows_may_be_dicts_tuples_or_rows() -> None:
    totals = Harness(Total(), key="user", schema="user string, n long")
    (given,) = Harness(Total(), key="user").send(anna(1))
    assert totals.send(("anna", 1), {"n": 2}, ["anna", 3]) == [("anna", 1), ("anna", 4), (None, 2)]
    with pytest.raises(hf.DefinitionError, match=r"columns \['total'\] that are not among"):
        totals.send(given)


def test_a_crash_after_a_checkpoint_changes_nothing() -> None:
    through, crashing = (Harness(Everything(), key="user", checkpoint_every=1) for _ in range(2))
    for n in (1, 2, 200, 3):
        assert through.send(anna(n)) == crashing.send(anna(n))
        crashing.crash()
        assert crashing.replay() == []
    assert crashing.state("anna") == through.state("anna")
    assert crashing.state("anna") == {
        "last": (3, ["a", None]),
        "items": [1, 2, 200, 3],
        "names": {"n1": 1, "n2": 2, "n200": 200, "n3": 3},
        "top": 200,
    }
    assert crashing.output("large") == through.output("large") == [("anna", 200)]
    crashing.send(anna(0))
    crashing.crash()
    assert crashing.state("anna") == {}
    assert crashing.keys == []


def test_a_crash_throws_away_what_came_after_the_checkpoint_and_a_replay_brings_it_back() -> None:
    harness = Harness(Everything(), key="user", checkpoint_every=None)
    harness.clock(1_000)
    harness.send(anna(1))
    harness.checkpoint()
    first = harness.send(anna(2))
    harness.clock(dt.datetime(1970, 1, 1, 0, 0, 2))
    first += harness.send(anna(3))
    assert harness.outputs == [("anna", 1, 1, 1, 1_000)], "not checkpointed, so not shown"
    assert harness.state("anna")["items"] == [1, 2, 3]

    harness.crash()
    assert harness.state("anna")["items"] == [1]
    assert harness.replay() == first == [("anna", 2, 2, 2, 1_000), ("anna", 3, 3, 3, 2_000)]
    harness.checkpoint()
    harness.crash()
    assert harness.state("anna")["items"] == [1, 2, 3]
    assert harness.outputs == [("anna", 1, 1, 1, 1_000), *first]


def test_other_rows_after_a_crash_take_the_place_of_those_that_were_thrown_away() -> None:
    totals = Harness(Total(), key="user", checkpoint_every=2)
    totals.send(anna(1))
    totals.crash()
    totals.send(anna(10))
    assert totals.replay() == []
    totals.send(anna(20))
    assert totals.outputs == [("anna", 10), ("anna", 30)]


def test_a_send_that_fails_leaves_everything_as_it_was() -> None:
    harness = Harness(Everything(), key="user")
    harness.send(anna(1))
    before = harness.state("anna")
    with pytest.raises(hf.UserCodeError, match="ValueError: negative"):
        harness.send(anna(7), anna(-1))
    assert harness.state("anna") == before
    assert len(harness.outputs) == 1
    assert harness.send(anna(2)) == [("anna", 2, 2, 2, 0)], "the next send is the epoch that failed"


def test_dead_letters_hold_the_rows_that_failed() -> None:
    harness = Harness(Everything(), key="user", on_error="dead-letter")
    harness.send(anna(1), anna(-1), anna(2))
    (letter,) = harness.dead_letters
    assert (letter.key, letter.row, letter.epoch) == ("anna", '{"user":"anna","n":-1}', 1)
    assert "ValueError: negative" in letter.error
    assert harness.state("anna")["items"] == [1, 2]


def test_a_batch_function() -> None:
    harness = Harness(Newest(), key="user")
    assert harness.send(anna(1), {"user": "ben", "n": 2}) == [("anna", None), ("ben", None)]
    harness.crash()
    assert harness.send(anna(3)) == [("anna", 1)]


def test_an_operator_function_has_lists_instead_of_keys() -> None:
    harness = Harness(Buffer(), checkpoint_every=None)
    assert harness.send({"n": 1}, {"n": 2}) == []
    harness.checkpoint()
    assert harness.send({"n": 3}) == [(1, 1), (2, 1), (3, 1)]
    assert harness.state() == {"waiting": []}
    harness.crash()
    assert harness.state() == {"waiting": [1, 2]}
    assert harness.keys == []
    with pytest.raises(hf.DefinitionError, match="ask for state"):
        harness.state("anna")


def test_aggregates_are_emitted_once_per_key_and_send() -> None:
    harness = Harness.aggregate(key="user", total=hf.sum("n"), n=hf.count())
    assert harness.send(anna(1), anna(2), {"user": "ben", "n": 5}) == [("anna", 3, 2), ("ben", 5, 1)]
    harness.crash()
    assert harness.send(anna(4)) == [("anna", 7, 3)]


def test_several_key_columns_are_a_tuple() -> None:
    harness = Harness(Total(), key=["user", "day"], order_by="day", schema="user string, day int, n long")
    harness.send(("anna", 2, 5), ("anna", 1, 7))
    assert sorted(harness.keys) == [("anna", 1), ("anna", 2)]
    assert harness.state(("anna", 2)) == harness.state({"user": "anna", "day": 2}) == {"total": 5}


def declared() -> hf.Job:
    job = hf.Job("j")
    rows = job.source(hf.MemorySource([], schema="user string, n long"), uid="in")
    totals = rows.key_by("user", order_by="n").process(Total(), uid="totals", on_error="dead-letter")
    totals.key_by("total").aggregate(uid="users", users=hf.count()).sink(hf.MemorySink(), uid="out")
    rows.transform(lambda df: df).key_by("user").process(Total(), uid="behind")
    storage = hf.FileStateStorage("unused")
    rows.key_by("user").process(Total(), uid="alone", protection=hf.Uncoordinated(events=1, storage=storage))
    return job


def test_an_operator_is_taken_from_a_job_as_it_is_declared_there() -> None:
    totals = Harness.of(declared(), "totals")
    assert totals.send(("anna", 2), ("anna", None), ("anna", 1)) == [("anna", 1), ("anna", 3)]
    assert len(totals.dead_letters) == 1
    assert Harness.of(declared(), "users").send({"user": "anna", "total": 1}) == [(1, 1)]
    assert Harness.of(declared(), "behind", schema="user string, n long").send(("a", 1)) == [("a", 1)]


@pytest.mark.parametrize(
    ("uid", "said"),
    [
        ("total", "has no operator 'total'; there are: 'totals', 'users', 'behind', 'alone'"),
        ("behind", "not known without Spark; give schema="),
        ("alone", "saves its keys on their own"),
    ],
)
def test_what_cannot_be_taken_from_a_job_is_refused(uid: str, said: str) -> None:
    with pytest.raises(hf.DefinitionError, match=said):
        Harness.of(declared(), uid)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"user": "anna", "n": "1"}, "column 'n' of a row that was sent is declared long but got '1'"),
        ({"usr": "anna"}, r"columns \['usr'\] that are not among \['user', 'n'\]"),
        (("anna",), "has 1 values, the columns are"),
        ("anna", "'anna' is not a row; send a dict"),
        ({"n": 1}, "column 'user' of a row that was sent is declared not null but got None"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_whole(row: Any, said: str) -> None:
    totals = Harness(Total(), key="user", schema="user string not null, n long")
    with pytest.raises(hf.DefinitionError, match=said):
        totals.send(("anna", 1), row)
    assert totals.outputs == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("anna", 1)], "does not name its columns; send dicts"),
        ([anna(1), {"user": "ben", "n": "x"}], "column 'n' cannot be guessed from 1, 'x'"),
        ([{"user": "anna", "n": None}], "column 'n' cannot be guessed from None"),
    ],
)
def test_columns_that_cannot_be_guessed_are_asked_for(rows: list[Any], said: str) -> None:
    with pytest.raises(hf.DefinitionError, match=said):
        Harness(Total(), key="user").send(*rows)


def test_a_wrong_declaration_is_refused_as_in_a_job_at_the_line_of_the_test() -> None:
    with pytest.raises(hf.DefinitionError) as refused:
        Harness(Total(), key="usr", schema="user string, n long")
    assert str(refused.value).startswith("test_harness.py:")
    assert "key column 'usr' does not exist; there are user, n" in str(refused.value)
    with pytest.raises(hf.DefinitionError, match="only a function that sees single rows"):
        Harness(Newest(), key="user", schema="user string, n long", on_error="dead-letter")
    with pytest.raises(hf.DefinitionError, match="checkpoint_every=0 is below 1"):
        Harness(Total(), key="user", checkpoint_every=0)


def test_an_output_that_is_not_declared_is_refused() -> None:
    with pytest.raises(hf.DefinitionError, match="no side output 'lrage'; declared are: 'large'"):
        Harness(Everything(), key="user").output("lrage")


def test_the_clock_does_not_go_back() -> None:
    harness = Harness(Total(), key="user")
    harness.clock(5)
    with pytest.raises(ValueError, match=r"cannot go back to 1970-01-01 00:00:00.004"):
        harness.clock(4)


def test_before_anything_was_sent_there_is_nothing() -> None:
    harness = Harness(Total(), key="user")
    harness.crash()
    harness.checkpoint()
    assert (harness.send(), harness.outputs, harness.state("anna"), harness.keys) == ([], [], {}, [])


def test_what_a_function_keeps_on_itself_is_lost_as_in_a_job() -> None:
    class Forgetful(Total):
        seen = 0

        def process(self, row: hf.Row, ctx: hf.Context) -> Any:
            self.seen += 1
            yield row.user, self.seen

    harness = Harness(Forgetful(), key="user")
    assert harness.send(anna(1), anna(1)) == [("anna", 1), ("anna", 2)]
    assert harness.send(anna(1)) == [("anna", 1)]


def test_a_harness_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    harness = Harness(Total(), key="user")
    harness.send(anna(1))
    harness.crash()
    assert list(tmp_path.iterdir())
    del harness
    gc.collect()
    assert list(tmp_path.iterdir()) == []
