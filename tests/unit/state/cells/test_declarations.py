from __future__ import annotations

import pickle
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, UserCodeError
from holdfast.graph.functions import KeyedFunction
from holdfast.state.cells.binding import bind
from holdfast.state.cells.declarations import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    declared_states,
    state_fields,
)
from holdfast.state.encoding.layout import StateLayout
from tests.unit.tasks.operators.operator_kit import DictState, Harness

ROWS = pa.schema([("k", pa.string()), ("step", pa.string())])


class Everything(KeyedFunction):
    """Does what the step of its row says and yields what that gave, as text."""

    output = "k string, got string"
    plain = ValueState("long", default=7)
    nested = ValueState("array<long>", default=[])
    items = ListState("long")
    pairs = MapState("string", "array<long>")
    numbers = MapState("long", "string")
    least = ReducingState("long", min)
    most = ReducingState("array<long>", lambda so_far, new: so_far + new)
    lists = ListState("array<long>")
    point = ValueState("struct<a:int,b:array<string>>")
    places = ValueState("map<struct<n:long,s:string>,long>", default={})
    spread = AggregatingState(
        "struct<low:long,high:long>",
        create=lambda: (2**62, -(2**62)),
        add=lambda a, x: {"low": min(a.low, x), "high": max(a.high, x)},
        merge=lambda a, b: (min(a.low, b.low), max(a.high, b.high)),
        result=lambda a: a.high - a.low,
    )
    average = AggregatingState(
        "struct<total:double,n:long>",
        create=lambda: {"total": 0.0, "n": 0},
        add=lambda a, x: {"total": a["total"] + x, "n": a["n"] + 1},
        merge=lambda a, b: {"total": a["total"] + b["total"], "n": a["n"] + b["n"]},
        result=lambda a: a["total"] / a["n"],
    )

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.k, repr(_STEPS[row.step](self))


_STEPS: dict[str, Callable[[Any], Any]] = {}


class Story:
    """Runs steps, each an epoch of its own or several in one, against one key after another."""

    def __init__(self, on_error: str = "fail") -> None:
        self.job = Harness(Everything(), ROWS, ["k"], on_error=on_error)

    def __call__(self, *steps: Callable[[Any], Any], key: str = "a") -> Any:
        names = [f"step{n}" for n in range(len(steps))]
        _STEPS.update(zip(names, steps, strict=True))
        out = self.job.epoch_of([(key, name) for name in names]).outputs[""]["got"].to_pylist()
        return out[-1]


@pytest.fixture
def epoch() -> Story:
    return Story()


def assign(state: str, value: Any) -> Callable[[Any], None]:
    return lambda f: setattr(getattr(f, state), "value", value)


def test_a_value_is_the_default_until_assigned_and_again_after_clear(epoch: Story) -> None:
    assert epoch(lambda f: f.plain.value) == "7"
    assert epoch(assign("plain", 8), lambda f: f.plain.value) == "8"
    assert epoch(lambda f: f.plain.value) == "8"
    assert epoch(lambda f: f.plain.value, key="b") == "7"
    assert epoch(lambda f: f.plain.clear(), lambda f: f.plain.value) == "7"
    assert epoch(lambda f: f.plain.value) == "7"
    assert epoch.job.state.entries == {}


@pytest.mark.parametrize("state", ["plain", "nested"])
def test_none_is_stored_as_a_value_of_its_own(epoch: Story, state: str) -> None:
    epoch(assign(state, None))
    assert epoch(lambda f: getattr(f, state).value) == "None"


def test_clear_then_assign_keeps_the_assigned(epoch: Story) -> None:
    epoch(assign("plain", 8))
    epoch(lambda f: (f.plain.clear(), setattr(f.plain, "value", 9)))
    assert epoch(lambda f: f.plain.value) == "9"
    epoch(lambda f: (f.plain.clear(), setattr(f.plain, "value", 7)))
    assert epoch(lambda f: f.plain.value) == "7"


