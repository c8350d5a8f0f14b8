"""Whatever the types, whatever the allowed change: stored state comes out as what the values mean under the
new type, from snapshots and from deltas alike."""

from __future__ import annotations

import datetime as dt
import string
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.state.encoding.layout import LONG_KEY_ID, StateField, StateKind, StateLayout, in_time_index
from holdfast.state.encoding.types import is_variant, parse_type, type_ddl
from holdfast.state.files import schema_conversion
from holdfast.state.files.delta import Changes, EntryChange, ValueChange, to_entries, write_delta
from holdfast.state.files.evolution import Declared, evolve
from holdfast.state.files.schema_conversion import Lineage, delta_entries
from tests.property.state_values import exact, layouts_and_changes, present, types, values

_calm = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_WIDER = {
    "byte": ["short", "int", "long", "double", "decimal(3,0)", "decimal(20,4)"],
    "short": ["int", "long", "double", "decimal(5,0)", "decimal(38,10)"],
    "int": ["long", "double", "decimal(10,0)", "decimal(12,2)"],
    "long": ["decimal(19,0)", "decimal(38,19)"],
    "float": ["double"],
    "date": ["timestamp_ntz"],
    "void": ["long", "string", "struct<a:int>"],
}


def wider(type: pa.DataType) -> st.SearchStrategy[pa.DataType]:
    """Types that may follow a type, itself among them."""
    same = st.just(type)
    if pa.types.is_decimal(type):
        room = 38 - type.precision
        return st.tuples(st.integers(0, room), st.integers(0, room)).map(
            lambda more: pa.decimal128(type.precision + max(more), type.scale + min(more))
        )
    if is_variant(type):
        return same
    if pa.types.is_struct(type):
        return _wider_struct(type)
    if pa.types.is_list(type):
        return wider(type.value_type).map(pa.list_)
    if pa.types.is_map(type):
        return st.tuples(wider(type.key_type), wider(type.item_type)).map(lambda both: pa.map_(*both))
    return same | st.sampled_from(_WIDER.get(type_ddl(type), [type_ddl(type)])).map(parse_type)


@st.composite
def _wider_struct(draw: st.DrawFn, type: pa.DataType) -> pa.DataType:
    """Fields wider, in another order, some new, some gone."""
    kept = [child for child in type if draw(st.integers(0, 4))]
    fields = [pa.field(child.name, draw(wider(child.type))) for child in kept]
    names = [name for name in string.ascii_lowercase if name not in {child.name for child in type}]
    added = draw(st.lists(types(maps=True, depth=1), max_size=2))
    fields += [pa.field(name, parse_type(ddl)) for name, ddl in zip(names, added, strict=False)]
    return pa.struct(draw(st.permutations(fields)) or [pa.field("z", pa.int32())])


def meant(value: Any, old: pa.DataType, new: pa.DataType, fill: Any = None) -> Any:
    """What a Python object means under a wider type, worked out without Arrow."""
    if value is None:
        return None
    if pa.types.is_struct(new) and not is_variant(new):
        before = {child.name: child.type for child in old}
        filled = fill or {}
        return {
            child.name: meant(value[child.name], before[child.name], child.type, filled.get(child.name))
            if child.name in before
            else filled.get(child.name)
            for child in new
        }
    if pa.types.is_list(new):
        return [meant(item, old.value_type, new.value_type) for item in value]
    if pa.types.is_map(new):
        return [
            (meant(key, old.key_type, new.key_type), meant(item, old.item_type, new.item_type))
            for key, item in value
        ]
    if pa.types.is_decimal(new) and not pa.types.is_decimal(old):
        return Decimal(value)
    if pa.types.is_timestamp(new) and pa.types.is_date(old):
        return dt.datetime(value.year, value.month, value.day)
    return float(value) if pa.types.is_floating(new) and pa.types.is_integer(old) else value


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[StateLayout, Changes, Declared]:
    """State that old code wrote, and newer code that may go on with it."""
    layout, changes = draw(layouts_and_changes())
    fields, was, defaults = [], {}, {}
    for id, old in enumerate(draw(st.permutations(layout.fields))):
        if not draw(st.integers(0, 5)):
            continue
        name = old.name
        if draw(st.booleans()):
            name, was[f"now {id}"] = f"now {id}", old.name
        type = draw(_wider_state(old))
        fields.append(StateField(id, name, old.kind, type))
        if old.kind is StateKind.VALUE and pa.types.is_struct(type) and draw(st.booleans()):
            defaults[name] = draw(present(type))
    if draw(st.booleans()):
        fields.append(StateField(len(layout.fields), "added", StateKind.MAP, parse_type("map<string,int>")))
    return layout, changes, Declared(StateLayout(layout.operator, layout.key, tuple(fields)), was, defaults)


def _wider_state(old: StateField) -> st.SearchStrategy[pa.DataType]:
    if not old.is_map:
        return wider(old.type)
    fixed = old.kind is StateKind.TIMED or pa.types.is_nested(old.type.key_type)
    key = st.just(old.type.key_type) if fixed else wider(old.type.key_type)
    return st.tuples(key, wider(old.type.item_type)).map(lambda both: pa.map_(*both))


