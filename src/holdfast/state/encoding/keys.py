"""Keys as ordered bytes (docs/formats/keys.md has every byte).

    base = key group (2, big-endian) | 0x00 | key bytes

Always true: equal keys give equal bytes and different keys different ones (-0.0 is 0.0, every NaN is one
NaN, a null equals a null); no base is a prefix of another; a base is at most `BASE_BYTES_MAX` long. Keys
whose bytes would be longer than `KEY_BYTES_MAX` are stood in for by 0xFF and their SHA-256; who stores them
keeps the real key bytes beside (see layout).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from operator import add

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptionError
from holdfast.state.encoding.key_bytes import (
    ABSENT,
    FIXED_BYTES,
    FIXED_TEXT_BYTES,
    PRESENT,
    Reader,
    arrays_of,
    encode_column,
    is_fixed,
    is_text,
    ordered_words,
    reader,
    words_to_array,
)
from holdfast.state.encoding.routing import (
    GROUP_COLUMN,
    KEY_GROUPS_MAX,
    check_hashable,
    group_expression,
    key_groups_of,
    routing_expression,
    routing_hash,
)

__all__ = [
    "BASE_BYTES_MAX",
    "GROUP_COLUMN",
    "KEY_BYTES_MAX",
    "KEY_GROUPS_MAX",
    "LONG_KEY_TAG",
    "PREFIX_BYTES",
    "KeyCodec",
    "group_expression",
    "key_groups_of",
    "routing_expression",
    "routing_hash",
    "shortened",
]

KEY_BYTES_MAX = 400
PREFIX_BYTES = 3
BASE_BYTES_MAX = PREFIX_BYTES + KEY_BYTES_MAX
KEY_SPACE = 0x00
LONG_KEY_TAG = 0xFF
_LONG_TAG = bytes([LONG_KEY_TAG])
SHORTENED_BYTES = 1 + hashlib.sha256().digest_size


def shortened(key: bytes) -> bytes:
    """What stands in for key bytes that are too long to be part of a stored key."""
    return _LONG_TAG + hashlib.sha256(key).digest()


class KeyCodec:
    """Turns key columns into bases and back, whole columns at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            check_hashable(field.type, field.name)
        self.schema = schema
        self._readers: list[Reader] = [reader(field.type) for field in schema]
        types = [field.type for field in schema]
        self._single_fixed = len(types) == 1 and is_fixed(types[0])
        self._single_text = len(types) == 1 and is_text(types[0])
        self.always_short = all(map(is_fixed, types)) and len(types) * FIXED_BYTES <= KEY_BYTES_MAX
        """No key of this schema can be too long."""

    def encode(self, columns: Sequence[pa.Array], groups: npt.NDArray[np.uint16]) -> list[bytes]:
        """The base of every row. `groups` are the rows' key groups, taken from the data."""
        if self._single_fixed and columns[0].null_count == 0:
            return self._encode_single_fixed(columns[0], groups)
        if self._single_text and columns[0].null_count == 0:
            return self._encode_single_text(columns[0], groups)
        keys = self.key_bytes(columns)
        if not self.always_short and max(map(len, keys), default=0) > KEY_BYTES_MAX:
            keys = [key if len(key) <= KEY_BYTES_MAX else shortened(key) for key in keys]
        return list(map(add, _prefixes(groups), keys))

    def key_bytes(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """The key bytes of every row, whole, however long."""
        encoded = [
            encode_column(_declared(column, field.type))
            for column, field in zip(columns, self.schema, strict=True)
        ]
        return encoded[0] if len(encoded) == 1 else list(map(b"".join, zip(*encoded, strict=True)))

    def decode(
        self, bases: Sequence[bytes], long_keys: Mapping[bytes, bytes] | None = None
    ) -> list[pa.Array]:
        """The key columns of some bases. `long_keys`: the real key bytes of those that were shortened."""
        if self._single_fixed and (columns := self._decode_single_fixed(bases)) is not None:
            return columns
        if self._single_text and (columns := self._decode_single_text(bases)) is not None:
            return columns
        known = long_keys or {}
        return self.decode_key_bytes([self._whole_key(base, known) for base in bases])

    def decode_key_bytes(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """The key columns of whole key bytes."""
        rows = []
        for key in keys:
            row, end = self._read(key, 0)
            if end != len(key):
                raise CorruptionError(f"a stored key has {len(key) - end} bytes too many: {key.hex()}")
            rows.append(row)
        return arrays_of(self.schema, rows)

    def base_length(self, entry_key: bytes) -> int:
        """How many leading bytes of a stored entry key are its base."""
        if entry_key[PREFIX_BYTES] == LONG_KEY_TAG:
            return PREFIX_BYTES + SHORTENED_BYTES
        if self._single_fixed and entry_key[PREFIX_BYTES] != ABSENT:
            return PREFIX_BYTES + FIXED_BYTES
        return self._read(entry_key, PREFIX_BYTES)[1]

    def base_lengths(self, entry_keys: Sequence[bytes]) -> list[int]:
        """`base_length` of each."""
        slow, tag = self.base_length, PREFIX_BYTES
        if self._single_fixed:
            length = PREFIX_BYTES + FIXED_BYTES
            return [length if key[tag] == PRESENT else slow(key) for key in entry_keys]
        if self._single_text:
            start, end, read = tag + 1, _TEXT_BASE.itemsize, int.from_bytes
            return [
                end + read(key[start:end], "big") if key[tag] == PRESENT else slow(key) for key in entry_keys
            ]
        return list(map(slow, entry_keys))

    def _read(self, data: bytes, place: int) -> tuple[list[object], int]:
        row: list[object] = []
        try:
            for read in self._readers:
                value, place = read(data, place)
                row.append(value)
        except (IndexError, ValueError) as cause:
            raise CorruptionError(f"a stored key cannot be read back: {data.hex()}") from cause
        return row, place

    def _whole_key(self, base: bytes, long_keys: Mapping[bytes, bytes]) -> bytes:
        if base[PREFIX_BYTES] != LONG_KEY_TAG:
            return base[PREFIX_BYTES:]
        if base not in long_keys:
            raise CorruptionError(
                f"the real key behind the shortened key {base.hex()} is missing from the state"
            )
        return long_keys[base]

    def _encode_single_fixed(self, column: pa.Array, groups: npt.NDArray[np.uint16]) -> list[bytes]:
        rows = np.empty(len(column), dtype=_FIXED_BASE)
        rows["group"] = groups
        rows["space"] = KEY_SPACE
        rows["tag"] = PRESENT
        rows["word"] = ordered_words(_declared(column, self.schema.field(0).type))
        encoded: list[bytes] = rows.view(f"V{_FIXED_BASE.itemsize}").tolist()
        return encoded

    def _decode_single_fixed(self, bases: Sequence[bytes]) -> list[pa.Array] | None:
        data = b"".join(bases)
        if len(data) != len(bases) * _FIXED_BASE.itemsize:
            return None
        rows = np.frombuffer(data, dtype=_FIXED_BASE)
        if not (rows["tag"] == PRESENT).all():
            return None
        return [words_to_array(rows["word"].astype(np.uint64), self.schema.field(0).type)]

    def _encode_single_text(self, column: pa.Array, groups: npt.NDArray[np.uint16]) -> list[bytes]:
        texts = _declared(column, self.schema.field(0).type).cast(pa.binary())
        heads = np.zeros(len(texts), dtype=_TEXT_BASE)
        heads["group"] = groups
        heads["tag"] = PRESENT
        heads["length"] = np.asarray(pc.binary_length(texts))
        bases = list(map(add, heads.view(f"V{_TEXT_BASE.itemsize}").tolist(), texts.to_pylist()))
        if len(texts) and heads["length"].max() + FIXED_TEXT_BYTES > KEY_BYTES_MAX:
            return [base if len(base) <= BASE_BYTES_MAX else _shortened_base(base) for base in bases]
        return bases

    def _decode_single_text(self, bases: Sequence[bytes]) -> list[pa.Array] | None:
        if any(base[PREFIX_BYTES] != PRESENT for base in bases):
            return None
        start = _TEXT_BASE.itemsize
        texts = pa.array([base[start:] for base in bases], pa.binary())
        return [texts.cast(self.schema.field(0).type)]


_FIXED_BASE = np.dtype([("group", ">u2"), ("space", "u1"), ("tag", "u1"), ("word", ">u8")])
_TEXT_BASE = np.dtype([("group", ">u2"), ("space", "u1"), ("tag", "u1"), ("length", ">u4")])


def _shortened_base(base: bytes) -> bytes:
    return base[:PREFIX_BYTES] + shortened(base[PREFIX_BYTES:])


def _prefixes(groups: npt.NDArray[np.uint16]) -> list[bytes]:
    rows = np.zeros(len(groups), dtype=np.dtype([("group", ">u2"), ("space", "u1")]))
    rows["group"] = groups
    prefixes: list[bytes] = rows.view("V3").tolist()
    return prefixes


def _declared(column: pa.Array, type: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if array.type == type else array.cast(type)
