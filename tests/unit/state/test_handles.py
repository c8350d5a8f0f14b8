from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError, UserCodeError
from holdfast.graph.functions import KeyedFunction
from holdfast.state.handles import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    declared_states,
    state_fields,
)
from tests.unit.engine.operator_kit import Harness

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

    def __init__(self) -> None:
        self.job = Harness(Everything(), ROWS, ["k"])

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


def test_changing_a_value_in_place_persists_nothing_until_assigned(epoch: Story) -> None:
    assert epoch(lambda f: f.nested.value.append(1), lambda f: f.nested.value) == "[]"
    epoch(lambda f: setattr(f.nested, "value", [*f.nested.value, 1]))
    assert epoch(lambda f: f.nested.value.append(2), lambda f: f.nested.value) == "[1]"

    def same_object(f: Any) -> None:
        value = f.nested.value
        value.append(3)
        f.nested.value = value
        value.append(4)

    epoch(same_object)
    assert epoch(lambda f: f.nested.value) == "[1, 3]"


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


def test_map_values_changed_in_place_persist_only_when_assigned(epoch: Story) -> None:
    epoch(lambda f: f.pairs.update(x=[1]))
    assert epoch(lambda f: (f.pairs["x"].append(2), f.pairs["x"])) == "(None, [1])"


def test_reducing_and_aggregating_states_go_on_over_epochs(epoch: Story) -> None:
    assert epoch(lambda f: (f.least.value, f.average.value)) == "(None, None)"
    epoch(lambda f: (f.least.add(5), f.average.add(1.0)), lambda f: (f.least.add(9), f.average.add(2.0)))
    assert epoch(lambda f: (f.least.add(4), f.least.value, f.average.add(6.0), f.average.value)) == (
        "(None, 4, None, 3.0)"
    )
    epoch(lambda f: (f.least.clear(), f.average.clear()))
    assert epoch.job.state.entries == {}


def test_what_does_not_fit_is_refused_where_it_is_added(epoch: Story) -> None:
    with pytest.raises(UserCodeError, match=r"state 'items' is declared long but got 'x'.*test_handles\.py"):
        epoch(lambda f: f.items.append("x"))
    with pytest.raises(UserCodeError, match="map state 'numbers' has keys of long, not 'x'"):
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
    with pytest.raises(DefinitionError, match="default 'x' does not fit 'long'"):
        ValueState("long", default="x")
    with pytest.raises(DefinitionError, match="cannot be the key of a map state"):
        MapState("array<long>", "long")
    with pytest.raises(DefinitionError):
        ValueState("lnog")


def test_state_outside_process_is_refused_and_a_function_pickles() -> None:
    with pytest.raises(DefinitionError, match="state 'plain' has a value only inside process"):
        _ = Everything().plain.value
    assert isinstance(pickle.loads(pickle.dumps(Everything())), Everything)
