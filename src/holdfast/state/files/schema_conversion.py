"""State that older code wrote, as newer code declares it: entry by entry, by the operator's lineage.

A lineage is every layout that an operator ever had, oldest first. State goes through all of them in turn, so
that it comes out the same whenever it is converted: at the first upgrade, or at the third from an old file.
Always true: keys keep their order; state ids keep their meaning through the whole lineage; a null stays null;
the times of a state that got its ttl, or another clock for it, are not known, so that it counts from then on.
Never here: whether one layout may follow another (see evolution).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import Convert, Entries
from holdfast.state.encoding.expiry_index import expiry_keys
from holdfast.state.encoding.key_bytes import encode_column
from holdfast.state.encoding.keys import LONG_KEY_TAG, PREFIX_BYTES
from holdfast.state.encoding.layout import (
    LONG_KEY_ID,
    StateField,
    StateKind,
    StateLayout,
    in_time_index,
)
from holdfast.state.encoding.ttl import TIME_BYTES, UNKNOWN_US, times_of, with_times
from holdfast.state.encoding.types import is_variant, type_ddl
from holdfast.state.files.delta import Entry, open_delta, to_entries


@dataclass(frozen=True)
class Generation:
    """A layout, and by state id the stored value whose fields fill those that came with this layout.

    `aggregates`: by state id, of what `aggregate` keeps, field -> the aggregate that it belongs to, where
    known. It changes no byte.
    """

    layout: StateLayout
    fills: Mapping[int, bytes] = field(default_factory=dict)
    aggregates: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lineage:
    """Every layout of one operator, oldest first; the last one is in force. Crosses to workers."""

    generations: tuple[Generation, ...]

    @staticmethod
    def begin(layout: StateLayout) -> Lineage:
        """The lineage of an operator that has no state yet."""
        return Lineage((Generation(layout),))

    @property
    def layout(self) -> StateLayout:
        return self.generations[-1].layout

    @cached_property
    def fingerprint(self) -> str:
        """The same for lineages that read and write the same bytes."""
        rows = [
            (g.layout.schema_rows(), sorted((id, fill.hex()) for id, fill in g.fills.items()))
            for g in self.generations
        ]
        return hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()

    def __reduce__(self) -> Any:
        return Lineage, (self.generations,)

    def at(self, generation: int, name: str) -> StateLayout:
        """The layout of a generation. RestoreError, naming the file: there is none such."""
        if not 0 <= generation < len(self.generations):
            raise RestoreError(
                f"{name} was written under generation {generation} of operator {self.layout.operator!r}, "
                f"the checkpoint knows {len(self.generations)}; start from the checkpoint that it belongs to"
            )
        return self.generations[generation].layout

    def converter(self, generation: int, name: str) -> Convert | None:
        """What turns entries of files of that generation into entries of the layout in force; None: they are.

        It is given consecutive runs of entries in key order and gives them back in key order, with what the
        index of expiries has of them.
        """
        start = self.at(generation, name)
        if generation == len(self.generations) - 1:
            return None
        return _Converter(start, self.generations[generation + 1 :], name)


def delta_entries(
    lineage: Lineage, data: bytes, name: str, groups: KeyGroupRange | None = None
) -> list[tuple[bytes, bytes | None]]:
    """The entries of a delta of any generation, as those of the layout in force. `name` is for errors."""
    delta = open_delta(data, name)
    layout = lineage.at(delta.generation, f"delta {name}")
    entries = to_entries(layout, delta.changes(layout, groups))
    convert = lineage.converter(delta.generation, f"delta {name}")
    return entries if convert is None else convert(entries)


@dataclass(frozen=True)
class _Step:
    type: pa.DataType
    fill: Any


@dataclass(frozen=True)
class _Path:
    """What becomes of one stored state. `target` is None: it was dropped on the way."""

    source: StateField
    target: StateField | None
    steps: tuple[_Step, ...]

    keeps_times: bool = False
    """Source and target have a ttl, by one clock all the way: times stay as they are."""

    @cached_property
    def unchanged(self) -> bool:
        if self.target is None or not all(same(step.type, self.source.type) for step in self.steps):
            return False
        return self.keeps_times or (self.source.ttl is None and self.target.ttl is None)

    @cached_property
    def moves_expiries(self) -> bool:
        """Whether what is stored is due at other times than before, or no longer."""
        return self.target is None or self.source.ttl != self.target.ttl


class _Converter:
    def __init__(self, start: StateLayout, later: Sequence[Generation], name: str) -> None:
        self._base_lengths = start.keys.base_lengths
        self._paths = {state.id: _path(state, later) for state in start.fields}
        self._name = name

    def __call__(self, entries: Entries) -> Entries:
        # The index is behind the entries of its key group, so a run that is cut there stays in order.
        converted = [
            entry
            for indexed, run in groupby(entries, key=lambda entry: in_time_index(entry[0]))
            for entry in (self._index(run) if indexed else self._entries(list(run)))
        ]
        expiries = self._expiries(converted)
        return sorted({**dict(converted), **expiries}.items()) if expiries else converted

    def _index(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """What is in the index stays, unless its state was dropped or is due otherwise."""
        for entry in entries:
            path = self._paths.get(entry[0][PREFIX_BYTES])
            if path is not None and path.target is not None and not path.moves_expiries:
                yield entry

    def _expiries(self, converted: Entries) -> dict[bytes, bytes | None]:
        """Where the index has the converted entries of states whose ttl has changed."""
        moved = {
            path.target.id: path.target
            for path in self._paths.values()
            if path.target is not None and path.target.ttl is not None and path.moves_expiries
        }
        if not moved:
            return {}
        own = [(key, value) for key, value in converted if value is not None and not in_time_index(key)]
        by_state: dict[int, list[tuple[bytes, bytes, bytes]]] = {id: [] for id in moved}
        for (key, value), end in zip(own, self._base_lengths([key for key, _ in own]), strict=True):
            is_header = len(key) == end + 1 and key[end] in moved and moved[key[end]].kind is StateKind.LIST
            if key[end] in moved and not is_header:
                by_state[key[end]].append((key[:end], key[end + 1 :], value))
        found: dict[bytes, bytes | None] = {}
        for id, entries in by_state.items():
            if entries:
                bases, tails, values = zip(*entries, strict=True)
                found.update(dict.fromkeys(expiry_keys(moved[id], bases, times_of(values), tails), b""))
        return found

    def _entries(self, entries: Entries) -> Entries:
        keys = [key for key, _ in entries]
        ends = self._base_lengths(keys)
        by_state: dict[int, list[int]] = {key[end]: [] for key, end in zip(keys, ends, strict=True)}
        for index, (key, end) in enumerate(zip(keys, ends, strict=True)):
            by_state[key[end]].append(index)
        result: list[tuple[bytes, bytes | None] | None] = list(entries)
        for id, indices in by_state.items():
            if id == LONG_KEY_ID:
                continue
            path = self._paths.get(id)
            if path is None:
                raise CorruptionError(
                    f"{self._name} holds entries of state id {id}, which its schema lacks; "
                    "restore the file from a copy"
                )
            if path.target is None:
                for index in indices:
                    result[index] = None
            elif not path.unchanged:
                self._convert(path, entries, ends, indices, result)
        return [entry for entry in result if entry is not None]

    def _convert(
        self,
        path: _Path,
        entries: Entries,
        ends: list[int],
        indices: list[int],
        result: list[tuple[bytes, bytes | None] | None],
    ) -> None:
        if path.source.kind is StateKind.LIST:
            # The header of a list holds a number of its own, whatever the type of the items.
            indices = [index for index in indices if len(entries[index][0]) > ends[index] + 1]
        keys = [entries[index][0] for index in indices]
        heads, stored = [b""] * len(indices), [entries[index][1] for index in indices]
        before_times, stored = _without_times(path, stored)
        if path.source.is_map:
            starts = [ends[index] + 1 for index in indices]
            heads, stored = _without_heads(keys, starts, stored)
            keys = _map_keys(path, keys, starts)
        values = _values(path, stored)
        times = before_times if path.keeps_times else _UNKNOWN_TIME
        time = times if path.target is not None and path.target.ttl is not None else b""
        places = enumerate(zip(indices, keys, heads, stored, values, strict=True))
        for place, (index, key, head, before, value) in places:
            front = time[place] if isinstance(time, list) else time
            result[index] = (key, None if before is None else front + head + value)


def _path(state: StateField, later: Sequence[Generation]) -> _Path:
    steps: list[_Step] = []
    target, keeps_times = state, state.ttl is not None
    for generation in later:
        found = next((f for f in generation.layout.fields if f.id == state.id), None)
        if found is None:
            return _Path(state, None, ())
        stored = generation.fills.get(state.id)
        steps.append(_Step(found.type, found.codec.decode_one(stored) if stored else None))
        keeps_times &= found.ttl is not None and state.ttl is not None and found.ttl.clock == state.ttl.clock
        target = found
    return _Path(state, target, tuple(steps), keeps_times)


_UNKNOWN_TIME = with_times(np.array([UNKNOWN_US]), [b""])[0]


def _without_times(path: _Path, stored: list[bytes | None]) -> tuple[list[bytes], list[bytes | None]]:
    """The times in front of the values of a state that had a ttl, as bytes, and the rest."""
    if path.source.ttl is None:
        return [], stored
    times = [(value or b"")[:TIME_BYTES] for value in stored]
    return times, [None if value is None else value[TIME_BYTES:] for value in stored]


def _without_heads(
    keys: list[bytes], starts: list[int], stored: list[bytes | None]
) -> tuple[list[bytes], list[bytes | None]]:
    """What precedes the values of a map (real map keys, where those were shortened), and the values."""
    heads, values = [], []
    for key, start, value in zip(keys, starts, stored, strict=True):
        end = 0
        if value is not None and key[start] == LONG_KEY_TAG:
            end = 4 + int.from_bytes(value[:4], "big")
        heads.append(b"" if value is None else value[:end])
        values.append(None if value is None else value[end:])
    return heads, values


def _map_keys(path: _Path, keys: list[bytes], starts: list[int]) -> list[bytes]:
    """Entry keys whose map keys are of the new type. Types that may change are never shortened."""
    if all(same(step.type.key_type, path.source.type.key_type) for step in path.steps):
        return keys
    tails = [key[start:] for key, start in zip(keys, starts, strict=True)]
    column = path.source.map_keys.decode_key_bytes(tails)[0]
    for step in path.steps:
        column = converted(column, step.type.key_type)
    return [key[:start] + tail for key, start, tail in zip(keys, starts, encode_column(column), strict=True)]


def _values(path: _Path, stored: list[bytes | None]) -> list[bytes]:
    assert path.target is not None
    of_map = path.source.is_map
    values = path.source.codec.decode(stored)
    for step in path.steps:
        values = converted(values, step.type.item_type if of_map else step.type, step.fill)
    return path.target.codec.encode(values)


def same(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are one: Arrow's equality passes over what marks a variant."""
    return type_ddl(a) == type_ddl(b)


def converted(array: pa.Array, to: pa.DataType, fill: Any = None) -> pa.Array:
    """A column as the wider type `to`. `fill`: a value of that type, whose fields new fields take."""
    if array.type == to:
        return array
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), to)
    if pa.types.is_struct(to) and not is_variant(to):
        return _struct(array, to, fill if isinstance(fill, Mapping) else {})
    if pa.types.is_list(to):
        values = converted(array.values, to.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=to, mask=_nulls(array))
    if pa.types.is_map(to):
        keys, items = converted(array.keys, to.key_type), converted(array.items, to.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=to, mask=_nulls(array))
    return array.cast(to)


def _struct(array: pa.Array, to: pa.DataType, fill: Mapping[str, Any]) -> pa.Array:
    columns = dict(zip((f.name for f in array.type), array.flatten(), strict=True))
    parts = []
    for child in to:
        value = fill.get(child.name)
        if child.name in columns:
            parts.append(converted(columns[child.name], child.type, value))
        else:
            parts.append(pa.array([value] * len(array), child.type))
    return pa.StructArray.from_arrays(parts, fields=list(to), mask=_nulls(array))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
