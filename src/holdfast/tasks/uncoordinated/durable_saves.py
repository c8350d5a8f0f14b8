"""Which saves of a shard's keys became durable: a log beside the working state.

A save ends in one process; the next task of the shard may run in another. So the process that saved appends
here, and a task takes what it finds into the books of the keys.
Always true: an acknowledgement is written after its save was durable, and removed after a task applied it; in
between it may be read any number of times. One that is lost costs a second save, never a state.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEAD = struct.Struct(">16sQ8sQQH")


@dataclass(frozen=True, slots=True)
class Ack:
    """A durable save of the key `base`, made of its first `events` events, as it stood at `taken_ms`.

    It counts for working state that has passed through the version it was taken at (`epoch`, `tag`): one that
    went back and took another way may have as many events, but others.
    """

    incarnation: bytes
    epoch: int
    tag: bytes
    events: int
    taken_ms: int
    base: bytes


class AckLog:
    """The log in one file; also the lock that lets one process of a machine save a shard's keys at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "saves.log"
        self._saving = directory / "saves.lock"

    def append(self, acks: Sequence[Ack]) -> None:
        packed = b"".join(_packed(ack) for ack in acks)
        with self._locked() as file:
            file.seek(0, 2)
            file.write(packed)

    def read(self, incarnation: bytes) -> tuple[list[Ack], int]:
        """What concerns this working copy, oldest first, and how much of the log was read."""
        with self._locked() as file:
            file.seek(0)
            data = file.read()
        return [ack for ack in _unpacked(data) if ack.incarnation == incarnation], len(data)

    def forget(self, length: int) -> None:
        """Remove what was read."""
        if not length:
            return
        with self._locked() as file:
            file.seek(length)
            rest = file.read()
            file.seek(0)
            file.write(rest)
            file.truncate()

    def try_to_save(self) -> BinaryIO | None:
        """The right to save this shard's keys, until it is closed. None: another process has it.

        Two that save the same key could overtake each other, and the earlier save would stay.
        """
        file = self._saving.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        with self._path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _packed(ack: Ack) -> bytes:
    head = _HEAD.pack(ack.incarnation, ack.epoch, ack.tag, ack.events, ack.taken_ms, len(ack.base))
    return head + ack.base


def _unpacked(data: bytes) -> Iterator[Ack]:
    end = 0
    while end + _HEAD.size <= len(data):
        incarnation, epoch, tag, events, taken_ms, length = _HEAD.unpack_from(data, end)
        start, end = end + _HEAD.size, end + _HEAD.size + length
        if end <= len(data):
            yield Ack(incarnation, epoch, tag, events, taken_ms, data[start:end])
