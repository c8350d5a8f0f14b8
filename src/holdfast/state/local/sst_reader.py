"""Reading a RocksDB snapshot, one SST file, without RocksDB: other backends and inspection need no library.

The file is a block-based table as `rocksdb_store.write_table` writes it: format version 2, uncompressed, one
index block. Each block is a run of entries that share key prefixes with the one before, then restart points.
Always true: a file of any other form is refused, never guessed at.
Never here: checksums (see snapshot_file), writing (see rocksdb_store).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from holdfast.state.local.tables import RESERVED

FOOTER_BYTES = 53
FORMAT_VERSION = 2
MAGIC = 0x88E241B785F4CFF7
TRAILER_BYTES = 5
"""After each block: its compression and RocksDB's own checksum."""
_SEQUENCE_BYTES = 8
"""After each key: sequence number and kind, the same for every entry of such a file."""

Item = tuple[bytes, bytes]
Read = Callable[[int, int], bytes]
"""Bytes of the file: offset, length."""


class UnreadableTable(Exception):
    """Not a table of the form that `rocksdb_store` writes. Internal: the caller knows the file's name."""


class Table:
    """The entries of a snapshot, found through its index. What lies beyond them (the marker) is not shown."""

    def __init__(self, read: Read, length: int) -> None:
        self._read = read
        if length < FOOTER_BYTES:
            raise UnreadableTable(f"{length} bytes are too few")
        footer = read(length - FOOTER_BYTES, FOOTER_BYTES)
        version, magic = struct.unpack("<IQ", footer[-12:])
        if (version, magic) != (FORMAT_VERSION, MAGIC):
            raise UnreadableTable(f"format {version}, magic {magic:x}")
        at = 1
        _, at = _varint(footer, at)
        _, at = _varint(footer, at)
        offset, at = _varint(footer, at)
        size, at = _varint(footer, at)
        self._index = self._block(offset, size)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        for run in self.runs(key):
            return next((value for found, value in run if found == key), None)
        return None

    def runs(self, first: bytes, end: bytes | None = None) -> Iterator[list[Item]]:
        """Entries in key order from `first` (in) to `end` (out; None: to the last), a block at a time."""
        stop = min(end, RESERVED) if end is not None else RESERVED
        for _, handle in _entries(self._index, _seek(self._index, first)):
            offset, at = _varint(handle, 0)
            size, _ = _varint(handle, at)
            run = list(_entries(self._block(offset, size), 0))
            inside = run if run[0][0] >= first else [item for item in run if item[0] >= first]
            if run[-1][0] >= stop:
                yield [item for item in inside if item[0] < stop]
                return
            yield inside

    def _block(self, offset: int, size: int) -> bytes:
        block = self._read(offset, size + TRAILER_BYTES)
        if len(block) != size + TRAILER_BYTES or block[size] != 0:
            raise UnreadableTable(f"the block at byte {offset} is cut or compressed")
        return block[:size]


def _entries(block: bytes, at: int) -> Iterator[Item]:
    """The entries of a block from byte `at`, a restart point, on."""
    key, stop = b"", len(block) - 4 - 4 * _restart_count(block)
    while at < stop:
        shared, fresh, size = block[at], block[at + 1], block[at + 2]
        if shared < 128 and fresh < 128 and size < 128:
            at += 3
        else:
            shared, at = _varint(block, at)
            fresh, at = _varint(block, at)
            size, at = _varint(block, at)
        value_at = at + fresh
        key = key[:shared] + block[at:value_at]
        at = value_at + size
        yield key[:-_SEQUENCE_BYTES], block[value_at:at]


def _seek(block: bytes, key: bytes) -> int:
    """Where to begin reading to find the first entry whose key is not below `key`: a restart point."""
    count = _restart_count(block)
    table = len(block) - 4 - 4 * count
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        found, _ = next(_entries(block, _number(block, table + 4 * middle)))
        if found < key:
            low = middle + 1
        else:
            high = middle
    # With one entry per restart point, as in an index, this is the entry itself.
    return _number(block, table + 4 * low) if low < count else len(block)


def _restart_count(block: bytes) -> int:
    return _number(block, len(block) - 4)


def _number(block: bytes, at: int) -> int:
    return int.from_bytes(block[at : at + 4], "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