def retyped(changes: Changes, before: StateLayout, declared: Declared, now: StateLayout) -> Changes:
    """The same changes as the new code would have written them."""
    result = Changes(changes.keys, changes.groups, changes.bases)
    for old in before.fields:
        new = next((field for field in now.fields if field.id == old.id), None)
        if new is None:
            continue
        fill = declared.defaults.get(new.name)

        def column(array: pa.Array, a: pa.DataType, b: pa.DataType, fill: Any = None) -> pa.Array:
            return pa.array([meant(value, a, b, fill) for value in array.to_pylist()], b)

        if (header := changes.headers.get(old.name)) is not None:
            result.headers[new.name] = header
        if (value := changes.values.get(old.name)) is not None:
            values = column(value.values, old.type, new.type, fill)
            result.values[new.name] = ValueChange(value.rows, values, value.deleted)
        if (entry := changes.entries.get(old.name)) is not None:
            keys = entry.entry
            if old.is_map:
                keys = column(keys, old.type.key_type, new.type.key_type)
            items = column(entry.values, old.value_type, new.value_type)
            result.entries[new.name] = EntryChange(entry.rows, keys, items, entry.deleted)
    return result


def check(layout: StateLayout, changes: Changes, declared: Declared, cut: int) -> None:
    evolution = evolve(Lineage.begin(layout), declared, allow_dropped_state=True)
    assert not evolution.problems
    lineage = evolution.lineage
    expected = to_entries(lineage.layout, retyped(changes, layout, declared, lineage.layout))
    stored = to_entries(layout, changes)
    convert = lineage.converter(0, "s") or list
    found = convert(stored)

    def states(entries: Any) -> list[tuple[bytes, bytes | None]]:
        """Without the real keys of long ones: that of a key whose state was dropped stays behind."""
        return [
            (key, value)
            for key, value in entries
            if in_time_index(key) or key[layout.keys.base_length(key)] != LONG_KEY_ID
        ]

    assert states(found) == states(expected)
    assert [key for key, _ in found] == sorted(key for key, _ in found)
    place = cut % (len(stored) + 1)
    assert convert(stored[:place]) + convert(stored[place:]) == found
    assert delta_entries(lineage, write_delta(layout, changes), "d") == found


@_calm
@given(evolutions(), st.integers(0, 100))
def test_converted_state_is_what_the_new_code_would_have_written(
    case: tuple[StateLayout, Changes, Declared], cut: int
) -> None:
    check(*case, cut)


@_calm
@given(evolutions(), st.data())
def test_two_upgrades_at_once_are_two_upgrades(
    case: tuple[StateLayout, Changes, Declared], data: st.DataObject
) -> None:
    layout, changes, declared = case
    first = evolve(Lineage.begin(layout), declared, allow_dropped_state=True).lineage
    fields = tuple(
        StateField(field.id, field.name, field.kind, data.draw(_wider_state(field)))
        for field in first.layout.fields
    )
    second = evolve(
        first, Declared(StateLayout(layout.operator, layout.key, fields)), allow_dropped_state=True
    )
    assert not second.problems
    stored = to_entries(layout, changes)
    at_once = second.lineage.converter(0, "s") or list
    halfway = first.converter(0, "s") or list
    rest = second.lineage.converter(first.layout.generation, "s") or list
    assert at_once(stored) == rest(halfway(stored))


@st.composite
def columns_to_convert(draw: st.DrawFn) -> tuple[pa.DataType, list[Any], pa.DataType, Any]:
    """A struct's values, a wider struct, and perhaps a default of that."""
    inner = types(maps=True, depth=1)
    ddl = draw(st.lists(inner, min_size=1, max_size=4))
    old = pa.struct([(f"f{i}", parse_type(each)) for i, each in enumerate(ddl)])
    new = draw(_wider_struct(old))
    return old, draw(st.lists(values(old), max_size=5)), new, draw(values(new))


def check_column(old: pa.DataType, given: list[Any], new: pa.DataType, fill: Any) -> None:
    expected = pa.array([meant(value, old, new, fill) for value in given], new)
    for column in (pa.array(given, old), pa.array([None, *given], old).slice(1)):
        found = schema_conversion.converted(column, new, fill)
        assert found.type == new
        assert exact(found.to_pylist()) == exact(expected.to_pylist())


@_calm
@given(columns_to_convert())
def test_values_become_what_they_mean(case: tuple[pa.DataType, list[Any], pa.DataType, Any]) -> None:
    check_column(*case)


@settings(_calm, phases=[Phase.generate], max_examples=1_000, database=None, derandomize=True)
@given(columns_to_convert())
def _any_column(case: tuple[pa.DataType, list[Any], pa.DataType, Any]) -> None:
    check_column(*case)


@pytest.mark.parametrize("spoilt", ["defaults", "names", "nulls"])
def test_a_conversion_that_forgets_something_is_found_out(
    monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    real = schema_conversion._struct

    def forgetful(array: pa.Array, to: pa.DataType, fill: Any) -> pa.Array:
        if spoilt == "names" and array.type.num_fields == to.num_fields:
            array = pa.StructArray.from_arrays(array.flatten(), names=[child.name for child in to])
        made = real(array, to, {} if spoilt == "defaults" else fill)
        return pa.StructArray.from_arrays(made.flatten(), fields=list(to)) if spoilt == "nulls" else made

    monkeypatch.setattr(schema_conversion, "_struct", forgetful)
    with pytest.raises((AssertionError, pa.ArrowException)):
        _any_column()
