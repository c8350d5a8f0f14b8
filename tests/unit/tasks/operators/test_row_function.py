from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import RetryableError, UserCodeError
from holdfast.graph.functions import KeyedFunction, mistakes
from holdfast.graph.job_graph import OnError
from holdfast.state.cells.declarations import ListState, MapState, ValueState
from holdfast.state.encoding.row_objects import row_class
from holdfast.state.encoding.types import parse_schema
from tests.unit.tasks.operators.operator_kit import Harness

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMED = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Total(KeyedFunction):
    output = "k long, total long"
    total = ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.v
        yield row.k, self.total.value


class Picky(KeyedFunction):
    """Writes every kind of state and both outputs, then fails on negative values."""

    output = "k string, v long"
    outputs = {"seen": "v long"}  # noqa: RUF012
    total = ValueState("long", default=0)
    items = ListState("long")
    names = MapState("string", "long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.v
        self.items.append(row.v)
        self.names[f"n{row.v}"] = row.v
        ctx.emit_to("seen", (row.v,))
        yield row.k, self.total.value
        if row.v < 0:
            raise ValueError("negative\nvalue")


def test_state_continues_in_the_next_epoch() -> None:
    job = Harness(Total(), ROWS, ["k"])
    assert job.rows_of([(1, 5), (2, 7), (1, 6)]) == [(1, 5), (1, 11), (2, 7)]
    assert job.rows_of([(1, 1), (3, 0)]) == [(1, 12), (3, 0)]


def test_each_value_state_is_read_with_one_call_for_all_keys() -> None:
    job = Harness(Total(), ROWS, ["k"])
    job.epoch_of([(k, 1) for k in range(100)])
    assert (job.state.get_manys, job.state.gets) == (1, 0)


def test_unchanged_keys_have_no_change() -> None:
    class Reader(Total):
        def process(self, row: Any, ctx: Any) -> Any:
            if row.v:
                self.total.value = row.v

    changes = Harness(Reader(), ROWS, ["k"]).epoch_of([(1, 0), (2, 3), (3, 0)]).changes
    assert [changes.keys[0][int(row)].as_py() for row in changes.values["total"].rows] == [2]


def test_same_rows_and_state_give_the_same_result() -> None:
    rows = [(k * 31 % 17, k) for k in range(200)]
    first, second = (Harness(Total(), ROWS, ["k"]).compute(rows) for _ in range(2))
    assert first.outputs[""].equals(second.outputs[""])
    assert first.changes.bases == second.changes.bases
    assert first.changes.values["total"].values.equals(second.changes.values["total"].values)


def test_more_keys_than_sixteen_bits_are_kept_apart() -> None:
    rows = [(k % 70_000, k // 70_000 + 1) for k in range(140_000)]
    out = Harness(Total(), ROWS, ["k"]).epoch_of(rows).outputs[""].to_pydict()
    assert out["k"] == [k for k in range(70_000) for _ in range(2)]
    assert out["total"] == [1, 3] * 70_000


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        ((pa.string(),), [("a",), ("b",), (None,), ("",)]),
        ((pa.int64(), pa.string()), [(1, "a"), (1, "b"), (2, "a"), (None, "a"), (1, None)]),
        ((pa.bool_(), pa.int32(), pa.date32()), [(True, 1, None), (False, 1, None), (True, 2, None)]),
        ((pa.struct([("a", pa.int64())]),), [({"a": 1},), ({"a": 2},), (None,)]),
        ((pa.float64(), pa.int64()), [(0.5, 1), (0.5, 2), (None, 1)]),
    ],
)
def test_rows_meet_under_equal_keys_only(types: Any, keys: Any) -> None:
    class Count(KeyedFunction):
        output = "n long"
        n = ValueState("long", default=0)

        def process(self, row: Any, ctx: Any) -> Any:
            assert ctx.key == (row.k0 if len(types) == 1 else tuple(row[: len(types)]))
            self.n.value += 1
            yield (self.n.value,)

    schema = pa.schema([(f"k{i}", type) for i, type in enumerate(types)])
    job = Harness(Count(), schema, schema.names)
    assert job.rows_of(keys * 2) == sorted([(1,), (2,)] * len(keys))
    assert job.rows_of(keys) == [(3,)] * len(keys)


def test_zeros_of_either_sign_are_one_key_and_so_are_nans() -> None:
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])

    class Sum(KeyedFunction):
        output = "total long"
        total = ValueState("long", default=0)

        def process(self, row: Any, ctx: Any) -> Any:
            self.total.value += row.v
            yield (self.total.value,)

    nan = float("nan")
    assert Harness(Sum(), schema, ["k"]).rows_of([(0.0, 1), (-0.0, 2), (nan, 10), (nan, 20)]) == [
        (1,), (3,), (10,), (30,),
    ]  # fmt: skip


