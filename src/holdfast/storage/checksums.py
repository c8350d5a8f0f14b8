"""Checksums of stored bytes: XXH3, 128 bits, as 32 hexadecimal digits.

They find damage, not malice: anyone who can write to storage can also write a matching checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import xxhash

from holdfast.errors import CorruptionError
from holdfast.storage.contract import Storage

PART_BYTES = 4 << 20


class ExtentLike(Protocol):
    """Some bytes of an object, with their checksum; `checkpoint.store.records.Extent` is one."""

    @property
    def object(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def checksum(self) -> str: ...


def checksum(data: bytes | memoryview) -> str:
    """The checksum that stored formats carry. The same bytes give the same text in every version."""
    return xxhash.xxh3_128_hexdigest(data)


def read_extent(storage: Storage, extent: ExtentLike) -> bytes:
    """Read an extent and verify it: the right bytes, or ObjectMissing, StorageError or CorruptionError."""
    data = storage.get(extent.object, extent.offset, extent.length)
    _refuse_unless_whole(storage, extent, len(data), checksum(data))
    return data


def stream_extent(storage: Storage, extent: ExtentLike) -> Iterator[bytes]:
    """An extent in parts of a few megabytes. Raises as `read_extent` does, but damage only after the last:
    what is made of the parts must not be shown before the end.
    """
    running, done = xxhash.xxh3_128(), 0
    while done < extent.length:
        part = storage.get(extent.object, extent.offset + done, min(PART_BYTES, extent.length - done))
        if not part:
            break
        running.update(part)
        done += len(part)
        yield part
    _refuse_unless_whole(storage, extent, done, running.hexdigest())


def _refuse_unless_whole(storage: Storage, extent: ExtentLike, length: int, found: str) -> None:
    if length != extent.length:
        raise CorruptionError(
            f"object {extent.object!r} in {storage.url} is truncated: {extent.length} bytes expected at "
            f"offset {extent.offset}, {length} found; "
            "restore it from a copy, or rewind to an older checkpoint"
        )
    if found != extent.checksum:
        raise CorruptionError(
            f"object {extent.object!r} in {storage.url} is damaged: checksum {extent.checksum} expected for "
            f"{extent.length} bytes at offset {extent.offset}, {found} found; "
            "restore it from a copy, or rewind to an older checkpoint"
        )
