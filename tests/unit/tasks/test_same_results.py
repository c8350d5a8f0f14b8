"""Replicas get the rows of an epoch in one order, whatever order Spark brings them in."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.state.contract import EMPTY_VERSION, Version
from holdfast.state.encoding.types import parse_type
from holdfast.storage.urls import open_storage
from holdfast.tasks.messages import EpochWork, Output, Payload, Workspace
from holdfast.tasks.same_results import content_of, in_one_order, without_hidden_bytes
from holdfast.tasks.task_output import TaskWriter

NANS = [struct.unpack("<d", struct.pack("<q", bits))[0] for bits in (0x7FF8000000000000, 0x7FF8000000000001)]
FLOATS = st.sampled_from([0.0, -0.0, float("inf"), *NANS]) | st.floats()
FEW = st.integers(-2, 2)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "long": FEW,
    "double": FLOATS,
    "string": st.sampled_from(["", "a", "b", "é"]),
    "binary": st.sampled_from([b"", b"\0", b"\xff"]),
    "decimal(5,2)": FEW.map(lambda n: Decimal(n) / 100),
    "date": FEW.map(lambda n: dt.date(2020, 1, 5) + dt.timedelta(days=n)),
    "timestamp": FEW.map(lambda n: dt.datetime(2020, 1, 5, tzinfo=dt.UTC) + dt.timedelta(seconds=n)),
    "timestamp_ntz": FEW.map(lambda n: dt.datetime(2020, 1, 5) + dt.timedelta(seconds=n)),
    "interval day to second": FEW.map(lambda n: dt.timedelta(seconds=n)),
    "time(6)": FEW.map(lambda n: dt.time(12, 30 + n)),
    "void": st.none(),
}


def _nested(inner: tuple[str, st.SearchStrategy[Any]]) -> list[tuple[str, st.SearchStrategy[Any]]]:
    name, values = inner
    some = st.none() | values
    return [
        inner,
        (f"array<{name}>", st.lists(some, max_size=2)),
        (f"struct<a:{name},b:long>", st.fixed_dictionaries({"a": some, "b": FEW})),
        (f"map<string,{name}>", st.dictionaries(st.sampled_from("xy"), some).map(lambda d: list(d.items()))),
        (
            f"array<struct<a:array<{name}>>>",
            st.lists(st.fixed_dictionaries({"a": st.lists(some)}), max_size=2),
        ),
    ]


WRAPPED: dict[str, Callable[[int], Any]] = {
    "array<{}>": lambda at: [at],
    "struct<a:{}>": lambda at: {"a": at},
    "map<string,{}>": lambda at: [("x", at)],
    "array<struct<a:array<{}>>>": lambda at: [{"a": [at]}],
}
TYPES = [each for leaf in LEAVES.items() for each in _nested(leaf)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Some rows, and the same in another order and other batches."""
    columns = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    count = draw(st.integers(0, 6))
    arrays = []
    for name, values in columns:
        rows = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        arrays.append(pa.array(rows, parse_type(name)))
    table = pa.table(arrays, names=[f"c{number}" for number in range(len(columns))])
    order = draw(st.permutations(range(count)))
    cut = draw(st.integers(0, count))
    shuffled = table.take(pa.array(order, pa.int64()))
    parts = [shuffled.slice(0, cut).combine_chunks(), shuffled.slice(cut).combine_chunks()]
    return table, pa.concat_tables(parts)


