"""Keys of the time index: in the order of times, and back to what they were made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.state.cells.timers import timer_fields
from holdfast.state.encoding.arrow_values import FIRST_US, LAST_US
from holdfast.state.encoding.key_bytes import encode_column
from holdfast.state.encoding.keys import KEY_BYTES_MAX, KeyCodec
from holdfast.state.encoding.layout import (
    ENTRY_KEY_BYTES_MAX,
    TIME_TYPE,
    in_time_index,
    is_shortened,
    of_time_key,
    time_keys,
    time_prefix,
    time_tail,
)

EVENT, PROCESSING = timer_fields(3)
TIMES = [FIRST_US, -1_000_001, -1, 0, 1, 1_700_000_000_000_000, LAST_US]
KEYS = ["", "a", "a\x00b", "x" * (KEY_BYTES_MAX - 10), "y" * 5_000]
CODEC = KeyCodec(pa.schema([("user", pa.string())]))


def time_key(base: bytes, suffix: bytes, tail: bytes) -> bytes:
    return time_keys(suffix, [base], [base + suffix + tail])[0]


def bases(*groups: int) -> list[bytes]:
    return [
        CODEC.encode([pa.array([key])], np.array([group], np.uint16))[0] for group in groups for key in KEYS
    ]


def test_a_time_is_written_as_a_map_key_of_that_type_is() -> None:
    assert encode_column(pa.array(TIMES, pa.int64()).cast(TIME_TYPE)) == [time_tail(at) for at in TIMES]


@pytest.mark.parametrize("base", bases(0, 511))
@pytest.mark.parametrize("at", TIMES)
def test_time_and_key_come_back(at: int, base: bytes) -> None:
    key = time_key(base, EVENT.suffix, time_tail(at))
    assert of_time_key(key, EVENT) == (at, base)
    assert in_time_index(key)
    assert not in_time_index(base)
    assert len(key) <= ENTRY_KEY_BYTES_MAX


def test_there_is_a_key_that_was_shortened() -> None:
    assert [is_shortened(base) for base in bases(0)] == [False, False, False, False, True]


def test_the_index_is_in_the_order_of_groups_states_and_times_and_behind_the_entries() -> None:
    made = [
        time_key(base, field.suffix, time_tail(at))
        for group in (3, 4)
        for field in (EVENT, PROCESSING)
        for at in TIMES
        for base in sorted(bases(group))
    ]
    assert made == sorted(made)
    of_group_3 = [key for key in made if key[:2] == b"\x00\x03"]
    assert max(bases(3)) + b"\xff" * 200 < min(of_group_3)
    assert max(of_group_3) < min(bases(4))


def test_what_is_up_to_a_time_ends_before_the_next() -> None:
    prefix, until = time_prefix(3, EVENT), 0
    end = prefix + time_tail(until + 1)
    for base in bases(3):
        due = [at for at in TIMES if time_key(base, EVENT.suffix, time_tail(at)) < end]
        assert due == [at for at in TIMES if at <= until]
        assert all(time_key(base, EVENT.suffix, time_tail(at)).startswith(prefix) for at in TIMES)
        assert not time_key(base, PROCESSING.suffix, time_tail(0)).startswith(prefix)
