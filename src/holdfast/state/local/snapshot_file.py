"""Snapshot files: their chunk checksums, and the thread that checks and copies one behind a lazy restore.

A snapshot is one file, named by a commit record with the XXH3 checksum of every chunk of it. It is never
written to again, and may be unlinked by retention while it is open here.
Never here: what is inside (see snapshot_reader), where it is kept (see checkpoint).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import CorruptionError, HoldfastError, StorageError
from holdfast.state.contract import SnapshotInfo, SnapshotSource, StaleWorkingState, Version
from holdfast.state.local.directories import Directory
from holdfast.storage.checksums import checksum
from holdfast.storage.file_lock import claimed

CHUNK_BYTES = 4 << 20

VERIFIED = "verified"
"""Flag of a directory: every chunk of its base was checked."""
CONDEMNED = "condemned"
"""Flag of a directory: never use it again."""
COPY = "base.copy"
"""File in a directory: the whole base, copied and checked."""


def describe(path: Path, version: Version) -> SnapshotInfo:
    """Take the checksums of a file just written."""
    with _reading(path) as file:
        length = os.fstat(file).st_size
        chunks = tuple(checksum(data) for _, data in _chunks(file, length, CHUNK_BYTES))
    return SnapshotInfo(version, length, CHUNK_BYTES, chunks)


def verify(source: SnapshotSource) -> None:
    """Check every chunk now. CorruptionError names file and chunk."""
    with opened(source) as file:
        for index, data in _chunks(file, source.length, source.chunk_bytes):
            check_chunk(source, index, data)


@contextlib.contextmanager
def opened(source: SnapshotSource) -> Iterator[int]:
    """The file, after a look at what every reader of the map relies on: its length and its first chunk."""
    with _reading(source.path) as file:
        length = os.fstat(file).st_size
        if length != source.length:
            raise CorruptionError(
                f"snapshot {source.path} has {length} bytes, not {source.length}: it was cut or changed; "
                "restore from another checkpoint"
            )
        check_chunk(source, 0, os.pread(file, source.chunk_bytes, 0))
        yield file


def check_chunk(source: SnapshotSource, index: int, data: bytes) -> None:
    """Compare one chunk with its checksum."""
    found, written = checksum(data), source.chunks[index]
    if found != written:
        raise CorruptionError(
            f"snapshot {source.path} is damaged in chunk {index} (byte {index * source.chunk_bytes} on): "
            f"checksum {found}, written as {written}; restore from another checkpoint"
        )


def copy_checked(source: SnapshotSource, file: int, to: Path, stop: threading.Event | None = None) -> None:
    """Copy the base to the new file `to`, checking what is copied; unfinished if told to stop."""
    with open(to, "xb", buffering=0) as copy:
        for index, data in _chunks(file, source.length, source.chunk_bytes):
            if stop is not None and stop.is_set():
                return
            check_chunk(source, index, data)
            copy.write(data)


class BaseCopier:
    """Works behind a lazily opened base: first checks every chunk of it, then copies it into the directory.

    A daemon thread: it dies with the process, and the next one starts over. One copies a directory at a time.
    """

    def __init__(self, source: SnapshotSource, file: int, directory: Directory) -> None:
        """`file`: the open base. Its path may be gone by now."""
        self._source, self._file, self._directory = source, os.dup(file), directory
        self._verified, self._stop = threading.Event(), threading.Event()
        self._error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name=f"base of {directory.path}", daemon=True)
        self._thread.start()

    def wait_verified(self) -> None:
        """Block until all is checked; raise what was found."""
        self._verified.wait()
        if self._error is not None:
            raise self._error

    def wait_done(self) -> None:
        """Block until it is checked and, unless another process does it, copied."""
        self._thread.join()

    def busy(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Leave the rest undone. Does not wait."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._verify()
            self._verified.set()
            self._copy()
        except CorruptionError as found:
            self._directory.flag(CONDEMNED)
            self._error = found
        except OSError as cause:
            # A failed copy changes nothing: the base stays mapped. A failed check is told to who waits for
            # it.
            if not self._verified.is_set():
                self._error = StorageError(f"cannot read snapshot {self._source.path}: {cause}; try again")
        finally:
            self._verified.set()
            os.close(self._file)

    def _verify(self) -> None:
        if self._directory.has(VERIFIED):
            return
        for index, data in _chunks(self._file, self._source.length, self._source.chunk_bytes):
            if self._stop.is_set():
                self._error = StaleWorkingState(f"{self._directory.path} was left, its base unchecked")
                return
            check_chunk(self._source, index, data)
        self._directory.flag(VERIFIED)

    def _copy(self) -> None:
        directory = self._directory.path
        if self._error is not None or self._directory.has(COPY):
            return
        with claimed(directory / "copy.lock") as mine:
            if not mine:
                return
            for leftover in directory.glob(f"{COPY}.*"):
                leftover.unlink(missing_ok=True)
            draft = directory / f"{COPY}.{os.getpid()}"
            try:
                copy_checked(self._source, self._file, draft, self._stop)
                if not self._stop.is_set():
                    os.rename(draft, directory / COPY)
            finally:
                draft.unlink(missing_ok=True)


def _chunks(file: int, length: int, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    for index, offset in enumerate(range(0, length, chunk_bytes)):
        yield index, os.pread(file, chunk_bytes, offset)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
