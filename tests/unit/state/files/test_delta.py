from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import KeyGroup, KeyGroupRange
from holdfast.state.encoding.expiry_index import UNKNOWN_DUE_MS, due_of, entry_of
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout, in_time_index
from holdfast.state.encoding.ttl import UNKNOWN_US, Ttl
from holdfast.state.encoding.types import parse_schema, parse_type
from holdfast.state.files.delta import (
    Changes,
    EntryChange,
    ValueChange,
    open_delta,
    read_delta,
    to_entries,
    write_delta,
)

_TOTAL = StateField(1, "total", StateKind.VALUE, parse_type("struct<sum:long,count:long>"))
_SEEN = StateField(2, "seen", StateKind.LIST, pa.string())
_BY_DAY = StateField(3, "by_day", StateKind.MAP, parse_type("map<string,long>"))
_LAYOUT = StateLayout("totals", parse_schema("user string"), (_TOTAL, _SEEN, _BY_DAY))


def _changes(layout: StateLayout = _LAYOUT, users: tuple[str, ...] = ("bo", "al", "cy")) -> Changes:
    keys = [pa.array(users)]
    groups = np.array([2, 1, 2][: len(users)], np.uint16)
    return Changes(keys, groups, layout.keys.encode(keys, groups))


def _story() -> Changes:
    """bo gets a total, al's is deleted; cy's list grows to 2; al's map gains mon and loses tue."""
    changes = _changes()
    totals = pa.array([{"sum": 10, "count": 2}, None], _TOTAL.type)
    changes.values["total"] = ValueChange(np.array([0, 1]), totals, np.array([False, True]))
    changes.headers["seen"] = ValueChange(np.array([2]), pa.array([2]))
    changes.entries["seen"] = EntryChange(np.array([2, 2]), pa.array([1, 0]), pa.array(["b", "a"]))
    changes.entries["by_day"] = EntryChange(
        np.array([1, 1]), pa.array(["tue", "mon"]), pa.array([None, 7], pa.int64()), np.array([True, False])
    )
    return changes


def test_entries_come_sorted_and_say_what_changed() -> None:
    bo, al, cy = _story().bases
    day = {name: b"\x01\x00\x00\x00\x03" + name.encode() for name in ("mon", "tue")}
    assert to_entries(_LAYOUT, _story()) == [
        (al + b"\x01", None),
        (al + b"\x03" + day["mon"], (7).to_bytes(8, "little")),
        (al + b"\x03" + day["tue"], None),
        (bo + b"\x01", b"\x03" + (10).to_bytes(8, "little") + (2).to_bytes(8, "little")),
        (cy + b"\x02", (2).to_bytes(8, "big")),
        (cy + b"\x02" + (0).to_bytes(8, "big"), b"\x01a"),
        (cy + b"\x02" + (1).to_bytes(8, "big"), b"\x01b"),
    ]


def test_a_delta_read_back_gives_the_same_entries() -> None:
    delta = write_delta(_LAYOUT, _story())
    assert to_entries(_LAYOUT, read_delta(_LAYOUT, delta, "d")) == to_entries(_LAYOUT, _story())


def test_a_list_that_is_gone_loses_its_header() -> None:
    changes = _changes()
    changes.headers["seen"] = ValueChange(np.array([0]), pa.array([0]), np.array([True]))
    read = read_delta(_LAYOUT, write_delta(_LAYOUT, changes), "d")
    assert to_entries(_LAYOUT, read) == [(changes.bases[0] + b"\x02", None)]


def test_an_epoch_without_changes_has_a_delta_too() -> None:
    for changes in (_changes(), _changes(users=())):
        assert to_entries(_LAYOUT, read_delta(_LAYOUT, write_delta(_LAYOUT, changes), "d")) == []


def test_the_order_in_which_changes_were_handed_over_leaves_no_trace() -> None:
    layout = replace(_LAYOUT, fields=(_TOTAL,))
    one, other = _changes(layout), _changes(layout)
    totals = pa.array([{"sum": n, "count": 1} for n in range(3)], _TOTAL.type)
    one.values["total"] = ValueChange(np.array([0, 1, 2]), totals)
    other.values["total"] = ValueChange(np.array([2, 0, 1]), totals.take(pa.array([2, 0, 1])))
    assert write_delta(layout, one) == write_delta(layout, other)