def test_a_value_changed_in_place_is_written(epoch: Story) -> None:
    assert epoch(lambda f: f.nested.value.append(1), lambda f: f.nested.value) == "[1]"
    assert epoch(lambda f: f.nested.value) == "[1]"
    epoch(lambda f: f.nested.value.append(2), lambda f: (f.nested.clear(), f.nested.value.append(1)))
    assert epoch(lambda f: f.nested.value) == "[1]"

    def same_object(f: Any) -> None:
        value = f.nested.value
        value.append(3)
        f.nested.value = value
        value.append(4)

    epoch(same_object)
    assert epoch(lambda f: f.nested.value) == "[1, 3]"


def test_reading_alone_writes_nothing(epoch: Story) -> None:
    epoch(assign("nested", [1]), lambda f: f.pairs.update(x=[1]), lambda f: f.lists.append([1]))
    _STEPS["read"] = lambda f: (f.nested.value, f.pairs["x"], list(f.lists), f.most.value)
    changes = epoch.job.epoch_of([("a", "read")]).changes
    assert (changes.values, changes.entries, changes.headers) == ({}, {}, {})


def test_an_object_held_on_to_belongs_to_its_key_no_longer(epoch: Story) -> None:
    held: list[Any] = []
    _STEPS["hold"] = lambda f: (f.nested.value.append(1), held.append(f.nested.value))
    _STEPS["meddle"] = lambda f: held[0].append(99)
    epoch.job.epoch_of([("a", "hold"), ("b", "meddle")])
    assert epoch(lambda f: f.nested.value) == "[1]"


def test_items_of_a_list_changed_in_place_are_written(epoch: Story) -> None:
    epoch(lambda f: f.lists.extend([[1], [2], [3]]))
    epoch(lambda f: [each.append(0) for each in f.lists if each == [2]])
    assert epoch(lambda f: list(f.lists)) == "[[1], [2, 0], [3]]"
    epoch(lambda f: f.lists.append([4]), lambda f: [each.append(9) for each in f.lists if each[0] in (1, 4)])
    assert epoch(lambda f: (list(f.lists), len(f.lists))) == "([[1, 9], [2, 0], [3], [4, 9]], 4)"
    epoch(lambda f: next(iter(f.lists)).append(7), lambda f: f.lists.replace([[5]]))
    assert epoch(lambda f: list(f.lists)) == "[[5]]"


def test_a_row_that_fails_takes_its_changes_in_place_with_it() -> None:
    story = Story(on_error="dead-letter")

    def failing(f: Any) -> None:
        for each in (f.nested.value, f.pairs["x"], next(iter(f.lists)), f.most.value):
            each.append(99)
        raise ValueError

    def started(f: Any) -> None:
        f.nested.value, f.pairs["x"] = [1], [1]
        f.lists.append([1])
        f.most.add([1])

    def more(f: Any) -> None:
        for each in (f.nested.value, f.pairs["x"], next(iter(f.lists)), f.most.value):
            each.append(2)

    shown = lambda f: (f.nested.value, f.pairs["x"], list(f.lists), f.most.value)  # noqa: E731
    assert story(started, failing, more, failing, shown) == "([1, 2], [1, 2], [[1, 2]], [1, 2])"
    assert story(failing, shown) == "([1, 2], [1, 2], [[1, 2]], [1, 2])"


