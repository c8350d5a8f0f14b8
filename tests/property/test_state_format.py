"""Whatever the types and values: what was written is what is read, and damage is never read as state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptionError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.encoding.codec import ValueCodec
from holdfast.state.encoding.keys import KEY_BYTES_MAX, KeyCodec, key_groups_of, routing_hash
from holdfast.state.encoding.layout import ENTRY_KEY_BYTES_MAX, LONG_KEY_SUFFIX, StateLayout, is_shortened
from holdfast.state.encoding.types import parse_type, type_ddl
from holdfast.state.files.changes import ordered
from holdfast.state.files.delta import Changes, read_delta, to_entries, write_delta
from tests.property.state_values import columns, exact, layouts_and_changes, present, types, values

_calm = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@given(types(maps=True))
def test_every_type_is_written_and_read_back(ddl: str) -> None:
    assert parse_type(type_ddl(parse_type(ddl))) == parse_type(ddl)


@_calm
@given(st.data())
def test_columns_of_values_survive_to_the_last_bit(data: st.DataObject) -> None:
    type = parse_type(data.draw(types(maps=True)))
    column = data.draw(columns(type, data.draw(st.integers(0, 5))))
    padded = pa.concat_arrays([column, column]).slice(len(column))
    codec = ValueCodec(type)
    for source in (column, padded):
        decoded = codec.decode(codec.encode(source))
        assert decoded.type == type
        decoded.validate(full=True)
        assert exact(decoded.to_pylist()) == exact(column.to_pylist())


@_calm
@given(st.data())
def test_single_values_have_the_bytes_of_columns(data: st.DataObject) -> None:
    type = parse_type(data.draw(types(maps=True)))
    value = data.draw(values(type))
    codec = ValueCodec(type)
    stored = codec.encode_one(value)
    assert stored == codec.encode(pa.array([value], type))[0]
    again = codec.encode_one(codec.decode_one(stored))
    assert again == stored or pa.types.is_map(type) or "map<" in type_ddl(type)


def _canonical(value: Any) -> Any:
    """Key equality: -0.0 is 0.0 and NaN equals NaN."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    if isinstance(value, dict):
        return {name: _canonical(part) for name, part in value.items()}
    return [_canonical(part) for part in value] if isinstance(value, list) else value


@_calm
@given(st.data())
def test_keys_are_equal_just_when_their_bytes_are_and_none_is_a_prefix(data: st.DataObject) -> None:
    schema = pa.schema(
        [(f"k{i}", parse_type(data.draw(types(maps=False)))) for i in range(data.draw(st.integers(1, 3)))]
    )
    keys = [data.draw(columns(field.type, 4)) for field in schema]
    codec = KeyCodec(schema)
    hashes = routing_hash(keys)
    bases = codec.encode(keys, np.zeros(4, np.uint16))
    rows = [_canonical(list(row)) for row in zip(*(column.to_pylist() for column in keys), strict=True)]
    for i in range(4):
        for j in range(4):
            assert (rows[i] == rows[j]) == (bases[i] == bases[j]), (rows[i], rows[j])
            assert bases[i] == bases[j] or not bases[j].startswith(bases[i])
            assert rows[i] != rows[j] or hashes[i] == hashes[j]
    long = dict(zip(bases, codec.key_bytes(keys), strict=True))
    decoded = codec.decode(bases, long)
    assert [_canonical(list(row)) for row in zip(*(c.to_pylist() for c in decoded), strict=True)] == rows
    assert all(codec.base_length(base + b"\x01tail") == len(base) for base in bases)


@_calm
@given(st.data(), st.sampled_from(["byte", "int", "long", "double", "date", "timestamp", "decimal(20,3)"]))
def test_number_keys_sort_as_the_numbers_do(data: st.DataObject, ddl: str) -> None:
    type = parse_type(ddl)
    numbers = [n for n in data.draw(st.lists(present(type), min_size=1, max_size=8)) if n == n]
    column = pa.array(numbers, type)
    bases = KeyCodec(pa.schema([("k", type)])).encode([column], np.zeros(len(numbers), np.uint16))
    assert [numbers[i] for i in sorted(range(len(numbers)), key=bases.__getitem__)] == sorted(numbers)


@_calm
@given(st.lists(st.binary(min_size=8, max_size=14), unique=True))
def test_ordering_byte_strings_is_sorting_them(keys: list[bytes]) -> None:
    assert [keys[i] for i in ordered(keys)] == sorted(keys)
    same_width = list({key.ljust(14, b"\x00") for key in keys})
    assert [same_width[i] for i in ordered(same_width)] == sorted(same_width)


@_calm
@given(layouts_and_changes())
def test_a_delta_gives_the_entries_that_were_written(drawn: tuple[StateLayout, Changes]) -> None:
    layout, changes = drawn
    entries = to_entries(layout, changes)
    keys = [key for key, _ in entries]
    assert keys == sorted(set(keys))
    assert max(map(len, keys), default=0) <= ENTRY_KEY_BYTES_MAX <= 511
    assert to_entries(layout, read_delta(layout, write_delta(layout, changes), "d")) == entries


@_calm
@given(layouts_and_changes(), st.integers(0, 127), st.integers(0, 128))
def test_a_rescaled_shard_reads_just_its_part(
    drawn: tuple[StateLayout, Changes], first: int, end: int
) -> None:
    layout, changes = drawn
    groups = KeyGroupRange(KeyGroup(first), KeyGroup(max(first, end)))
    part = read_delta(layout, write_delta(layout, changes), "d", groups)
    whole = to_entries(layout, changes)
    assert to_entries(layout, part) == [e for e in whole if int.from_bytes(e[0][:2], "big") in groups]


@_calm
@given(layouts_and_changes(), st.data())
def test_a_damaged_delta_is_refused_by_name(drawn: tuple[StateLayout, Changes], data: st.DataObject) -> None:
    layout, changes = drawn
    delta = write_delta(layout, changes)
    place, bit = data.draw(st.integers(0, len(delta) - 1)), data.draw(st.integers(0, 7))
    flipped = delta[:place] + bytes([delta[place] ^ 1 << bit]) + delta[place + 1 :]
    cut = delta[: data.draw(st.integers(0, len(delta) - 1))]
    for damaged in (flipped, cut):
        with pytest.raises(CorruptionError, match="epoch-7/shard-2"):
            read_delta(layout, damaged, "epoch-7/shard-2")


@_calm
@given(
    st.lists(
        st.text(min_size=KEY_BYTES_MAX, max_size=KEY_BYTES_MAX + 20), min_size=1, max_size=4, unique=True
    )
)
def test_keys_too_long_for_an_entry_come_back_whole(texts: list[str]) -> None:
    codec = KeyCodec(pa.schema([("k", pa.string())]))
    column = pa.array(texts)
    bases = codec.encode([column], key_groups_of(routing_hash([column]), 128))
    assert all(is_shortened(base) for base in bases)
    assert len({base + LONG_KEY_SUFFIX for base in bases}) == len(texts)
    real = dict(zip(bases, codec.key_bytes([column]), strict=True))
    assert codec.decode(bases, real)[0].to_pylist() == texts