def test_only_the_asked_key_groups_are_read() -> None:
    delta = write_delta(_LAYOUT, _story())
    part = read_delta(_LAYOUT, delta, "d", KeyGroupRange(KeyGroup(2), KeyGroup(9)))
    assert part.keys[0].to_pylist() == ["bo", "cy"]
    assert to_entries(_LAYOUT, part) == to_entries(_LAYOUT, _story())[3:]


def test_a_plain_reader_sees_typed_columns(tmp_path: Path) -> None:
    file = tmp_path / "delta.parquet"
    file.write_bytes(write_delta(_LAYOUT, _story()))
    query = f"select key_group, key.user, state, op, total.sum, seen.item, by_day.key from '{file}'"
    assert duckdb.sql(query).fetchall() == [
        (1, "al", "total", "delete", None, None, None),
        (1, "al", "by_day", "put", None, None, "mon"),
        (1, "al", "by_day", "delete", None, None, "tue"),
        (2, "bo", "total", "put", 10, None, None),
        (2, "cy", "seen", "header", None, None, None),
        (2, "cy", "seen", "put", None, "a", None),
        (2, "cy", "seen", "put", None, "b", None),
    ]


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    delta = write_delta(_LAYOUT, _story())
    for place in range(len(delta)):
        flipped = bytearray(delta)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError, match="data/7/shard-2"):
            read_delta(_LAYOUT, bytes(flipped), "data/7/shard-2")
        with pytest.raises(CorruptionError, match="data/7/shard-2"):
            read_delta(_LAYOUT, delta[:place], "data/7/shard-2")


def test_states_may_be_named_like_our_own_columns() -> None:
    names = ("key", "key_", "op", "state", "key_group")
    fields = tuple(StateField(i, name, StateKind.VALUE, pa.int64()) for i, name in enumerate(names))
    layout = replace(_LAYOUT, fields=fields)
    changes = _changes(layout)
    for i, name in enumerate(names):
        changes.values[name] = ValueChange(np.array([0]), pa.array([i]))
    read = read_delta(layout, write_delta(layout, changes), "d")
    assert to_entries(layout, read) == to_entries(layout, changes)


def test_a_delta_of_another_operator_is_refused() -> None:
    with pytest.raises(RestoreError, match="belongs to operator 'totals', not to 'other'"):
        read_delta(replace(_LAYOUT, operator="other"), write_delta(_LAYOUT, _story()), "d")


def test_state_that_is_no_longer_declared_is_never_dropped_silently() -> None:
    with pytest.raises(RestoreError, match=r"by_day\), not under generation 0 \(states total, seen\)"):
        read_delta(replace(_LAYOUT, fields=(_TOTAL, _SEEN)), write_delta(_LAYOUT, _story()), "d")


def test_a_delta_of_another_generation_or_with_other_ids_is_refused() -> None:
    delta = write_delta(replace(_LAYOUT, generation=2), _story())
    assert to_entries(_LAYOUT, open_delta(delta, "d").changes(replace(_LAYOUT, generation=2)))
    with pytest.raises(RestoreError, match=r"generation 2 of operator 'totals'.*not under generation 0"):
        read_delta(_LAYOUT, delta, "d")
    swapped = (replace(_TOTAL, id=_SEEN.id), replace(_SEEN, id=_TOTAL.id), *_LAYOUT.fields[2:])
    with pytest.raises(RestoreError, match="delta d was written under generation 0"):
        read_delta(replace(_LAYOUT, fields=swapped), write_delta(_LAYOUT, _story()), "d")


def test_a_long_key_is_kept_beside_its_state_and_goes_when_the_state_goes() -> None:
    layout = replace(_LAYOUT, fields=(_TOTAL,))
    changes = _changes(layout, ("u" * 1000, "short"))
    real = layout.keys.key_bytes(changes.keys)[0]
    long = changes.bases[0] + b"\xff"
    values = pa.array([{"sum": 1, "count": 1}] * 2, _TOTAL.type)
    changes.values["total"] = ValueChange(np.array([0, 1]), values)
    assert dict(to_entries(layout, changes))[long] == real
    assert to_entries(layout, read_delta(layout, write_delta(layout, changes), "d")) == to_entries(
        layout, changes
    )
    changes.values["total"] = ValueChange(np.array([0, 1]), values, np.array([True, True]))
    assert dict(to_entries(layout, changes))[long] is None