def test_order_by_sorts_the_rows_of_a_key_and_keeps_ties_in_place() -> None:
    schema = pa.schema([("k", pa.int64()), ("ts", pa.int64()), ("tie", pa.string())])

    class Trail(KeyedFunction):
        output = "k long, trail string"
        trail = ValueState("string", default="")

        def process(self, row: Any, ctx: Any) -> Any:
            self.trail.value += row.tie
            yield row.k, self.trail.value

    rows = [(1, 3, "d"), (2, 1, "x"), (1, 1, "a"), (1, 2, "b"), (1, 2, "c"), (2, None, "w")]
    out = Harness(Trail(), schema, ["k"], order_by=["ts"]).rows_of(rows)
    assert max(r for r in out if r[0] == 1) == (1, "abcd")
    assert max(r for r in out if r[0] == 2) == (2, "wx")


def test_columns_are_read_by_attribute_name_and_place() -> None:
    row: Any = tuple.__new__(row_class(("a", "two words", "_id", "class", "count")), (1, 2, 3, 4, 5))
    assert (row.a, row["two words"], row._id, row.count, row[0]) == (1, 2, 3, 5, 1)
    assert (row["class"], getattr(row, "class"), row["count"], row[1:3]) == (4, 4, 5, (2, 3))


def test_output_rows_may_be_dicts_named_tuples_lists_or_returned() -> None:
    class Echo(KeyedFunction):
        output = "v long, k string"

        def process(self, row: Any, ctx: Any) -> Any:
            made = {1: {"k": row.k, "v": row.v}, 2: row, 3: [row.v, row.k], 4: (row.v, row.k)}
            return [made[row.v]] if row.v in made else None

    rows = [("a", n) for n in range(6)]
    assert Harness(Echo(), NAMED, ["k"]).rows_of(rows) == [(n, "a") for n in range(1, 5)]


def test_side_outputs_and_the_clock_of_the_plan_reach_the_function() -> None:
    class Side(KeyedFunction):
        output = "k string"
        outputs = {"big": "epoch long, at long"}  # noqa: RUF012

        def process(self, row: Any, ctx: Any) -> Any:
            ctx.emit_to("big", (ctx.epoch, ctx.timestamp))

    job = Harness(Side(), NAMED, ["k"])
    assert job.rows_of([("a", 1)], "big") == [(1, 1_000)]


def test_open_is_called_once_before_the_rows_and_the_users_object_stays_clean() -> None:
    class Opened(Total):
        def open(self, ctx: Any) -> None:
            self.opened = getattr(self, "opened", 0) + 1

        def process(self, row: Any, ctx: Any) -> Any:
            yield row.k, self.opened

    function = Opened()
    job = Harness(function, ROWS, ["k"])
    assert job.rows_of([(1, 1), (2, 1)]) == [(1, 1), (2, 1)]
    assert job.rows_of([(1, 1)]) == [(1, 1)]
    assert vars(function) == {}


def test_a_failure_names_operator_epoch_key_row_and_line() -> None:
    with pytest.raises(UserCodeError) as caught:
        Harness(Picky(), NAMED, ["k"]).epoch_of([("a", 1), ("b", -2)])
    error = caught.value
    assert (error.uid, error.epoch, error.key, json.loads(error.row)) == ("op", 1, "b", {"k": "b", "v": -2})
    line = Picky.process.__code__.co_firstlineno + 7
    assert error.cause == f"ValueError: negative value at {__file__}:{line}"
    assert "\n" not in str(error)


