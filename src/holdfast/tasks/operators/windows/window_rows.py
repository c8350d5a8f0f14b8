"""What operators over windows share: times as numbers, ends of windows, late rows, entries by time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.graph.event_time import TIME_MAX_US
from holdfast.graph.windows import LATE_WATERMARK, TimeWindow
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import TIME_TYPE, StateField, map_tails
from holdfast.tasks.operators.result import FOREVER_US, EventTime
from holdfast.tasks.operators.shard_rows import KeyedSlice, numbered

Times = npt.NDArray[np.int64]
"""µs since 1970."""
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LEAST = np.iinfo(np.int64).min  # of which there is no absolute value
NEVER_US = -FOREVER_US
"""Earlier than every time: where event time is not known yet."""


def watermarks(time: EventTime | None) -> tuple[int, int]:
    """Up to where windows were closed before the epoch, and are after it."""
    time = time or EventTime()
    before, now = (NEVER_US if at is None else max(at, NEVER_US) for at in (time.before_us, time.now_us))
    return before, now


def micros_of(times: pa.Array) -> tuple[Times, Flags]:
    """A column of timestamps as numbers, and which of them are in a window: 0 stands for the others."""
    numbers = np.asarray(times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()).fill_null(0))
    usable = np.asarray(times.is_valid()) & (np.abs(numbers) <= TIME_MAX_US) & (numbers != _LEAST)
    return np.where(usable, numbers, 0), usable


def timestamps(times: Times) -> pa.Array:
    """Numbers as the times of TIMED states."""
    return pa.array(times, pa.int64()).cast(TIME_TYPE)


def without_late(keyed: KeyedSlice, on: str, late: Flags, before_us: int) -> tuple[KeyedSlice, pa.Table]:
    """The slice without its late rows; and these, with the watermark that they came after."""
    rows, type = keyed.rows.filter(pa.array(late)), keyed.rows.schema.field(on).type
    watermark = None if before_us == NEVER_US else before_us
    column = pa.array([watermark] * rows.num_rows, pa.int64()).cast(type)
    given = rows.append_column(pa.field(LATE_WATERMARK, type), column)
    return without_rows(keyed, late), given


def without_rows(keyed: KeyedSlice, which: Flags) -> KeyedSlice:
    """The slice without some of its rows; its keys stay."""
    if not which.any():
        return keyed
    return replace(keyed, rows=keyed.rows.filter(pa.array(~which)), index=keyed.index[~which])


def paired(keys: Numbers, times: Times) -> Numbers:
    """A number for each pair, the same for equal ones."""
    codes = numbered(times)
    return keys * (int(codes.max(initial=0)) + 1) + codes


def of_pairs(keyed: KeyedSlice, index: npt.NDArray[np.int32], keys: Numbers) -> KeyedSlice:
    """The slice as an aggregation takes it, to which each window (or pane) of a key is a key: `index` says
    which each row belongs to, `keys` the key of each."""
    return replace(
        keyed,
        index=index,
        keys=tuple(column.take(pa.array(keys)) for column in keyed.keys),
        groups=keyed.groups[keys],
        bases=[keyed.bases[key] for key in keys.tolist()],
    )


def read_timed(field: StateField, state: ShardState, bases: list[bytes], map_keys: pa.Array) -> pa.Array:
    """Entries of a TIMED state, by key and map key; null where there is none."""
    tails, _ = map_tails(field, map_keys)
    keys = [base + field.suffix + tail for base, tail in zip(bases, tails, strict=True)]
    return field.codec.decode(state.get_many(keys))


def last_ends(window: TimeWindow, starts: Times) -> Times:
    """Where the last windows end that panes are in."""
    last_begins = (starts - window.offset_us) // window.every_us * window.every_us + window.offset_us
    return last_begins + window.size_us


def next_ends(window: TimeWindow, times: Times) -> Times:
    """The first ends of windows after some times; where panes begin there, of those that they are in."""
    ends_from = window.offset_us + window.size_us
    return (times - ends_from) // window.every_us * window.every_us + window.every_us + ends_from


def next_end(window: TimeWindow, after_us: int) -> int:
    """The first end of a window of which not all was complete at `after_us`: its last µs is later."""
    if after_us == NEVER_US:
        return NEVER_US
    return int(next_ends(window, np.array([after_us + 1], np.int64))[0])
