"""The marker of working state and the undo kept beside it, as bytes.

Always true: two markers are equal if and only if their bytes are, so checking one is a single comparison.
Never here: reading or writing them (see shard).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.state.contract import Entries, SnapshotSource, Version

RESERVED = b"\xff\xff"
"""Keys of entries begin with their key group and stay below this; what a backend keeps beside entries in one
sorted file has keys that begin with it."""

FORMAT = 1
"""The version of the files in a working-state directory. Any other is thrown away, not converted."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


class _Link(msgspec.Struct, frozen=True, array_like=True):
    version: tuple[int, int, str]
    parent: tuple[int, int, str]


class _Base(msgspec.Struct, frozen=True, array_like=True):
    version: tuple[int, int, str]
    first_group: int
    end_group: int
    path: str
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]


_marker_decoder = msgspec.msgpack.Decoder(_Marker)
_link_decoder = msgspec.msgpack.Decoder(_Link)
_base_decoder = msgspec.msgpack.Decoder(_Base)
_undo_decoder = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]])


@dataclass(frozen=True, slots=True)
class Link:
    """`version` was made from `parent`, and the undo blob of its epoch leads back there."""

    version: Version
    parent: Version


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


def pack_link(link: Link) -> bytes:
    return msgspec.msgpack.encode(_Link(_plain(link.version), _plain(link.parent)))


def unpack_link(data: bytes) -> Link:
    link = _link_decoder.decode(data)
    return Link(Version(*link.version), Version(*link.parent))


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
