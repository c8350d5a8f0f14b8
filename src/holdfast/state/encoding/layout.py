"""What an operator's stored state looks like: its key, its states, and the entry keys they are stored under.

    VALUE         base | id                              the value
    LIST header   base | id                              next sequence number (8, big-endian)
    LIST item     base | id | sequence (8, big-endian)   the item
    MAP entry     base | id | map-key bytes              the value; before it the real map key, if shortened
    TIMED entry   base | id | time, as a map key         the value; or a time and a number, as one map key
    long key      base | 0xFF                            the real key bytes, where the base was shortened

    time index    key group (2) | 0x01 | id | time | key bytes      nothing: one for each TIMED entry
                  (of states with a ttl, whose entries have a time in front: see expiry_index)

Key-major on purpose: all states of a key are neighbours, and a key group is one range. The time index follows
from the entries, so no delta has it; it lies behind the entries of its key group.
Always true: an entry key is at most `ENTRY_KEY_BYTES_MAX` long; a state's id never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from operator import add
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.state.encoding.codec import ValueCodec
from holdfast.state.encoding.key_bytes import FIXED_BYTES, PRESENT, encode_column, words_to_array
from holdfast.state.encoding.keys import (
    BASE_BYTES_MAX,
    KEY_SPACE,
    LONG_KEY_TAG,
    PREFIX_BYTES,
    KeyCodec,
    shortened,
)
from holdfast.state.encoding.ttl import Ttl, TtlRow
from holdfast.state.encoding.types import parse_type, type_ddl

StateRow: TypeAlias = tuple[int, str, str, str] | tuple[int, str, str, str, TtlRow]
"""A state as plain data: id, name, kind, type, and its ttl if it has one."""

LONG_KEY_ID = 0xFF
STATE_ID_MAX = 0xFE
MAP_KEY_BYTES_MAX = 100
ENTRY_KEY_BYTES_MAX = BASE_BYTES_MAX + 1 + MAP_KEY_BYTES_MAX
"""LMDB stores keys of up to 511 bytes."""
LONG_KEY_SUFFIX = bytes([LONG_KEY_ID])
SEQUENCE_BYTES = 8
ITEMS_START = b"\x00"
"""Not below this, behind `base | id`, are the items of a list; its header is."""
TIME_SPACE = 0x01
TIME_TYPE = pa.timestamp("us", "UTC")
"""The map keys of TIMED states that have one entry for a time of a key."""
TIME_AND_NUMBER = pa.struct([("at", TIME_TYPE), ("number", pa.int64())])
"""The map keys of those that may have several."""
_GROUP_BYTES = PREFIX_BYTES - 1


class StateKind(StrEnum):
    """How a state is stored. Reducing and aggregating states are stored as VALUE."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMED = "timed"
    """A map from times, whose entries are found by time as well."""


@dataclass(frozen=True)
class StateField:
    """One declared state. `type` is the value's, the list item's, or `pa.map_` of a map's key and value."""

    id: int
    name: str
    kind: StateKind
    type: pa.DataType
    ttl: Ttl | None = None
    """None: it is kept until user code removes it."""

    def __post_init__(self) -> None:
        if not 0 <= self.id <= STATE_ID_MAX:
            raise DefinitionError(f"state {self.name!r} has id {self.id}; ids go from 0 to {STATE_ID_MAX}")
        if self.is_map and not pa.types.is_map(self.type):
            raise DefinitionError(f"map state {self.name!r} needs a map type, not {type_ddl(self.type)}")

    def __reduce__(self) -> Any:
        return StateField, (self.id, self.name, self.kind, self.type, self.ttl)

    @property
    def suffix(self) -> bytes:
        """What follows the base in this state's entry keys."""
        return bytes([self.id])

    @property
    def is_map(self) -> bool:
        """Whether it has entries with keys of their own."""
        return self.kind in (StateKind.MAP, StateKind.TIMED)

    @cached_property
    def time_bytes(self) -> tuple[int, int]:
        """Of a TIMED state: where the time begins in a map key, and how long the map key is."""
        if pa.types.is_struct(self.type.key_type):
            return 1, 1 + 2 * FIXED_BYTES
        return 0, FIXED_BYTES

    @property
    def time_head(self) -> bytes:
        """Of a TIMED state: what comes before the time in a map key."""
        return _PRESENT * self.time_bytes[0]

    @property
    def value_type(self) -> pa.DataType:
        """The type of what one entry holds: the value, the item, or the map's value."""
        return self.type.item_type if self.is_map else self.type

    @cached_property
    def codec(self) -> ValueCodec:
        """Reads and writes `value_type`."""
        return ValueCodec(self.value_type)

    @cached_property
    def map_keys(self) -> KeyCodec:
        """Reads and writes a map's keys (their bytes only: bases belong to operator keys)."""
        return KeyCodec(pa.schema([("key", self.type.key_type)]))