def test_a_long_key_whose_state_did_not_change_leaves_no_entry() -> None:
    changes = _changes(users=("u" * 1000,))
    changes.values["total"] = ValueChange(np.array([], np.int64), pa.array([], _TOTAL.type))
    assert to_entries(_LAYOUT, changes) == []


def _timed() -> tuple[StateLayout, Changes]:
    """The story, of states with a ttl: some times are known, others are not."""
    fields = tuple(replace(field, ttl=Ttl(60_000)) for field in _LAYOUT.fields)
    changes = _story()
    changes.values["total"].times = np.array([1_000_000, UNKNOWN_US])
    changes.entries["seen"].times = np.array([3_000_000, UNKNOWN_US])
    changes.entries["by_day"].times = np.array([4_000_000, 5_000_000])
    return replace(_LAYOUT, fields=fields), changes


def test_times_stand_in_front_of_values_and_in_a_column_of_format_2() -> None:
    layout, changes = _timed()
    data = write_delta(layout, changes)
    table = pq.read_table(pa.BufferReader(data))
    assert table.schema.metadata[b"holdfast.format"] == b"2"
    assert [at and at.second for at in table["written"].to_pylist()] == [None, 5, 4, 1, None, None, 3]
    entries = dict(to_entries(layout, changes))
    assert to_entries(layout, read_delta(layout, data, "d")) == sorted(entries.items())
    bo, _, cy = changes.bases
    without = dict(to_entries(_LAYOUT, _story()))
    assert entries[bo + b"\x01"] == (1_000_000).to_bytes(8, "little") + (without[bo + b"\x01"] or b"")
    assert entries[cy + b"\x02"] == (2).to_bytes(8, "big"), "a header has no time"


def test_the_index_has_what_is_written_and_no_longer_what_is_deleted_with_its_time() -> None:
    layout, changes = _timed()
    found = [entry for entry in to_entries(layout, changes) if in_time_index(entry[0])]
    places = {(entry_of(layout, key), due_of(key)): value for key, value in found}
    bo, al, cy = changes.bases
    day = {name: b"\x01\x00\x00\x00\x03" + name.encode() for name in ("mon", "tue")}
    # A step is 3.75 s, so that what expires at 61 s is due at 63.75.
    assert places == {
        ((bo, b""), 63_750): b"",
        ((al, day["mon"]), 67_500): b"",
        ((al, day["tue"]), 67_500): None,
        ((cy, b""), 63_750): b"",
        ((cy, b""), UNKNOWN_DUE_MS): b"",
    }


def test_operators_without_a_ttl_have_deltas_of_format_1() -> None:
    data = write_delta(_LAYOUT, _story())
    table = pq.read_table(pa.BufferReader(data))
    assert table.schema.metadata[b"holdfast.format"] == b"1"
    assert "written" not in table.column_names


def test_the_longest_key_fits_into_the_index() -> None:
    field = StateField(1, "m", StateKind.MAP, parse_type("map<string,long>"), Ttl(60_000))
    key, tail = "k" * (400 - 5), "t" * (100 - 5)
    layout = StateLayout("totals", parse_schema("user string"), (field,))
    keys = [pa.array([key])]
    groups = np.array([1], np.uint16)
    changes = Changes(keys, groups, layout.keys.encode(keys, groups))
    changes.entries["m"] = EntryChange(np.array([0]), pa.array([tail]), pa.array([1]), None, np.array([0]))
    assert max(len(entry) for entry, _ in to_entries(layout, changes)) == 511
    ((place, _),) = [entry for entry in to_entries(layout, changes) if in_time_index(entry[0])]
    assert entry_of(layout, place) == (changes.bases[0], b"\x01" + (95).to_bytes(4, "big") + tail.encode())


def test_a_stored_delta_of_format_2_is_read_as_it_was_meant() -> None:
    """Written once and kept: a change of the format shows here."""
    layout, changes = _timed()
    stored = (Path(__file__).parents[3] / "fixtures" / "ttl" / "delta-2.parquet").read_bytes()
    assert to_entries(layout, read_delta(layout, stored, "delta-2")) == to_entries(layout, changes)
