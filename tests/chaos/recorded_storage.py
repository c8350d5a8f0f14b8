"""Storage that writes down every write and what became of it, in the driver and in every Python worker.

`holdfast.storage.urls` passes each storage that a process opens through `recorded`, if the environment says
so (`environment`). All processes of a node add to one file, a line per call that has returned.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.storage.contract import Entry, Put, Storage
from holdfast.storage.urls import WRAPPER_VARIABLE

WRITES_VARIABLE = "CHAOS_WRITES"
DONE, CREATED, EXISTS = "done", Put.CREATED.value, Put.EXISTS.value

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Write:
    """A call that has returned. `outcome`: done, created, exists, or the name of the error."""

    at: float
    place: str
    call: str
    name: str
    outcome: str


def environment(file: Path) -> dict[str, str]:
    """What a process is started with, so that its writes are added to `file`."""
    return {WRAPPER_VARIABLE: f"{__name__}:recorded", WRITES_VARIABLE: str(file)}


def read_writes(file: Path) -> list[Write]:
    """What has been written down so far; a line that is being written is left out."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [Write(**json.loads(line)) for line in lines if line.endswith("\n")]


def recorded(storage: Storage) -> RecordedStorage:
    return RecordedStorage(storage, Path(os.environ[WRITES_VARIABLE]))


class RecordedStorage:
    """`inner`, with its writes on record."""

    def __init__(self, inner: Storage, file: Path) -> None:
        self.inner, self._file = inner, file

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, name: str, data: bytes) -> Put:
        return self._noting("put_new", [name], lambda: self.inner.put_new(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._noting("put", [name], lambda: self.inner.put(name, data))

    def put_file(self, name: str, path: Path) -> None:
        self._noting("put_file", [name], lambda: self.inner.put_file(name, path))

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        self._noting("put_stream", [name], lambda: self.inner.put_stream(name, parts))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self._noting("delete", doomed, lambda: self.inner.delete(doomed))

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(name, offset, length)

    def size(self, name: str) -> int | None:
        return self.inner.size(name)

    def entry(self, name: str) -> Entry | None:
        return self.inner.entry(name)

    def list(self, prefix: str) -> list[Entry]:
        return self.inner.list(prefix)

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(name)

    def _noting(self, call: str, names: Iterable[str], act: Callable[[], Result]) -> Result:
        try:
            result = act()
        except Exception as failure:
            self._note(call, names, type(failure).__name__)
            raise
        self._note(call, names, result.value if isinstance(result, Put) else DONE)
        return result

    def _note(self, call: str, names: Iterable[str], outcome: str) -> None:
        told = [
            Write(at=time.time(), place=self.url, call=call, name=name, outcome=outcome) for name in names
        ]
        lines = "".join(json.dumps(asdict(write)) + "\n" for write in told)
        # One call: lines of several processes do not mix.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, lines.encode())
        finally:
            os.close(descriptor)
