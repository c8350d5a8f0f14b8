"""What a task writes, under names that no other attempt has, and where its time went."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping

import pyarrow as pa

from holdfast.checkpoint.store.records import Extent
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage
from holdfast.tasks.messages import INLINE_BYTES, Output, Payload
from holdfast.tasks.staged import pack_rows


class TaskWriter:
    """Writes a task's files under names that no other attempt has."""

    def __init__(self, storage: Storage, epoch: int, who: str, shard: int) -> None:
        self.unique = uuid.uuid4().hex
        self._storage = storage
        self._stem = f"data/{epoch:012d}/{who}-{shard}-{self.unique}"
        self._count = 0

    def write(self, data: bytes, suffix: str) -> Payload:
        total = checksum(data)
        if len(data) <= INLINE_BYTES:
            return Payload(checksum=total, length=len(data), inline=data)
        name = f"{self._stem}-{self._count}.{suffix}"
        self._count += 1
        self._storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=total)
        return Payload(checksum=total, length=len(data), extent=extent)

    def stage(self, made: Mapping[str, pa.Table], wanted: Collection[str]) -> tuple[Output, ...]:
        """Write the rows of those outputs that somebody reads."""
        return tuple(
            Output(name, rows.num_rows, self.write(pack_rows(rows), "rows.arrow"))
            for name, rows in made.items()
            if name in wanted and rows.num_rows
        )


class Watch:
    """Where a task's time went."""

    def __init__(self) -> None:
        self.laps_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_ms[name] = (now - self._last) * 1_000
        self._last = now