def test_a_mark_holds_what_was_changed_in_place_before_it() -> None:
    function: Any = Everything()
    layout = StateLayout("op", pa.schema([ROWS.field("k")]), state_fields(Everything))
    cells = bind(function, layout, [b"base"], DictState())  # type: ignore[arg-type]
    for cell in cells:
        cell.load(0)
    function.lists.append([])
    function.most.add([])

    def objects() -> list[list[int]]:
        first_item = next(iter(function.lists))
        return [function.nested.value, function.pairs.setdefault("x", []), first_item, function.most.value]

    for each in objects():
        each.append(1)
    marks = [cell.mark() for cell in cells]
    for each in objects():
        each.append(2)
    for cell, mark in zip(cells, marks, strict=True):
        cell.undo(mark)
    assert objects() == [[1]] * 4


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda f: f.nested.value.append("x"), "state 'nested' is declared array<long> but got 'x' (str) at"),
        (lambda f: f.pairs.setdefault("k", [1]).append("x"), "state 'pairs' is declared array<long> but got"),
        (lambda f: (f.lists.append([]), next(iter(f.lists)).append("x")), "state 'lists' is declared"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_what_was_put_in_in_place_must_fit(change: Any, part: str, on_error: str) -> None:
    story = Story(on_error=on_error)
    _STEPS["change"] = change
    if on_error == "dead-letter":
        assert part in story.job.epoch_of([("a", "change")]).outputs["!dead"]["error"][0].as_py()
        assert story.job.state.entries == {}
    else:
        with pytest.raises(UserCodeError) as refused:
            story.job.epoch_of([("a", "change")])
        assert part in refused.value.cause


POINT = namedtuple("POINT", "b a")


@pytest.mark.parametrize(
    "given",
    [{"a": 1, "b": ["x"]}, (1, ["x"]), [1, ["x"]], {"b": ("x",), "a": np.int64(1)}, POINT(["x"], 1)],
)
def test_a_struct_is_given_as_dict_tuple_or_row_and_always_read_as_a_row(epoch: Story, given: Any) -> None:
    seen = "(1, ['x'], 1, Row(a=1, b=['x']))"
    shown = lambda f: (f.point.value.a, f.point.value["b"], f.point.value[0], f.point.value)  # noqa: E731
    assert epoch(assign("point", given), shown) == seen
    assert epoch(shown) == seen
    epoch(lambda f: setattr(f.point, "value", f.point.value))
    epoch(lambda f: setattr(f.point, "value", f.point.value._replace(a=f.point.value.a + 1)))
    epoch(lambda f: f.point.value.b.append("y"))
    assert epoch(lambda f: f.point.value) == "Row(a=2, b=['x', 'y'])"
    with pytest.raises(UserCodeError, match=r"AttributeError: .*'a'|AttributeError: can't set"):
        epoch(lambda f: setattr(f.point.value, "a", 5))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"a": 1, "c": 2}, "got {'a': 1, 'c': 2} (dict); give a dict, or a tuple in order, of a, b"),
        ((1,), "got (1,) (tuple); give a dict, or a tuple in order, of a, b"),
        ((1, ["x", 5]), "is declared struct<a:int,b:array<string>> but got 5 (int) at b[1]; give a str"),
        (object, "(type); give a dict, or a tuple in order, of a, b"),
    ],
)
def test_a_struct_that_does_not_fit_says_which_part(epoch: Story, given: Any, part: str) -> None:
    with pytest.raises(UserCodeError) as refused:
        epoch(assign("point", given))
    assert part in refused.value.cause
    assert Path(__file__).name in refused.value.cause


def test_a_map_within_a_value_may_have_structs_as_keys(epoch: Story) -> None:
    epoch(assign("places", {(1, "x"): 5}), lambda f: f.places.value.update({(2, "y"): 6}))
    assert epoch(lambda f: f.places.value) == "{Row(n=1, s='x'): 5, Row(n=2, s='y'): 6}"
    assert epoch(lambda f: f.places.value[1, "x"]) == "5"


def test_an_accumulator_is_a_row_from_the_first_add(epoch: Story) -> None:
    assert epoch(lambda f: (f.spread.add(3), f.spread.add(8), f.spread.value)) == "(None, None, 5)"
    assert epoch(lambda f: (f.spread.add(1), f.spread.value)) == "(None, 7)"


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        (lambda f: f.plain + 1, "state 'plain' is used as if it were its value; write self.plain.value"),
        (lambda f: 1 if f.plain else 2, "state 'plain' is used as if it were its value"),
        (lambda f: f.plain == 7, "state 'plain' is used as if it were its value"),
        (lambda f: list(f.nested), "state 'nested' is used as if it were its value"),
        (lambda f: setattr(f, "plain", 5), "'plain' is a state, not a variable; write self.plain.value ="),
        (lambda f: setattr(f, "items", []), "is a state, not a variable; write self.items.replace([...])"),
        (lambda f: setattr(f, "pairs", {}), "is a state, not a variable; write self.pairs[key] = ..."),
        (lambda f: f.plian.value, "Everything has no attribute 'plian'; its states: plain, nested, items"),
        (lambda f: f.items.add(1), "state 'items' has no 'add'; it has append, clear, extend, replace"),
        (lambda f: f.pairs.value, "state 'pairs' has no 'value'; it has clear, get, items, keys, pop"),
        (lambda f: f.plain.add(1), "state 'plain' has no 'add'; it has clear, value"),
    ],
)
def test_a_state_used_in_a_way_that_it_has_not_is_refused(epoch: Story, use: Any, cause: str) -> None:
    with pytest.raises(UserCodeError) as refused:
        epoch(use)
    assert cause in refused.value.cause
    assert Path(__file__).name in refused.value.cause
    assert (refused.value.uid, refused.value.key) == ("op", "a")


