"""Saves of single keys as files: one directory per operator, one file per key.

    <root>/<uid>/<first byte of the digest>/<digest of the key>     key length (4), key, data

Always true: a file is written whole under another name, made durable, and then takes its place; the one
before it is never deleted first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.storage import draft_names
from holdfast.storage.key_saves.contract import StateId, StateStorage, is_later
from holdfast.storage.os_errors import refusal

TOGETHER_MAX = 100
"""Files that are open at a time."""
_LENGTH_BYTES = 4
_LOCK = ".lock"
_DRAFT_SUFFIX = ".draft"
_swept: set[str] = set()


@dataclass(frozen=True)
class FileStateStorage(StateStorage):
    """Saves below a directory that every machine of the job can reach. One directory per checkpoint."""

    root: str | Path

    def __post_init__(self) -> None:
        # Workers have directories of their own, where a relative path would mean another place.
        object.__setattr__(self, "root", os.path.abspath(self.root))

    def save(self, id: StateId, data: bytes) -> None:
        self.save_many([(id, data)])

    def save_many(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        for start in range(0, len(saves), TOGETHER_MAX):
            self._save_together(saves[start : start + TOGETHER_MAX])

    def near(self, id: StateId) -> bytes:
        """By directory: it is locked and made durable once for all of its files."""
        return _digest(id)[:2].encode()

    def _save_together(self, saves: Sequence[tuple[StateId, bytes]]) -> None:
        """What makes one of them durable makes most of the others durable on the way."""
        paths = {self._path(id): (id, data) for id, data in saves}
        directories = sorted({os.path.dirname(path) for path in paths})
        try:
            for directory in directories:
                _make_directory(directory)
                _sweep_once(directory)
            with ExitStack() as locks:
                for directory in directories:
                    locks.enter_context(_locked(directory))
                for path, (id, data) in paths.items():
                    before = _content(path, id)
                    if before is not None and is_later(before, data):
                        raise self.superseded(id)
                _replace({path: _with_key(id, data) for path, (id, data) in paths.items()})
                for directory in directories:
                    _sync_directory(directory)
        except OSError as cause:
            raise refusal(cause, "save", directories[0]) from cause

    def fetch(self, id: StateId) -> bytes | None:
        path = self._path(id)
        try:
            return _content(path, id)
        except OSError as cause:
            raise refusal(cause, "fetch", path) from cause

    def keys(self, operator: str) -> Iterator[StateId]:
        for path in sorted((Path(self.root) / operator).glob("*/*")):
            if path.name != _LOCK and path.suffix != _DRAFT_SUFFIX:
                stored = path.read_bytes()
                end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "big")
                yield StateId(operator, stored[_LENGTH_BYTES:end])

    def _path(self, id: StateId) -> str:
        digest = _digest(id)
        return f"{self.root}/{id.operator}/{digest[:2]}/{digest}"


def _digest(id: StateId) -> str:
    return hashlib.sha256(id.key).hexdigest()


def _replace(files: dict[str, bytes]) -> None:
    """Write files under other names, make them durable, and let them take their places."""
    drafted = {path: f"{os.path.dirname(path)}/{draft_names.new_name()}{_DRAFT_SUFFIX}" for path in files}
    with ExitStack() as opened:
        try:
            written = []
            for path, draft in drafted.items():
                file = opened.enter_context(open(draft, "xb"))
                file.write(files[path])
                file.flush()
                written.append(file)
            for file in written:
                os.fsync(file.fileno())
            for path, draft in drafted.items():
                os.replace(draft, path)
        except OSError:
            for draft in drafted.values():
                with suppress(FileNotFoundError):
                    os.unlink(draft)
            raise


def _with_key(id: StateId, data: bytes) -> bytes:
    return len(id.key).to_bytes(_LENGTH_BYTES, "big") + id.key + data


def _content(path: str, id: StateId) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            stored = file.readall()
    except FileNotFoundError:
        return None
    start = _LENGTH_BYTES + len(id.key)
    if stored[:start] != len(id.key).to_bytes(_LENGTH_BYTES, "big") + id.key:
        raise CorruptionError(f"{path} does not hold the save of {id}; restore it from a copy, or remove it")
    return stored[start:]


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """One writer at a time, of all processes that see the directory; a dead one holds nothing."""
    with open(f"{directory}/{_LOCK}", "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep_once(directory: str) -> None:
    """Remove what killed processes left half written."""
    if directory not in _swept:
        _swept.add(directory)
        draft_names.sweep(Path(directory))


def _make_directory(directory: str) -> None:
    """Also the name of a directory must survive a power cut, in the one above it."""
    if os.path.isdir(directory):
        return
    above = os.path.dirname(directory)
    _make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(directory)
    _sync_directory(above)


def _sync_directory(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