def stored(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_the_same_rows_come_in_one_order_to_the_last_bit(both: tuple[pa.Table, pa.Table]) -> None:
    one, other = (in_one_order(table, replicated=True) for table in both)
    assert stored(one) == stored(other)
    assert one.num_rows == both[0].num_rows


@pytest.mark.parametrize("name", [name for name, _ in TYPES])
def test_rows_of_every_type_can_be_ordered(name: str) -> None:
    nothing = pa.table({"c": pa.array([None, None], parse_type(name))})
    assert in_one_order(nothing, replicated=True).equals(nothing)


def test_floats_are_told_apart_to_the_last_bit() -> None:
    values = [*NANS, -0.0, 0.0]
    orders = [in_one_order(pa.table({"c": rows}), True)["c"].to_pylist() for rows in (values, values[::-1])]
    assert [struct.pack("<d", value) for value in orders[0]] == [
        struct.pack("<d", value) for value in orders[1]
    ]


@pytest.mark.parametrize("nested", WRAPPED)
@pytest.mark.parametrize("time", ["timestamp", "timestamp_ntz"])
def test_times_that_python_has_no_word_for_are_rows_like_others(nested: str, time: str) -> None:
    """A day that never comes, 9999-12-31, is after that year by the clock of Greenwich."""
    type = parse_type(nested.format(time))
    plain = parse_type(nested.format("long"))
    never, later = 253_402_300_800_000_000, 253_402_300_800_000_001
    orders = [(never, later), (later, never)]
    rows = [pa.array([WRAPPED[nested](at) for at in times], plain).view(type) for times in orders]
    one, other = (in_one_order(pa.table({"c": each}), replicated=True) for each in rows)
    assert stored(one) == stored(other)
    assert stored(without_hidden_bytes(one)) == stored(one)


def test_rows_of_a_part_without_replicas_stay_as_they_came() -> None:
    table = pa.table({"c": [3, 1, 2]})
    assert in_one_order(table, replicated=False) is table


def payload(checksum: str) -> Payload:
    return Payload(checksum=checksum, length=1)


def output(checksum: str = "s", name: str = "out", rows: int = 1) -> Output:
    return Output(name=name, rows=rows, payload=payload(checksum))


def test_a_result_is_named_by_what_it_followed_what_it_changed_and_what_it_gave_out() -> None:
    named = content_of(EMPTY_VERSION, payload("d"), [output()])
    assert named == content_of(EMPTY_VERSION, payload("d"), [output()])
    other = [
        content_of(Version(epoch=1, attempt=1, result="x"), payload("d"), [output()]),
        content_of(EMPTY_VERSION, payload("e"), [output()]),
        content_of(EMPTY_VERSION, None, [output()]),
        content_of(EMPTY_VERSION, payload("d"), [output("t")]),
        content_of(EMPTY_VERSION, payload("d"), [output(name="side")]),
        content_of(EMPTY_VERSION, payload("d"), [output(rows=2)]),
        content_of(EMPTY_VERSION, payload("d"), []),
    ]
    assert len({named, *other}) == 1 + len(other)


def _hiding(type: pa.DataType, hidden: bytes) -> pa.Array:
    """A value, a null behind which these bytes stand, and a value."""
    valid, others = pa.py_buffer(bytes([0b101])), bytes(len(hidden))
    return pa.Array.from_buffers(type, 3, [valid, pa.py_buffer(others + hidden + others)], 1)


def _hiding_text(hidden: bytes) -> pa.Array:
    ends = np.cumsum([0, 1, len(hidden), 1]).astype(np.int32)
    buffers = [bytes([0b101]), ends.tobytes(), b"a" + hidden + b"b"]
    return pa.Array.from_buffers(pa.string(), 3, list(map(pa.py_buffer, buffers)), 1)


HIDDEN = {
    "long": [_hiding(pa.int64(), bytes([byte] * 8)) for byte in (1, 2)],
    "byte": [_hiding(pa.int8(), bytes([byte])) for byte in (1, 2)],
    "double": [_hiding(pa.float64(), bytes([byte] * 8)) for byte in (1, 2)],
    "timestamp": [_hiding(pa.timestamp("us"), bytes([byte] * 8)) for byte in (1, 2)],
    "decimal": [_hiding(pa.decimal128(10, 2), bytes([byte] * 16)) for byte in (1, 2)],
    "string": [_hiding_text(hidden) for hidden in (b"x", b"yyy")],
    "boolean": [
        pa.Array.from_buffers(pa.bool_(), 3, [pa.py_buffer(bytes([0b101])), pa.py_buffer(bytes([bits]))], 1)
        for bits in (0b011, 0b001)
    ],
    "boolean without nulls": [
        pa.Array.from_buffers(pa.bool_(), 3, [None, pa.py_buffer(bytes([bits]))]) for bits in (0b011, 0b1011)
    ],
    "struct": [pa.StructArray.from_arrays([_hiding(pa.int64(), bytes([n] * 8))], ["x"]) for n in (1, 2)],
    "array": [
        pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), _hiding(pa.int64(), bytes([n] * 8)))
        for n in (1, 2)
    ],
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_what_stands_behind_a_null_is_not_part_of_what_a_replica_has_made(kind: str, tmp_path: Path) -> None:
    tables = [pa.table({"c": column}) for column in HIDDEN[kind]]
    assert tables[0].equals(tables[1])
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for replicated, found in names.items():
        work = EpochWork(Workspace("job", str(tmp_path), None, "lmdb"), 1, 1, "r", 0, replicated)
        for table in tables:
            outputs = TaskWriter(open_storage(str(tmp_path)), work, 0).stage({"": table}, [""])
            found.add(content_of(EMPTY_VERSION, None, outputs))
    assert len(names[True]) == 1
    assert len(names[False]) == 2, "these tables are of no use here: their bytes are the same already"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_rows_without_hidden_bytes_are_the_same_rows(data: st.DataObject) -> None:
    name, values = data.draw(st.sampled_from(sorted(LEAVES.items(), key=lambda each: each[0])))
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=5)), parse_type(name))
    table = pa.table({"c": pa.chunked_array([column, column.slice(1)])})
    assert str(without_hidden_bytes(table).to_pylist()) == str(table.to_pylist())
    assert without_hidden_bytes(table).schema == table.schema
