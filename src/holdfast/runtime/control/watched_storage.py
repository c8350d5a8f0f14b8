"""Checkpoint storage as a leader uses it: how long it has waited for an answer is known to its permit.

A leader that is cut off from storage may hang in any call, long before it wants to commit; how long that may
last is up to the storage's own time-outs.
Always true: calls pass unchanged. Those that move as much as there is to move are not watched: they may take
long without anything being wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.runtime.control.commit_permit import Permit
from holdfast.storage.contract import Entry, Put, Storage


class WatchedStorage:
    """`inner`, for one run. Reopened by its url, in a worker say, it is `inner` alone."""

    def __init__(self, inner: Storage, permit: Permit) -> None:
        self._inner, self._permit = inner, permit

    @property
    def url(self) -> str:
        return self._inner.url

    def put_new(self, name: str, data: bytes) -> Put:
        with self._permit.reaching_storage():
            return self._inner.put_new(name, data)

    def put(self, name: str, data: bytes) -> None:
        with self._permit.reaching_storage():
            self._inner.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._inner.put_file(name, path)

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        self._inner.put_stream(name, parts)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._permit.reaching_storage():
            return self._inner.get(name, offset, length)

    def size(self, name: str) -> int | None:
        with self._permit.reaching_storage():
            return self._inner.size(name)

    def entry(self, name: str) -> Entry | None:
        with self._permit.reaching_storage():
            return self._inner.entry(name)

    def list(self, prefix: str) -> list[Entry]:
        with self._permit.reaching_storage():
            return self._inner.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        with self._permit.reaching_storage():
            self._inner.delete(names)

    def local_path(self, name: str) -> Path | None:
        return self._inner.local_path(name)
