"""Whatever the type: what is read can be written back, in every kind of state, and is the same then."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.graph.functions import KeyedFunction
from holdfast.state.cells.declarations import ListState, MapState, ReducingState, ValueState
from holdfast.state.encoding.arrow_values import column_of, copied, objects_of, unchanged
from holdfast.state.encoding.codec import ValueCodec
from holdfast.state.encoding.coercion import settler
from holdfast.state.encoding.row_objects import as_dicts
from holdfast.state.encoding.types import parse_type
from tests.property.state_values import exact, types, values
from tests.unit.tasks.operators.operator_kit import Harness

_calm = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
ROWS = pa.schema([("k", pa.string())])


def as_read(value: Any, type: pa.DataType) -> Any:
    """A drawn value with its maps as dicts: a key that equals another (0.0 and -0.0) is there once."""
    if value is None:
        return None
    if pa.types.is_map(type):
        keyed = {repr(key + 0.0 if isinstance(key, float) else key): (key, item) for key, item in value}
        return {key: as_read(item, type.item_type) for key, item in keyed.values()}
    if pa.types.is_list(type):
        return [as_read(item, type.value_type) for item in value]
    if pa.types.is_struct(type):
        return {field.name: as_read(value[field.name], field.type) for field in type}
    return value


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """A type, and some values of it, nulls among them."""
    ddl = draw(types(maps=True))
    type = parse_type(ddl)
    return ddl, [as_read(value, type) for value in draw(st.lists(values(type), min_size=1, max_size=4))]


@_calm
@given(typed_values(), st.integers(0, 3))
def test_what_is_read_is_written_back_to_the_last_bit(drawn: tuple[str, list[Any]], start: int) -> None:
    type = parse_type(drawn[0])
    column = column_of(drawn[1], type)[start:]
    read = objects_of(column)
    stored = ValueCodec(type).encode(column)
    assert ValueCodec(type).encode(column_of(read, type)) == stored
    settled = [settler(type)(value) for value in read]
    assert exact(as_dicts(settled)) == exact(as_dicts(read))
    assert unchanged(read, copied(read))
    # Also as dicts and plain tuples in place of rows.
    assert ValueCodec(type).encode(column_of(as_dicts(read), type)) == stored


@_calm
@given(typed_values())
def test_every_kind_of_state_takes_what_it_gave(drawn: tuple[str, list[Any]]) -> None:
    ddl, given_values = drawn
    todo: list[Any] = []

    class Everything(KeyedFunction):
        output = "k string"
        value = ValueState(ddl)
        items = ListState(ddl)
        pairs = MapState("long", ddl)
        newest = ReducingState(ddl, lambda so_far, new: new)

        def process(self, row: Any, ctx: Any) -> Any:
            todo[-1](self)
            return ()

    def write(f: Any) -> None:
        f.value.value = given_values[0]
        f.items.extend(given_values)
        f.pairs.update(enumerate(given_values))
        f.newest.add(given_values[-1])

    def write_back(f: Any) -> None:
        f.value.value = f.value.value
        f.items.replace(f.items)
        for key, value in f.pairs.items():
            f.pairs[key] = value
        f.newest.add(f.newest.value)

    def read(f: Any) -> None:
        shown.append(as_dicts([f.value.value, list(f.items), dict(f.pairs), f.newest.value]))

    def afresh(f: Any) -> None:
        f.items.clear()
        write(f)
        read(f)
        write_back(f)

    shown: list[Any] = []
    job = Harness(Everything(), ROWS, ["k"])
    entries = []
    for step in (write, write_back, afresh, read):
        todo.append(step)
        job.epoch_of([("a",)])
        entries.append(dict(job.state.entries))
    assert all(each == entries[0] for each in entries)
    assert exact(shown[0]) == exact(shown[1])
