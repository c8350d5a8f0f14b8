from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import DefinitionError
from holdfast.state.encoding.layout import (
    ENTRY_KEY_BYTES_MAX,
    StateField,
    StateKind,
    StateLayout,
    decode_header,
    encode_headers,
    item_keys,
    map_entries,
    map_tails,
    state_keys,
)
from holdfast.state.encoding.types import parse_schema, parse_type

_TOTAL = StateField(1, "total", StateKind.VALUE, pa.int64())
_SEEN = StateField(2, "seen", StateKind.LIST, pa.string())
_BY_DAY = StateField(3, "by_day", StateKind.MAP, parse_type("map<string,long>"))
_LAYOUT = StateLayout("totals", parse_schema("user string, day date"), (_TOTAL, _SEEN, _BY_DAY))


def test_a_layout_survives_the_trip_to_a_worker_even_after_use() -> None:
    _LAYOUT.keys, _TOTAL.codec, _BY_DAY.map_keys  # noqa: B018
    assert pickle.loads(pickle.dumps(_LAYOUT)) == _LAYOUT


def test_a_layout_is_told_in_plain_data_and_read_back() -> None:
    key, states = _LAYOUT.schema_rows()
    assert key == (("user", "string"), ("day", "date"))
    assert states[2] == (3, "by_day", "map", "map<string,long>")
    assert StateLayout.of_rows("totals", key, states) == _LAYOUT


def test_entry_keys_never_change() -> None:
    base = [b"BASE"]
    assert state_keys(_TOTAL, base) == [b"BASE\x01"]
    assert item_keys(_SEEN, base, np.array([258])) == [b"BASE\x02" + (258).to_bytes(8, "big")]
    assert map_tails(_BY_DAY, pa.array(["mon"])) == ([b"\x01\x00\x00\x00\x03mon"], [b""])


def test_list_headers_hold_the_next_sequence_number() -> None:
    assert encode_headers(np.array([7])) == [(7).to_bytes(8, "big")]
    assert decode_header(encode_headers(np.array([7]))[0]) == 7
    assert decode_header(None) == 0


def test_long_map_keys_are_kept_whole_in_the_value() -> None:
    keys = pa.array(["m" * 95, "m" * 96, None, ""])
    tails, heads = map_tails(_BY_DAY, keys)
    assert [len(tail) for tail in tails] == [100, 33, 1, 5]
    stored = [(tail, head + b"value") for tail, head in zip(tails, heads, strict=True)]
    read, values = map_entries(_BY_DAY, stored)
    assert read.equals(keys)
    assert values == [b"value"] * 4


def test_no_entry_key_is_too_long_for_lmdb() -> None:
    assert ENTRY_KEY_BYTES_MAX <= 511


@pytest.mark.parametrize("id", [-1, 255])
def test_state_ids_that_one_byte_cannot_hold_or_that_are_taken_are_refused(id: int) -> None:
    with pytest.raises(DefinitionError, match="ids go from 0 to 254"):
        StateField(id, "x", StateKind.VALUE, pa.int64())


def test_states_that_meet_in_storage_are_refused() -> None:
    with pytest.raises(DefinitionError, match="id twice"):
        StateLayout("o", _LAYOUT.key, (_TOTAL, StateField(1, "other", StateKind.VALUE, pa.int64())))
    with pytest.raises(DefinitionError, match="name twice"):
        StateLayout("o", _LAYOUT.key, (_TOTAL, StateField(2, "total", StateKind.VALUE, pa.int64())))
    with pytest.raises(DefinitionError, match="needs a map type"):
        StateField(1, "m", StateKind.MAP, pa.int64())