@dataclass(frozen=True)
class StateLayout:
    """The key and the states of one operator. Crosses to workers: a frozen value that pickles small."""

    operator: str
    key: pa.Schema
    fields: tuple[StateField, ...]
    generation: int = 0
    """How often the layout was changed since the operator first had state (see conversion)."""

    def __post_init__(self) -> None:
        for what in ("id", "name"):
            seen = [getattr(field, what) for field in self.fields]
            if len(set(seen)) != len(seen):
                raise DefinitionError(f"operator {self.operator!r} declares a state {what} twice: {seen}")

    def __reduce__(self) -> Any:
        return StateLayout, (self.operator, self.key, self.fields, self.generation)

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key)

    @cached_property
    def by_name(self) -> dict[str, StateField]:
        return {field.name: field for field in self.fields}

    def field(self, name: str) -> StateField:
        return self.by_name[name]

    @cached_property
    def expiring(self) -> tuple[StateField, ...]:
        """The states that have a ttl."""
        return tuple(field for field in self.fields if field.ttl is not None)

    def schema_rows(self) -> tuple[tuple[tuple[str, str], ...], tuple[StateRow, ...]]:
        """The layout as plain data: key columns as (name, type), and states."""
        key = tuple((column.name, type_ddl(column.type)) for column in self.key)
        return key, tuple(map(_state_row, self.fields))

    @staticmethod
    def of_rows(
        operator: str,
        key: Iterable[tuple[str, str]],
        states: Iterable[StateRow],
        generation: int = 0,
    ) -> StateLayout:
        """The inverse of `schema_rows`."""
        schema = pa.schema([(name, parse_type(ddl)) for name, ddl in key])
        fields = tuple(
            StateField(id, name, StateKind(kind), parse_type(ddl), *map(Ttl.of_row, ttl))
            for id, name, kind, ddl, *ttl in states
        )
        return StateLayout(operator, schema, fields, generation)


def _state_row(state: StateField) -> StateRow:
    row = state.id, state.name, state.kind.value, type_ddl(state.type)
    return row if state.ttl is None else (*row, state.ttl.row)


def state_keys(field: StateField, bases: Iterable[bytes]) -> list[bytes]:
    """Entry keys of VALUE states and LIST headers; also the prefix of a list's items and a map's entries."""
    suffix = field.suffix
    return [base + suffix for base in bases]


def item_keys(field: StateField, bases: Iterable[bytes], sequence: npt.NDArray[np.int64]) -> list[bytes]:
    """Entry keys of LIST items."""
    tails = np.empty(len(sequence), np.dtype([("id", "u1"), ("sequence", ">i8")]))
    tails["id"] = field.id
    tails["sequence"] = sequence
    return list(map(add, bases, tails.view("V9").tolist()))


def map_tails(field: StateField, entry: pa.Array) -> tuple[list[bytes], list[bytes]]:
    """What follows `base | id` in MAP entry keys, and what precedes the values: nothing or the real key."""
    column = entry if entry.type == field.type.key_type else entry.cast(field.type.key_type)
    keys = encode_column(column)
    if max(map(len, keys), default=0) <= MAP_KEY_BYTES_MAX:
        return keys, [b""] * len(keys)
    long = [len(key) > MAP_KEY_BYTES_MAX for key in keys]
    tails = [shortened(key) if over else key for key, over in zip(keys, long, strict=True)]
    heads = [len(key).to_bytes(4, "big") + key if over else b"" for key, over in zip(keys, long, strict=True)]
    return tails, heads


def map_entries(field: StateField, entries: Sequence[tuple[bytes, bytes]]) -> tuple[pa.Array, list[bytes]]:
    """The map keys and value bytes of MAP entries, given as (what follows `base | id`, stored value)."""
    keys, values = [], []
    for tail, stored in entries:
        if tail[0] == LONG_KEY_TAG:
            end = 4 + int.from_bytes(stored[:4], "big")
            keys.append(stored[4:end])
            values.append(stored[end:])
        else:
            keys.append(tail)
            values.append(stored)
    return field.map_keys.decode_key_bytes(keys)[0], values


