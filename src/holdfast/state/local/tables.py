"""What working state asks of a database (four tables), and what it keeps there beside entries: the bytes of
the marker, of undo and of a base.

Always true: two markers are equal if and only if their bytes are, so checking one is a single comparison.
Never here: a database (see lmdb_store, rocksdb_store), moving between versions (see database).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.state.contract import Entries, SnapshotSource, Version

DATA, GONE, UNDO, META = b"data", b"gone", b"undo", b"meta"
"""Entries; keys deleted over a base; undo blobs by epoch; marker, links and base."""
TABLES = (DATA, GONE, UNDO, META)
RESERVED = b"\xff\xff"
"""Keys of entries begin with their key group and stay below this; what a backend keeps beside entries in one
sorted file has keys that begin with it."""

FORMAT = 1
"""The version of the files in a working-state directory. Any other is thrown away, not converted."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class UnusableStore(Exception):
    """The database cannot make sense of its files. Internal: the caller decides what that means."""


class Tx(Protocol):
    """One transaction: a consistent view, with its own writes in it. Valid only in the function given it."""

    def get(self, table: bytes, key: bytes) -> bytes | None:
        """One value."""

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values aligned with `keys`."""

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        """Store one item."""

    def put_many(self, table: bytes, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Store sorted items."""

    def delete_many(self, table: bytes, keys: Iterable[bytes]) -> None:
        """Delete what is there of `keys`."""

    def items(
        self, table: bytes, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Items in key order from `first` (in) to `end` (out; None: to the last)."""

    def page(
        self, table: bytes, first: bytes, limit: int, end: bytes | None = None
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` items from `first` (in) on, to `end` (out; None: to the last)."""


@functools.cache
def boot_id() -> str:
    """Names this boot of this machine: files never synced mean nothing after the next one.

    Where the system has no such name every process is its own boot, and reuses nothing of others.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"process-{os.getpid()}-{os.urandom(8).hex()}"


class _Marker(msgspec.Struct, frozen=True, array_like=True):
    format: int
    identity: str
    boot: str
    epoch: int
    attempt: int
    result: str


class _Base(msgspec.Struct, frozen=True, array_like=True):
    version: tuple[int, int, str]
    first_group: int
    end_group: int
    path: str
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]


_marker_decoder = msgspec.msgpack.Decoder(_Marker)
_link_decoder = msgspec.msgpack.Decoder(tuple[tuple[int, int, str], tuple[int, int, str]])
_base_decoder = msgspec.msgpack.Decoder(_Base)
_undo_decoder = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]])


def pack_marker(identity: str, version: Version) -> bytes:
    """The marker of this identity at `version`, on this boot of this machine."""
    marker = _Marker(FORMAT, identity, boot_id(), version.epoch, version.attempt, version.result)
    return msgspec.msgpack.encode(marker)


def read_marker(data: bytes | None, identity: str) -> Version | None:
    """The version that a marker names; None: not ours, of another boot or format, or no marker at all."""
    if data is None:
        return None
    try:
        marker = _marker_decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    if (marker.format, marker.identity, marker.boot) != (FORMAT, identity, boot_id()):
        return None
    return Version(marker.epoch, marker.attempt, marker.result)


def pack_link(version: Version, parent: Version) -> bytes:
    """Says that `version` was made from `parent`, and that the undo blob of its epoch leads back there."""
    return msgspec.msgpack.encode((_plain(version), _plain(parent)))


def unpack_link(data: bytes) -> tuple[Version, Version]:
    version, parent = _link_decoder.decode(data)
    return Version(*version), Version(*parent)


def pack_undo(keys: list[bytes], values: list[bytes | None]) -> bytes:
    """The values that the touched keys had before; None: the key was absent."""
    return msgspec.msgpack.encode((keys, values))


def unpack_undo(data: bytes) -> Entries:
    keys, values = _undo_decoder.decode(data)
    return list(zip(keys, values, strict=True))


def pack_base(source: SnapshotSource) -> bytes:
    base = _Base(
        _plain(source.version),
        source.first_group,
        source.end_group,
        str(source.path),
        source.length,
        source.chunk_bytes,
        source.chunks,
    )
    return msgspec.msgpack.encode(base)


def unpack_base(data: bytes) -> SnapshotSource:
    base = _base_decoder.decode(data)
    return SnapshotSource(
        Version(*base.version),
        base.first_group,
        base.end_group,
        Path(base.path),
        base.length,
        base.chunk_bytes,
        base.chunks,
    )


def _plain(version: Version) -> tuple[int, int, str]:
    return version.epoch, version.attempt, version.result