def test_mutable_defaults_do_not_leak_between_keys(epoch: Story) -> None:
    epoch(lambda f: f.nested.value.append(1), key="a")
    assert epoch(lambda f: f.nested.value, key="b") == "[]"
    shared = [1]
    declared = ValueState("array<long>", default=shared)
    shared.append(2)
    assert declared.default == [1]


def test_list_items_keep_their_order_over_epochs(epoch: Story) -> None:
    epoch(lambda f: f.items.append(1), lambda f: f.items.extend([2, 3]))
    assert epoch(lambda f: (f.items.append(4), list(f.items), len(f.items))) == "(None, [1, 2, 3, 4], 4)"
    assert epoch(lambda f: list(f.items), key="b") == "[]"
    assert epoch(lambda f: (list(f.items), len(f.items))) == "([1, 2, 3, 4], 4)"


def test_a_list_that_is_replaced_leaves_nothing_of_the_old_one(epoch: Story) -> None:
    epoch(lambda f: f.items.extend(range(10)))
    epoch(lambda f: f.items.replace([x * x for x in f.items if x > 7]))
    assert epoch(lambda f: list(f.items)) == "[64, 81]"
    assert len(epoch.job.state.entries) == 3
    epoch(lambda f: f.items.replace([5, 6]))
    assert epoch(lambda f: list(f.items)) == "[5, 6]"
    epoch(lambda f: f.items.clear())
    assert epoch.job.state.entries == {}


def test_appending_and_counting_reads_no_items(epoch: Story) -> None:
    epoch(lambda f: f.items.extend(range(100)))
    before = epoch.job.state.get_manys
    epoch(lambda f: (f.items.append(1), len(f.items)))
    # One for each state of the function, none for items.
    assert epoch.job.state.get_manys - before == len(state_fields(Everything)) - 2
    assert (epoch.job.state.scans, epoch.job.state.gets) == (0, 0)


def test_a_map_behaves_like_a_dict(epoch: Story) -> None:
    epoch(lambda f: f.pairs.update(x=[1], y=[2]))
    assert epoch(lambda f: dict(f.pairs)) == "{'x': [1], 'y': [2]}"
    assert (
        epoch(lambda f: (f.pairs.pop("x"), f.pairs.get("x"), "x" in f.pairs, len(f.pairs)))
        == "([1], None, False, 1)"
    )
    assert epoch(lambda f: (f.pairs.setdefault("z", [3]), list(f.pairs))) == "([3], ['y', 'z'])"
    assert epoch(lambda f: (f.pairs == {"y": [2], "z": [3]}, sorted(f.pairs.items()))) == (
        "(True, [('y', [2]), ('z', [3])])"
    )
    assert epoch(lambda f: list(f.pairs), key="b") == "[]"
    epoch(lambda f: f.pairs.clear())
    assert epoch.job.state.entries == {}
    with pytest.raises(UserCodeError, match="KeyError: 'x'"):
        epoch(lambda f: f.pairs["x"])


def test_one_map_entry_is_one_get_and_iteration_sees_pending_changes(epoch: Story) -> None:
    epoch(lambda f: f.numbers.update({n: str(n) for n in range(50)}))
    state = epoch.job.state
    state.gets = state.scans = 0
    assert epoch(lambda f: f.numbers[3] + f.numbers[3]) == "'33'"
    assert (state.gets, state.scans) == (1, 0)

    def change(f: Any) -> Any:
        f.numbers[-5] = "new"
        f.numbers[99] = "newer"
        f.numbers[1] = "changed"
        del f.numbers[0]
        return len(f.numbers), 0 in f.numbers, f.numbers[1], list(f.numbers)[-2:]

    assert epoch(change) == "(51, False, 'changed', [-5, 99])"
    assert epoch(lambda f: (list(f.numbers)[:2], f.numbers[1], len(f.numbers))) == "([-5, 1], 'changed', 51)"