def test_a_failure_of_open_or_of_what_process_returns_is_the_functions_too() -> None:
    class Shut(Total):
        def open(self, ctx: Any) -> None:
            raise OSError("no model")

    with pytest.raises(UserCodeError, match=r"OSError: no model at .*test_row_function\.py"):
        Harness(Shut(), ROWS, ["k"], on_error="dead-letter").epoch_of([(1, 1)])


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (5, "TypeError: process() returned 5 (int); yield each output row, or return a list of rows"),
        ("anna", "(str); yield each"),
        ({"k": 1, "total": 2}, "(str); yield each"),
        ((1, 2), "an output row is 1 (int); yield each row as a tuple or a dict, or return a list of them"),
    ],
)
def test_a_row_that_is_returned_instead_of_yielded_is_refused(returned: Any, cause: str) -> None:
    class Returning(Total):
        def process(self, row: Any, ctx: Any) -> Any:
            return returned

    with pytest.raises(UserCodeError) as caught:
        Harness(Returning(), ROWS, ["k"]).epoch_of([(1, 1)])
    assert cause in caught.value.cause
    assert (caught.value.uid, caught.value.key) == ("op", "1")
    dead = Harness(Returning(), ROWS, ["k"], on_error="dead-letter").epoch_of([(1, 1)]).outputs["!dead"]
    assert "; yield each" in dead["error"][0].as_py()


def test_a_row_for_no_declared_side_output_is_refused() -> None:
    class Stray(Picky):
        def process(self, row: Any, ctx: Any) -> Any:
            ctx.emit_to(row.k, (row.v,))

    for name in ("sen", ""):
        with pytest.raises(UserCodeError) as caught:
            Harness(Stray(), NAMED, ["k"]).epoch_of([(name, 1)])
        cause = f"there is no side output {name!r}; declared in outputs = {{...}}: 'seen'"
        assert cause in caught.value.cause
        assert "test_row_function.py" in caught.value.cause


def test_a_row_that_does_not_fit_its_side_output_names_it_and_the_key() -> None:
    class Stray(Picky):
        def process(self, row: Any, ctx: Any) -> Any:
            ctx.emit_to("seen", (row.v if row.k == "good" else "x",))

    with pytest.raises(UserCodeError) as caught:
        Harness(Stray(), NAMED, ["k"]).epoch_of([("good", 1), ("bad", 2), ("good", 3)])
    cause = "output column 'v' of side output 'seen' is declared long but got 'x' (str); give an int"
    assert (caught.value.cause, caught.value.key) == (cause, "bad")


def test_a_struct_in_a_row_is_a_row_and_may_be_given_out_again() -> None:
    schema = parse_schema("k string, at struct<x:long,tags:array<string>>")

    class Echo(KeyedFunction):
        output = "k string, at struct<x:long,tags:array<string>>"

        def process(self, row: Any, ctx: Any) -> Any:
            yield row
            yield row.k, row.at._replace(x=row.at.x + 1)
            yield {"k": row["k"], "at": {"tags": row.at["tags"], "x": 0}}
            if row.k == "bad":
                raise ValueError

    job = Harness(Echo(), schema, ["k"], on_error="dead-letter")
    result = job.epoch_of([("a", {"x": 1, "tags": ["t"]}), ("bad", {"x": 2, "tags": None})])
    assert [row["at"] for row in result.outputs[""].to_pylist()] == [
        {"x": 1, "tags": ["t"]}, {"x": 2, "tags": ["t"]}, {"x": 0, "tags": ["t"]},
    ]  # fmt: skip
    assert json.loads(result.outputs["!dead"]["row"][0].as_py()) == {"k": "bad", "at": {"x": 2, "tags": None}}


