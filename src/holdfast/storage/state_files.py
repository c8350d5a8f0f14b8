"""Saves of single keys as files: one directory per operator, one file per key.

    <root>/<uid>/<first byte of the digest>/<digest of the key>     key length (4), key, data

Always true: a file is written whole under another name, made durable, and then takes its place; the one
before it is never deleted first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.storage import drafts
from holdfast.storage.refusals import refusal
from holdfast.storage.state_storage import StateId, StateStorage, is_later, superseded

_LENGTH_BYTES = 4
_LOCK = ".lock"
_DRAFT_SUFFIX = ".draft"
_swept: set[Path] = set()


@dataclass(frozen=True)
class FileStateStorage(StateStorage):
    """Saves below a directory that every machine of the job can reach. One directory per checkpoint."""

    root: str | Path

    def __post_init__(self) -> None:
        # Workers have directories of their own, where a relative path would mean another place.
        object.__setattr__(self, "root", os.path.abspath(self.root))

    def save(self, id: StateId, data: bytes) -> None:
        path = self._path(id)
        try:
            _make_directory(path.parent)
            _sweep_once(path.parent)
            with _locked(path.parent):
                before = _content(path, id)
                if before is not None and is_later(before, data):
                    raise superseded(id)
                self._replace(path, len(id.key).to_bytes(_LENGTH_BYTES, "big") + id.key + data)
        except OSError as cause:
            raise refusal(cause, "save", str(path)) from cause

    def fetch(self, id: StateId) -> bytes | None:
        path = self._path(id)
        try:
            return _content(path, id)
        except OSError as cause:
            raise refusal(cause, "fetch", str(path)) from cause

    def keys(self, operator: str) -> Iterator[StateId]:
        for path in sorted((Path(self.root) / operator).glob("*/*")):
            if path.name != _LOCK and path.suffix != _DRAFT_SUFFIX:
                stored = path.read_bytes()
                end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "big")
                yield StateId(operator, stored[_LENGTH_BYTES:end])

    def _path(self, id: StateId) -> Path:
        digest = hashlib.sha256(id.key).hexdigest()
        return Path(self.root) / id.operator / digest[:2] / digest

    def _replace(self, path: Path, stored: bytes) -> None:
        draft = path.with_name(drafts.new_name() + _DRAFT_SUFFIX)
        try:
            with draft.open("xb") as file:
                file.write(stored)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)


def _content(path: Path, id: StateId) -> bytes | None:
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    start = _LENGTH_BYTES + len(id.key)
    if stored[:start] != len(id.key).to_bytes(_LENGTH_BYTES, "big") + id.key:
        raise CorruptionError(f"{path} does not hold the save of {id}; restore it from a copy, or remove it")
    return stored[start:]


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One writer at a time, of all processes that see the directory; a dead one holds nothing."""
    with (directory / _LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep_once(directory: Path) -> None:
    """Remove what killed processes left half written."""
    if directory not in _swept:
        _swept.add(directory)
        drafts.sweep(directory)


def _make_directory(directory: Path) -> None:
    """Also the name of a directory must survive a power cut, in the one above it."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
