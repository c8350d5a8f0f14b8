"""Copying the files of a checkpoint from one storage to another, every byte checked on the way.

Always true: an object is in the target only if all of its bytes had the checksums that the manifest
gives; a few parts are in memory at a time, whatever the state's size. Two copies of the same files put the
same bytes under the same names.
Never here: which files to copy (see take), or when what was copied counts (see take, start_from).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, Manifest, SnapshotFile
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.checksums import stream_extent
from holdfast.storage.contract import Storage

COPY_THREADS = 2
"""Objects copied at a time: one is written while another is synced. More would only slow the job."""
COPY_NICENESS = 15
"""The job goes first where both want the same core."""

PACK_BYTES = 64 << 20
"""Deltas, lists and copies of tables are packed one after another into objects of about this size."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One object to make: these stretches of objects in the source, one after another."""

    name: str
    extents: tuple[Extent, ...]

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.extents)


def repacked(manifest: Manifest, label: str) -> tuple[Manifest, tuple[Copy, ...]]:
    """The same checkpoint in objects that hold nothing else, and how to make these. Pure.

    Snapshots keep their names. Deltas, lists and copies of tables are packed into objects named by `label`
    and number; applied again with the same label it changes nothing.
    """
    packs = _Packs(f"{names.data_of(manifest.last_epoch)}{label}")
    deltas = tuple(replace(file, extent=packs.add(file.extent)) for file in manifest.deltas)
    lists = tuple(replace(file, extent=packs.add(file.extent)) for file in manifest.lists)
    tables = {
        uid: replace(copy, extents=tuple(map(packs.add, copy.extents)))
        for uid, copy in manifest.tables.items()
    }
    copies = [Copy(file.object, chunks_of(file)) for file in manifest.snapshots]
    packed = replace(manifest, deltas=deltas, lists=lists, tables=tables)
    return packed, (*copies, *packs.copies())


class _Packs:
    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._packs: list[list[Extent]] = []
        self._filled = PACK_BYTES

    def add(self, extent: Extent) -> Extent:
        """Where the extent is going to be."""
        if self._filled >= PACK_BYTES:
            self._packs.append([])
            self._filled = 0
        self._packs[-1].append(extent)
        placed = replace(extent, object=self._name(len(self._packs) - 1), offset=self._filled)
        self._filled += extent.length
        return placed

    def copies(self) -> list[Copy]:
        return [Copy(self._name(index), tuple(pack)) for index, pack in enumerate(self._packs)]

    def _name(self, index: int) -> str:
        return f"{self._stem}-{index:04d}"


def chunks_of(file: SnapshotFile) -> tuple[Extent, ...]:
    """A snapshot as the stretches that it has checksums for."""
    if len(file.chunks) != -(-file.length // file.chunk_bytes):
        raise CorruptionError(
            f"{file.object} is named with {len(file.chunks)} checksums for {file.length} bytes in chunks of "
            f"{file.chunk_bytes}; restore the record that names it from a copy"
        )
    return tuple(
        Extent(
            object=file.object,
            offset=index * file.chunk_bytes,
            length=min(file.chunk_bytes, file.length - index * file.chunk_bytes),
            checksum=chunk,
        )
        for index, chunk in enumerate(file.chunks)
    )


def copy_all(source: Storage, target: Storage, copies: Sequence[Copy]) -> None:
    """Make every object in `target`. After an error, some are there.

    CorruptionError names what is damaged or missing in `source`.
    """

    def make(copy: Copy, failed: threading.Event) -> None:
        target.put_stream(copy.name, lambda: _parts(source, copy, failed))

    # The largest first, so that none is left alone at the end.
    _each(sorted(copies, key=lambda copy: -copy.length), make)


def damage_in(storage: Storage, copies: Sequence[Copy]) -> list[str]:
    """Read every byte; one line for each object that is damaged or missing."""
    problems: dict[str, str] = {}

    def check(copy: Copy, failed: threading.Event) -> None:
        try:
            for _ in _parts(storage, copy, failed):
                pass
        except CorruptionError as damage:
            problems[copy.name] = str(damage)

    _each(copies, check)
    return [problems[name] for name in sorted(problems)]


def _parts(source: Storage, copy: Copy, failed: threading.Event) -> Iterator[bytes]:
    """The bytes of one object, until another has failed."""
    try:
        for extent in copy.extents:
            for part in stream_extent(source, extent):
                if failed.is_set():
                    raise _Abandoned
                yield part
    except ObjectMissing as cause:
        raise CorruptionError(str(cause)) from cause


class _Abandoned(Exception):
    """Another thread's error is the one to tell."""


def _each(copies: Sequence[Copy], act: Callable[[Copy, threading.Event], None]) -> None:
    """Act on every copy in a few threads; raise the first error, after all threads have ended."""
    failed = threading.Event()
    with ThreadPoolExecutor(COPY_THREADS, "holdfast-copy", initializer=_give_way) as pool:
        try:
            futures = [pool.submit(act, copy, failed) for copy in copies]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            failed.set()
            pool.shutdown(wait=True, cancel_futures=True)
    failures = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in failures:
        if not isinstance(error, _Abandoned):
            raise error


def _give_way() -> None:
    """Lower the priority of this thread alone: Linux has one for each."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COPY_NICENESS)