def test_a_row_says_what_it_has_and_travels() -> None:
    row: Any = tuple.__new__(row_class(("a", "two words")), (1, {"x": 2}))
    assert repr(row) == "Row(a=1, two words={'x': 2})"
    assert pickle.loads(pickle.dumps(row)) == row
    assert row._replace(**{"two words": 3})._asdict() == {"a": 1, "two words": 3}
    with pytest.raises(KeyError, match="there is no column 'b'; there are a, two words"):
        row["b"]
    with pytest.raises(TypeError, match="there are no columns"):
        row._replace(b=1)
    with pytest.raises(AttributeError):
        row.a = 5


def test_the_line_shown_is_the_users_even_when_a_library_raised() -> None:
    class Parse(KeyedFunction):
        output = "k string"

        def process(self, row: Any, ctx: Any) -> Any:
            json.loads("{")

    with pytest.raises(UserCodeError, match=r"JSONDecodeError.*test_row_function\.py"):
        Harness(Parse(), NAMED, ["k"]).epoch_of([("a", 1)])


def test_a_dead_letter_leaves_neither_state_nor_output_behind() -> None:
    aside = Harness(Picky(), NAMED, ["k"], on_error="dead-letter")
    clean = Harness(Picky(), NAMED, ["k"])
    rows = [("a", 1), ("a", -2), ("a", 3), ("b", -1)]
    result = aside.epoch_of(rows)
    expected = clean.epoch_of([row for row in rows if row[1] > 0])
    assert aside.state.entries == clean.state.entries
    assert result.outputs[""].equals(expected.outputs[""])
    assert result.outputs["seen"].equals(expected.outputs["seen"])
    dead = result.outputs["!dead"].to_pylist()
    assert [(json.loads(d["row"])["v"], d["key"], d["epoch"]) for d in dead] == [(-2, "a", 1), (-1, "b", 1)]
    assert all(d["error"].startswith("ValueError: negative value at ") for d in dead)


def test_a_row_whose_state_or_output_does_not_fit_is_a_dead_letter_too() -> None:
    class Sloppy(KeyedFunction):
        output = "k string, v long"
        total = ValueState("long", default=0)

        def process(self, row: Any, ctx: Any) -> Any:
            if row.v == 1:
                self.total.value = "one"
            elif row.v == 2:
                self.total.value += 5
                yield row.k, "two"
            else:
                self.total.value += row.v
                yield row.k, self.total.value

    result = Harness(Sloppy(), NAMED, ["k"], on_error="dead-letter").epoch_of([("a", 1), ("a", 2), ("a", 3)])
    assert result.outputs[""].to_pylist() == [{"k": "a", "v": 3}]
    errors = result.outputs["!dead"]["error"].to_pylist()
    assert "state 'total' is declared long but got 'one' (str)" in errors[0]
    assert errors[1] == "output column 'v' is declared long but got 'two' (str); give an int"


def test_trouble_with_the_state_is_never_set_aside_as_the_rows_fault() -> None:
    class Lookup(KeyedFunction):
        output = "k string"
        names = MapState("string", "long")

        def process(self, row: Any, ctx: Any) -> Any:
            return [(row.k,)] if "x" in self.names else None

    job = Harness(Lookup(), NAMED, ["k"], on_error="dead-letter")

    def gone(key: bytes) -> bytes | None:
        raise RetryableError("the state moved away")

    job.state.get = gone  # type: ignore[method-assign]
    with pytest.raises(RetryableError):
        job.epoch_of([("a", 1)])


