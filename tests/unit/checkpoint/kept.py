"""Storage in memory and records to keep in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    CommitRecord,
    DeltaFile,
    Extent,
    SnapshotFile,
    StagedFile,
)
from holdfast.errors import ObjectMissing
from holdfast.state.contract import Version
from holdfast.storage.contract import Entry, Put, Storage

OPERATOR, GROUPS, SINK = "totals", 4, "out"


class MemoryStorage:
    """The storage contract over a dict; `log` has every call."""

    url = "memory://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.log: list[tuple[str, str]] = []

    def put_new(self, name: str, data: bytes) -> Put:
        self.log.append(("put_new", name))
        if name in self.objects:
            return Put.EXISTS
        self.objects[name] = data
        return Put.CREATED

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def put_file(self, name: str, path: Path) -> None:
        self.objects[name] = path.read_bytes()

    def put_stream(self, name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        self.log.append(("put_stream", name))
        self.objects[name] = b"".join(parts())

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.log.append(("get", name))
        if name not in self.objects:
            raise ObjectMissing(f"{name} is not there")
        return self.objects[name][offset:][:length]

    def size(self, name: str) -> int | None:
        return len(self.objects[name]) if name in self.objects else None

    def entry(self, name: str) -> Entry | None:
        return Entry(name, len(self.objects[name])) if name in self.objects else None

    def list(self, prefix: str) -> list[Entry]:
        self.log.append(("list", prefix))
        return [Entry(n, len(data)) for n, data in sorted(self.objects.items()) if n.startswith(prefix)]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.log.append(("delete", name))
            self.objects.pop(name, None)

    def local_path(self, name: str) -> Path | None:
        return None

    def flip(self, name: str) -> None:
        """Damage an object at rest."""
        data = bytearray(self.objects[name])
        data[len(data) // 2] ^= 1
        self.objects[name] = bytes(data)


def on_each_part(storage: Storage, act: Callable[[], None]) -> None:
    """From now on, `act` is called after each part that is streamed to `storage`, one at a time."""
    put_stream, turn = storage.put_stream, threading.Lock()

    def acting(name: str, parts: Callable[[], Iterator[bytes]]) -> None:
        def watched() -> Iterator[bytes]:
            for part in parts():
                yield part
                with turn:
                    act()

        put_stream(name, watched)

    storage.put_stream = acting  # type: ignore[method-assign]


def extent(name: str) -> Extent:
    return Extent(object=name, offset=0, length=1, checksum="")


def version(epoch: int) -> Version:
    return Version(epoch=epoch, attempt=1, result="")


def delta(epoch: int, first: int = 0, end: int = GROUPS, operator: str = OPERATOR) -> DeltaFile:
    return DeltaFile(
        operator=operator, first_group=first, end_group=end,
        version=version(epoch), parent=version(epoch - 1),
        extent=extent(f"{names.data_of(epoch)}delta-{operator}-{first}"), entries=1,
    )  # fmt: skip


def snapshot(
    epoch: int, first: int = 0, end: int = GROUPS, operator: str = OPERATOR, by: str = "1"
) -> SnapshotFile:
    return SnapshotFile(
        operator=operator, first_group=first, end_group=end, version=version(epoch), length=1, chunk_bytes=1,
        object=names.snapshot(epoch, operator, first, end, by, "lmdb"), chunks=("",), backend="lmdb",
    )  # fmt: skip


def staged(epoch: int) -> StagedFile:
    out = extent(f"{names.data_of(epoch)}staged")
    return StagedFile(stream=SINK, epoch=epoch, part=0, extent=out, rows=1)


def draft(
    view: CheckpointView,
    *,
    epochs: int = 1,
    term: int = 1,
    run: str = "run-1",
    deltas: tuple[DeltaFile, ...] | None = None,
    snapshots: tuple[SnapshotFile, ...] = (),
    published: int | None = None,
) -> CommitRecord:
    """The record of the next epochs, each with delta and staged output; published up to the epoch before."""
    first, last = view.last_epoch + 1, view.last_epoch + epochs
    covered = range(first, last + 1)
    return CommitRecord(
        term=term, run=run, first_epoch=first, last_epoch=last, attempts={str(e): 1 for e in covered},
        clock_ms=last, parallelism=1, fingerprint="f", positions={"in": last}, rows=10 * epochs,
        deltas=tuple(delta(e) for e in covered) if deltas is None else deltas,
        staged=tuple(staged(e) for e in covered), snapshots=snapshots,
        published_through={SINK: view.last_epoch if published is None else published},
    )  # fmt: skip


def commit(chain: Chain, view: CheckpointView, record: CommitRecord | None = None) -> CheckpointView:
    """Commit, with the files that the record names in storage, and nobody in the way."""
    record = record or draft(view)
    for file in (*record.deltas, *record.staged, *record.lists):
        chain.storage.put(file.extent.object, b"x")
    for kept in record.snapshots:
        chain.storage.put(kept.object, b"x")
    outcome = chain.commit(view, record)
    assert isinstance(outcome, Committed)
    return outcome.view


def grow(chain: Chain, view: CheckpointView, count: int) -> CheckpointView:
    for _ in range(count):
        view = commit(chain, view)
    return view