def encode_headers(next_sequence: npt.NDArray[np.int64]) -> list[bytes]:
    """Values of LIST headers."""
    encoded: list[bytes] = next_sequence.astype(">i8").view("V8").tolist()
    return encoded


def decode_header(stored: bytes | None) -> int:
    """The next sequence number of a list; 0 for a list that was never written."""
    return int.from_bytes(stored, "big") if stored else 0


def is_shortened(base: bytes) -> bool:
    """Whether a base stands in for a key that was too long."""
    return base[PREFIX_BYTES] == LONG_KEY_TAG


def in_time_index(key: bytes) -> bool:
    """Whether a stored key belongs to the time index, and not to an entry."""
    return key[_GROUP_BYTES] == TIME_SPACE


def time_keys(suffix: bytes, bases: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
    """Where the time index has TIMED entries, given by their keys: group, state, time, and then the key's
    base."""
    begin = _TIME_SPACE + suffix
    return [
        base[:_GROUP_BYTES] + begin + key[len(base) + 1 :] + base[PREFIX_BYTES:]
        for base, key in zip(bases, keys, strict=True)
    ]


def time_prefix(group: int, state: StateField) -> bytes:
    """What the time index has of one state in one key group begins with this, then come time and key."""
    return group.to_bytes(_GROUP_BYTES, "big") + _TIME_SPACE + state.suffix + state.time_head


def time_tail(at_us: int) -> bytes:
    """A time as it is written in keys: bytes that sort as times do."""
    return _PRESENT + (at_us + _SIGN).to_bytes(FIXED_BYTES - 1, "big")


def of_time_key(key: bytes, state: StateField) -> tuple[int, bytes]:
    """The time, and the base of the key, that stand in a key of the time index."""
    base, tail = entry_of_time_key(key, state)
    start = state.time_bytes[0] + 1
    return int.from_bytes(tail[start : start + FIXED_BYTES - 1], "big") - _SIGN, base


def of_time_keys(keys: Sequence[bytes], state: StateField) -> tuple[pa.Array, list[bytes]]:
    """The map keys, and the bases, that stand in keys of the time index."""
    start = PREFIX_BYTES + 1
    end = start + state.time_bytes[1]
    bases = [key[:_GROUP_BYTES] + _KEY_SPACE + key[end:] for key in keys]
    return timed_map_keys([key[start:end] for key in keys], state), bases


def timed_map_keys(tails: Sequence[bytes], state: StateField) -> pa.Array:
    """The map keys of TIMED entries: what follows `base | id` in their keys."""
    if state.type.key_type == TIME_AND_NUMBER:
        return times_and_numbers(tails)
    cells = np.frombuffer(b"".join(tails), _TAGGED)
    return words_to_array(cells["at"].astype(np.uint64), TIME_TYPE)


def entry_of_time_key(key: bytes, state: StateField) -> tuple[bytes, bytes]:
    """The base of the key, and what follows `base | id` in the TIMED entry, that stand in a key of the time
    index."""
    start = PREFIX_BYTES + 1
    end = start + state.time_bytes[1]
    return key[:_GROUP_BYTES] + _KEY_SPACE + key[end:], key[start:end]


def times_and_numbers(tails: Sequence[bytes]) -> pa.Array:
    """The map keys of TIMED entries whose keys are of type `TIME_AND_NUMBER`."""
    cells = np.frombuffer(b"".join(tails), _TAGGED_PAIR)
    at, number = (
        words_to_array(cells[field.name].astype(np.uint64), field.type) for field in TIME_AND_NUMBER
    )
    return pa.StructArray.from_arrays([at, number], fields=list(TIME_AND_NUMBER))


_TAGGED = np.dtype([("tag", "u1"), ("at", ">u8")])
_TAGGED_PAIR = np.dtype([("tag", "u1"), ("at_tag", "u1"), ("at", ">u8"), ("n_tag", "u1"), ("number", ">u8")])
_TIME_SPACE, _KEY_SPACE, _PRESENT = bytes([TIME_SPACE]), bytes([KEY_SPACE]), bytes([PRESENT])
_SIGN = 1 << 63