def test_long_map_keys_come_back_whole(epoch: Story) -> None:
    epoch(lambda f: f.pairs.update({"x" * 500: [1], "x" * 499 + "y": [2]}))
    assert epoch(lambda f: (f.pairs["x" * 500], f.pairs["x" * 499 + "y"])) == "([1], [2])"
    assert epoch(lambda f: sorted(map(len, f.pairs))) == "[500, 500]"


def test_map_values_changed_in_place_are_written(epoch: Story) -> None:
    epoch(lambda f: f.pairs.update(x=[1], y=[5]))
    assert epoch(lambda f: (f.pairs["x"].append(2), f.pairs["x"])) == "(None, [1, 2])"
    epoch(lambda f: [each.append(9) for each in f.pairs.values()])
    assert epoch(lambda f: dict(f.pairs)) == "{'x': [1, 2, 9], 'y': [5, 9]}"
    epoch(lambda f: f.pairs.setdefault("z", []).append(7), lambda f: f.pairs.setdefault("z", []).append(8))
    assert epoch(lambda f: f.pairs.pop("z")) == "[7, 8]"
    epoch(lambda f: (f.pairs["x"].append(3), f.pairs.pop("x")))
    assert epoch(lambda f: dict(f.pairs)) == "{'y': [5, 9]}"


def test_reducing_and_aggregating_states_go_on_over_epochs(epoch: Story) -> None:
    assert epoch(lambda f: (f.least.value, f.average.value)) == "(None, None)"
    epoch(lambda f: (f.least.add(5), f.average.add(1.0)), lambda f: (f.least.add(9), f.average.add(2.0)))
    assert epoch(lambda f: (f.least.add(4), f.least.value, f.average.add(6.0), f.average.value)) == (
        "(None, 4, None, 3.0)"
    )
    epoch(lambda f: (f.least.clear(), f.average.clear()))
    assert epoch.job.state.entries == {}


def test_what_does_not_fit_is_refused_where_it_is_added(epoch: Story) -> None:
    with pytest.raises(UserCodeError, match=r"state 'items' is declared long but got 'x'.*test_dec"):
        epoch(lambda f: f.items.append("x"))
    wrong_key = (
        r"the key of map state 'numbers' is declared long but got 'x' \(str\); give an int at .*test_dec"
    )
    with pytest.raises(UserCodeError, match=wrong_key):
        epoch(lambda f: f.numbers.get("x"))
    with pytest.raises(UserCodeError, match="state 'pairs' is declared array<long> but got 5"):
        epoch(lambda f: f.pairs.update(x=5))


def test_states_are_found_on_the_class_and_its_bases_in_order() -> None:
    class Base(KeyedFunction):
        first = ValueState("long")
        second = ListState("string")

    class Derived(Base):
        third = MapState("string", "long")
        first = None  # type: ignore[assignment]

    assert list(declared_states(Derived)) == ["second", "third"]
    assert [(field.id, field.name, field.kind.value) for field in state_fields(Derived)] == [
        (1, "second", "list"), (2, "third", "map"),
    ]  # fmt: skip


def test_wrong_declarations_are_refused_at_once() -> None:
    with pytest.raises(DefinitionError, match="the default of a ValueState is declared long but got 'x'"):
        ValueState("long", default="x")
    with pytest.raises(DefinitionError, match="cannot be the key of a map state"):
        MapState("array<long>", "long")
    with pytest.raises(DefinitionError):
        ValueState("lnog")


def test_state_outside_process_is_refused_and_a_function_pickles() -> None:
    with pytest.raises(DefinitionError, match="state 'plain' has a value only inside process"):
        _ = Everything().plain.value
    assert isinstance(pickle.loads(pickle.dumps(Everything())), Everything)
