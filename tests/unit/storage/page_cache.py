"""Local storage whose power can be cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from holdfast.storage.contract import RESERVED_DIRECTORY
from holdfast.storage.local_directory import LocalStorage


class SyncOf(StrEnum):
    """What a `PageCacheStorage` can forget to sync."""

    FILES = "files"
    DIRECTORIES = "directories"
    NEW_DIRECTORIES = "new-directories"


class _Node(NamedTuple):
    inode: int
    is_directory: bool


class PageCacheStorage(LocalStorage):
    """Local storage that remembers what was really synced, so that `power_cut` can take away all else.

    What survives: a file's bytes as they were when it was last synced (none, if it never was), and a
    directory's entries as they were when it was last synced. Nothing unsynced is lucky; an unsynced deletion
    is undone.
    `forgets` leaves out syncs: the negative control of a durability test.
    """

    def __init__(self, root: str | Path, *, forgets: Collection[SyncOf] = ()) -> None:
        os.makedirs(root, exist_ok=True)
        self._forgets = frozenset(forgets)
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, _Node]] = {}
        self._held: list[int] = []
        super().__init__(root)
        self._remember_all()

    def power_cut(self) -> None:
        """Leave on disk what was synced, and nothing else. Not while another thread writes."""
        survivors = dict(self._survivors(os.stat(self.root).st_ino, ""))
        self._open.clear()
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, data in survivors.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._remember_all()

    def _sync_file(self, fd: int) -> None:
        super()._sync_file(fd)
        if SyncOf.FILES not in self._forgets:
            self._remember_file(fd)

    def _sync_directory(self, fd: int) -> None:
        super()._sync_directory(fd)
        if SyncOf.DIRECTORIES not in self._forgets:
            self._remember_directory(fd, with_directories=SyncOf.NEW_DIRECTORIES not in self._forgets)

    def _survivors(self, directory: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, node in self._entries.get(directory, {}).items():
            if node.is_directory:
                yield from self._survivors(node.inode, f"{prefix}{name}/")
            else:
                yield prefix + name, self._contents.get(node.inode, b"")

    def _remember_all(self) -> None:
        """Take all that is there now as synced."""
        self._contents.clear()
        self._entries.clear()
        while self._held:
            os.close(self._held.pop())
        for directory, _, files in os.walk(self.root):
            for path in (directory, *(os.path.join(directory, name) for name in files)):
                fd = os.open(path, os.O_RDONLY)
                if path == directory:
                    self._remember_directory(fd, with_directories=True)
                else:
                    self._remember_file(fd)
                os.close(fd)

    def _remember_file(self, fd: int) -> None:
        with open(self._hold(fd), "rb", closefd=False) as file:
            self._contents[os.fstat(fd).st_ino] = file.read()

    def _remember_directory(self, fd: int, *, with_directories: bool) -> None:
        self._hold(fd)
        with os.scandir(fd) as entries:
            self._entries[os.fstat(fd).st_ino] = {
                entry.name: _Node(entry.inode(), entry.is_dir())
                for entry in entries
                if entry.name != RESERVED_DIRECTORY and (with_directories or not entry.is_dir())
            }

    def _hold(self, fd: int) -> int:
        """Keep the file open, so that its inode number is not given to another while it is remembered."""
        self._held.append(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
        return self._held[-1]