@pytest.mark.parametrize(
    ("output", "made", "cause"),
    [
        ("v long", (1.5,), "output column 'v' is declared long but got 1.5 (float); give an int"),
        ("v long", (True,), "output column 'v' is declared long but got True (bool); give an int"),
        (
            "v int",
            (2**31,),
            "output column 'v' is declared int but got 2147483648 (int); give an int within its range",
        ),
        ("v string", (b"a",), "output column 'v' is declared string but got b'a' (bytes); give a str"),
        (
            "v long not null",
            (None,),
            "output column 'v' is declared long not null but got None; give a value, or leave out 'not null'",
        ),
        (
            "v array<long>",
            ([1, 1.5],),
            "output column 'v' is declared array<long> but got 1.5 (float) at [1]; give an int",
        ),
        (
            "v long",
            (1, 2),
            "the output row (1, 2) has 2 values, declared are 1 columns: ['v']; give one value for each",
        ),
        (
            "v long",
            {"w": 1},
            "the output row {'w': 1} has the columns ['w'], declared are ['v']; give just these",
        ),
        (
            "v long",
            5,
            "an output row is 5 (int); yield each row as a tuple or a dict, or return a list of them",
        ),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_output_that_does_not_fit_names_column_type_and_value(
    output: str, made: Any, cause: str, on_error: str
) -> None:
    class Wrong(KeyedFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            yield (3,) if row.k == "good" and output != "v string" else ("x",) if row.k == "good" else made

    Wrong.output = output if "array" not in output else "v array<long>"
    rows = [("bad", 1)] if "array" in output else [("good", 1), ("bad", 1), ("good", 2)]
    job = Harness(Wrong(), NAMED, ["k"], on_error=on_error)
    if on_error == "dead-letter":
        result = job.epoch_of(rows)
        assert result.outputs["!dead"]["error"].to_pylist() == [cause]
        assert result.outputs[""].num_rows == len(rows) - 1
    else:
        with pytest.raises(UserCodeError) as caught:
            job.epoch_of(rows)
        assert (caught.value.cause, caught.value.key) == (cause, "bad")


def test_state_that_does_not_fit_names_state_type_value_and_key() -> None:
    class Wrong(Total):
        def process(self, row: Any, ctx: Any) -> Any:
            self.total.value = row.v + 0.5 if row.k == 2 else row.v

    with pytest.raises(
        UserCodeError, match=r"state 'total' is declared long but got 7.5 \(float\)"
    ) as caught:
        Harness(Wrong(), ROWS, ["k"]).epoch_of([(1, 1), (2, 7)])
    assert caught.value.key == "2"


def test_no_rows_give_empty_outputs_and_no_changes() -> None:
    result = Harness(Picky(), NAMED, ["k"], on_error="dead-letter").epoch_of([])
    assert {name: table.num_rows for name, table in result.outputs.items()} == {"": 0, "seen": 0, "!dead": 0}
    assert (result.changes.bases, result.changes.values) == ([], {})


def test_every_mistake_of_a_declaration_is_found() -> None:
    class Empty(KeyedFunction):
        outputs = {"!x": "a long"}  # noqa: RUF012

    assert len(mistakes(Empty())) == 3
    assert mistakes(Total()) == []


@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_a_value_that_python_has_no_object_for_names_its_column(on_error: str) -> None:
    """A timestamp of the year 10000: no row can hold it, so it is no dead letter either."""
    rows = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    job = Harness(Total(), rows, ["k"], on_error=on_error)
    with pytest.raises(
        UserCodeError, match=r"column 'at' holds a value of type timestamp.* transform before"
    ):
        job.compute([(1, 2, 253_402_300_800_000_000)])


class Stray(Picky):
    def process(self, row: Any, ctx: Any) -> Any:
        ctx.emit_to("sen", (row.v,))


class Timed(Picky):
    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timers.event(5)


class TimedWithoutEventTime(Timed):
    def on_timer(self, at: Any, ctx: Any) -> None:
        pass


class Closed(Picky):
    def open(self, ctx: Any) -> None:
        raise OSError("no model")


@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Stray(), "there is no side output 'sen'"),
        (Timed(), "timers are those of a key"),
        (TimedWithoutEventTime(), "an event timer needs event time"),
        (Closed(), "no model"),
    ],
)
def test_a_mistake_of_the_function_fails_whatever_is_set_aside(
    function: Any, said: str, on_error: OnError
) -> None:
    with pytest.raises(UserCodeError, match=said) as caught:
        Harness(function, NAMED, ["k"], on_error=on_error).epoch_of([("a", 1)])
    assert str(caught.value).endswith("; correct it")


def test_a_failure_of_a_row_says_that_it_could_be_set_aside() -> None:
    with pytest.raises(
        UserCodeError, match=r"; correct it, or set such rows aside with on_error='dead-letter'"
    ):
        Harness(Picky(), NAMED, ["k"]).epoch_of([("bad", -1)])
