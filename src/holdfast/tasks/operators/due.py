"""What has become due in a shard, by the time index of its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.ids import KeyGroupRange
from holdfast.state.contract import ShardState
from holdfast.state.encoding.layout import (
    LONG_KEY_SUFFIX,
    StateField,
    StateLayout,
    entry_of_time_key,
    is_shortened,
    of_time_key,
    of_time_keys,
    time_prefix,
    time_tail,
    timed_map_keys,
)
from holdfast.state.files.changes import Changes
from holdfast.tasks.operators.result import FOREVER_US
from holdfast.tasks.operators.shard_rows import KeyedSlice

DueByBase = dict[bytes, list[int]]
"""Base of a key -> its times, in order."""


def due_map_keys(
    field: StateField, groups: KeyGroupRange, state: ShardState, until_us: int
) -> tuple[pa.Array, list[bytes]]:
    """The map keys with times up to `until_us` that a TIMED state holds, and the base of each; those of a key
    in order."""
    return of_time_keys(list(_due_keys(field, groups, state, until_us)), field)


def due_times(field: StateField, groups: KeyGroupRange, state: ShardState, until_us: int) -> DueByBase:
    """The times up to `until_us` that a TIMED state holds, by key."""
    found: DueByBase = {}
    times, bases = due_map_keys(field, groups, state, until_us)
    for at_us, base in zip(times.cast(pa.int64()).to_pylist(), bases, strict=True):
        found.setdefault(base, []).append(at_us)
    return found


def due_entries(
    field: StateField, groups: KeyGroupRange, state: ShardState, until_us: int
) -> list[tuple[bytes, bytes]]:
    """Of the entries of a TIMED state with times up to `until_us` the base and the map key."""
    return [entry_of_time_key(key, field) for key in _due_keys(field, groups, state, until_us)]


def _due_keys(field: StateField, groups: KeyGroupRange, state: ShardState, until_us: int) -> Iterator[bytes]:
    """The keys of the time index up to `until_us`. Reads nothing that is not due."""
    for group in range(groups.first, groups.end):
        prefix = time_prefix(group, field)
        end = None if until_us >= FOREVER_US else prefix + time_tail(until_us + 1)
        for key, _ in state.scan(prefix, end):
            yield key


def map_keys_of(field: StateField, state: ShardState, bases: Iterable[bytes]) -> tuple[pa.Array, list[bytes]]:
    """All map keys that a TIMED state holds for these keys, and the base of each."""
    found = [(base, key[len(base) + 1 :]) for base in bases for key, _ in state.scan(base + field.suffix)]
    return timed_map_keys([tail for _, tail in found], field), [base for base, _ in found]


def earliest(
    field: StateField, groups: KeyGroupRange, state: ShardState, from_us: int | None = None
) -> int | None:
    """The earliest time that a TIMED state holds, of those at `from_us` or later; None: it holds none."""
    start = b"" if from_us is None else time_tail(from_us)
    firsts = (
        next(state.scan(time_prefix(group, field), start=start), None)
        for group in range(groups.first, groups.end)
    )
    return min((of_time_key(found[0], field)[0] for found in firsts if found is not None), default=None)


def with_keys(
    keyed: KeyedSlice, layout: StateLayout, state: ShardState, bases: Sequence[bytes]
) -> tuple[KeyedSlice, dict[bytes, int]]:
    """The slice, with the keys of these bases in it, also those that have no rows; and the number of each."""
    keys, groups, all_bases, numbers = _more_keys(keyed.keys, keyed.groups, keyed.bases, layout, state, bases)
    if len(all_bases) == len(keyed.bases):
        return keyed, numbers
    return replace(keyed, keys=keys, groups=groups, bases=all_bases), numbers


def with_changed_keys(
    changes: Changes, layout: StateLayout, state: ShardState, bases: Sequence[bytes]
) -> tuple[Changes, dict[bytes, int]]:
    """The changes, with the keys of these bases among the changed ones; and the number of each."""
    keys, groups, all_bases, numbers = _more_keys(
        changes.keys, changes.groups, changes.bases, layout, state, bases
    )
    return replace(changes, keys=keys, groups=groups, bases=all_bases, _ranks=None), numbers


def _more_keys(
    keys: Sequence[pa.Array],
    groups: npt.NDArray[np.uint16],
    known: list[bytes],
    layout: StateLayout,
    state: ShardState,
    bases: Sequence[bytes],
) -> tuple[tuple[pa.Array, ...], npt.NDArray[np.uint16], list[bytes], dict[bytes, int]]:
    numbers = {base: number for number, base in enumerate(known)}
    absent = [base for base in dict.fromkeys(bases) if base not in numbers]
    if not absent:
        return tuple(keys), groups, known, numbers
    numbers.update({base: number for number, base in enumerate(absent, len(known))})
    long = [base for base in absent if is_shortened(base)]
    real = state.get_many([base + LONG_KEY_SUFFIX for base in long])
    long_keys = {base: key for base, key in zip(long, real, strict=True) if key is not None}
    columns = layout.keys.decode(absent, long_keys)
    of_absent = np.fromiter((int.from_bytes(base[:2], "big") for base in absent), np.uint16, len(absent))
    joined = tuple(
        pa.concat_arrays([own, column.cast(own.type)]) for own, column in zip(keys, columns, strict=True)
    )
    return joined, np.concatenate([groups, of_absent]), [*known, *absent], numbers
