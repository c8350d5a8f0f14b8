"""Hypothesis strategies for declared types, values of them, and changes to state."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import TIME_AND_NUMBER, TIME_TYPE, StateField, StateKind, StateLayout
from holdfast.state.encoding.types import parse_type, type_ddl
from holdfast.state.files.delta import Changes, EntryChange, ValueChange

_LONGEST = dt.timedelta(microseconds=2**63 - 1)
_FIRST, _LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)

_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=12) | st.sampled_from(["", "\0", "x" * 500, "é" * 130]),
    "binary": st.binary(max_size=12) | st.sampled_from([b"", b"\0", b"\xff" * 450]),
    "date": st.dates(),
    "timestamp": st.datetimes(_FIRST, _LAST, timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(_FIRST, _LAST),
    "interval day to second": st.timedeltas(dt.timedelta(microseconds=-(2**63)), _LONGEST),
    "time(6)": st.times(),
}
KINDS = (StateKind.VALUE, StateKind.LIST, StateKind.MAP)
"""What user code declares. TIMED states are Holdfast's own: see test_time_index."""
_VALUES_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "void": st.none(),
    "variant": st.fixed_dictionaries({"value": st.binary(max_size=9), "metadata": st.binary(max_size=9)}),
}


def types(*, maps: bool, depth: int = 2) -> st.SearchStrategy[str]:
    """Type strings; keys hold no maps."""
    decimals = st.integers(1, 38).flatmap(
        lambda digits: st.integers(0, digits).map(lambda scale: f"decimal({digits},{scale})")
    )
    leaves = st.sampled_from(sorted({**_PLAIN, **_VALUES_ONLY} if maps else _PLAIN)) | decimals
    if depth == 0:
        return leaves
    inner = types(maps=maps, depth=depth - 1)
    arrays = inner.map(lambda element: f"array<{element}>")
    structs = st.lists(inner, min_size=1, max_size=10).map(
        lambda fields: f"struct<{','.join(f'f{i}:{field}' for i, field in enumerate(fields))}>"
    )
    nested = arrays | structs
    if maps:
        keys = types(maps=False, depth=0)
        nested |= st.tuples(keys, inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>")
    return leaves | nested


def values(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Python objects of a type, nulls among them."""
    return st.none() | present(type)


def present(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Python objects of a type, not null at the top."""
    if pa.types.is_decimal(type):
        limit = 10**type.precision - 1
        return st.integers(-limit, limit).map(lambda n: _scaled(n, type.scale))
    if type_ddl(type) in _VALUES_ONLY:
        return _VALUES_ONLY[type_ddl(type)]
    if pa.types.is_struct(type):
        fields = {type.field(i).name: values(type.field(i).type) for i in range(type.num_fields)}
        return st.fixed_dictionaries(fields)
    if pa.types.is_list(type):
        return st.lists(values(type.value_type), max_size=4)
    if pa.types.is_map(type):
        pairs = st.tuples(present(type.key_type), values(type.item_type))
        return st.lists(pairs, max_size=4, unique_by=lambda pair: repr(pair[0]))
    return _PLAIN[type_ddl(type)]


def _scaled(number: int, scale: int) -> Decimal:
    return Decimal(f"{number}E-{scale}")


def columns(type: pa.DataType, size: int) -> st.SearchStrategy[pa.Array]:
    return st.lists(values(type), min_size=size, max_size=size).map(lambda rows: pa.array(rows, type))


def exact(value: Any) -> Any:
    """A form in which values are equal just when every bit of them is."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return {name: exact(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [exact(part) for part in value]
    if isinstance(value, Decimal):
        return value.as_tuple()
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


@st.composite
def layouts_and_changes(draw: st.DrawFn) -> tuple[StateLayout, Changes]:
    """A layout with one or more states of every kind, and an epoch's changes to some keys."""
    key = pa.schema(
        [(f"k{i}", parse_type(draw(types(maps=False, depth=1)))) for i in range(draw(st.integers(1, 2)))]
    )
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    fields = tuple(
        StateField(id, draw(_names(id)), kind, draw(_state_type(kind))) for id, kind in enumerate(kinds)
    )
    layout = StateLayout("totals", key, fields)
    keys = [draw(columns(field.type, 6)) for field in key]
    keys, groups, bases = _each_key_once(layout, keys)
    changes = Changes(keys, groups, bases)
    for field in fields:
        _draw_state(draw, field, len(bases), changes)
    return layout, changes


def _names(id: int) -> st.SearchStrategy[str]:
    return st.sampled_from([f"s{id}", f"{('key', 'op', 'state', 'key_group')[id]}", f"état {id}"])


def _state_type(kind: StateKind) -> st.SearchStrategy[pa.DataType]:
    if kind is StateKind.TIMED:
        timed = st.tuples(st.sampled_from([TIME_TYPE, TIME_AND_NUMBER]), types(maps=True, depth=1))
        return timed.map(lambda both: pa.map_(both[0], parse_type(both[1])))
    if kind is not StateKind.MAP:
        return types(maps=True, depth=1).map(parse_type)
    pair = st.tuples(types(maps=False, depth=1), types(maps=True, depth=1))
    return pair.map(lambda both: parse_type(f"map<{both[0]},{both[1]}>"))


def map_keys(field: StateField) -> st.SearchStrategy[Any]:
    """The keys that entries of a map may have; a time is never null."""
    type = field.type.key_type
    if field.kind is StateKind.TIMED and pa.types.is_struct(type):
        return st.fixed_dictionaries({part.name: present(part.type) for part in type})
    return present(type) if field.kind is StateKind.TIMED else values(type)


def _each_key_once(layout: StateLayout, keys: list[pa.Array]) -> tuple[list[pa.Array], Any, list[bytes]]:
    groups = key_groups_of(routing_hash(keys), 128)
    bases = layout.keys.encode(keys, groups)
    first = sorted({base: row for row, base in reversed(list(enumerate(bases)))}.values())
    kept = [column.take(pa.array(first, pa.int64())) for column in keys]
    return kept, groups[first], [bases[row] for row in first]


def _draw_state(draw: st.DrawFn, field: StateField, count: int, changes: Changes) -> None:
    if not field.is_map:
        type = pa.int64() if field.kind is StateKind.LIST else field.type
        rows = draw(st.lists(st.integers(0, count - 1), unique=True))
        numbers = st.lists(st.integers(0, 2**62), min_size=len(rows), max_size=len(rows))
        whole = (
            pa.array(draw(numbers), type) if field.kind is StateKind.LIST else draw(columns(type, len(rows)))
        )
        target = changes.headers if field.kind is StateKind.LIST else changes.values
        target[field.name] = ValueChange(np.array(rows, np.int64), whole, draw(_flags(len(rows))))
    if field.kind is StateKind.VALUE:
        return
    inner = st.integers(0, 300) if field.kind is StateKind.LIST else map_keys(field)
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), inner), max_size=6))
    entry = pa.array(
        [pair[1] for pair in pairs], pa.int64() if field.kind is StateKind.LIST else field.type.key_type
    )
    rows = [pair[0] for pair in pairs]
    names = (
        [repr(n) for n in entry.to_pylist()]
        if field.kind is StateKind.LIST
        else field.map_keys.key_bytes([entry])
    )
    once = sorted({(row, name): i for i, (row, name) in enumerate(zip(rows, names, strict=True))}.values())
    picked = pa.array(once, pa.int64())
    deleted = draw(_flags(len(once)))
    changes.entries[field.name] = EntryChange(
        np.array([rows[i] for i in once], np.int64),
        entry.take(picked),
        draw(columns(field.value_type, len(once))),
        deleted,
    )


def _flags(size: int) -> st.SearchStrategy[Any]:
    flags = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, np.bool_))
    return st.none() | flags
