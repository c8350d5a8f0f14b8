"""How long does a point query take: the first of a reader, and those after it?

    python -m bench.point_query --keys 1000000 --deltas 20 --rows 5000

No Spark: a checkpoint of one operator is built with the state and checkpoint packages, a snapshot of `keys`
keys (strings, one long each, with a list and a map beside it for every 10th) and `deltas` deltas of `rows`
rows in each of `shards` shards. Then single keys are asked for, spread over all of it, while a commit is
added now and then.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import CommitRecord, DeltaFile, Extent, SnapshotFile
from holdfast.checkpoint.store.schemas import file_schema, record_of
from holdfast.clock import SystemClock
from holdfast.ids import KeyGroupRange, shard_ranges
from holdfast.inspect.point_query import StateReader
from holdfast.state.contract import EMPTY_VERSION, DeltaStep, StateTarget, Version
from holdfast.state.encoding.keys import key_groups_of, routing_hash
from holdfast.state.encoding.layout import StateField, StateKind, StateLayout
from holdfast.state.encoding.types import parse_type
from holdfast.state.files.delta import Changes, Entry, to_entries, write_delta
from holdfast.state.files.rows import changes_of, row_schema
from holdfast.state.files.schema_conversion import Lineage
from holdfast.state.local.backends import open_state
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage

GROUPS = 128
LAYOUT = StateLayout(
    "totals",
    pa.schema([("user", pa.string())]),
    (
        StateField(0, "total", StateKind.VALUE, pa.int64()),
        StateField(1, "tags", StateKind.LIST, pa.string()),
        StateField(2, "seen", StateKind.MAP, parse_type("map<string,long>")),
    ),
)
LINEAGE = Lineage.begin(LAYOUT)


def rows_of(ids: Any, total: int) -> pa.Table:
    """One row per id; `total` is what its value is."""
    users = pa.array([f"user-{id}" for id in ids])
    groups = key_groups_of(routing_hash([users]), GROUPS)
    rich = [id % 10 == 0 for id in ids]
    tags = pa.array([["a", "b"] if yes else None for yes in rich], pa.list_(pa.string()))
    seen = pa.array([[("p", 1), ("q", 2)] if yes else None for yes in rich], parse_type("map<string,long>"))
    columns = [users, pa.array(np.full(len(ids), total)), tags, seen, pa.array(groups, pa.int32())]
    return pa.table(columns, schema=row_schema(LAYOUT))


def of_groups(table: pa.Table, groups: KeyGroupRange) -> Changes:
    column = np.asarray(table.column("key_group"))
    return changes_of(LAYOUT, table.filter(pa.array((column >= groups.first) & (column < groups.end))))


def entries_of(ids: range, groups: KeyGroupRange) -> list[Entry]:
    return to_entries(LAYOUT, of_groups(rows_of(ids, 0), groups))


class Built:
    """A checkpoint that grows."""

    def __init__(self, place: Path, keys: int, shards: int) -> None:
        self.storage = LocalStorage(place / "ck")
        self.keys, self.shards = keys, shard_ranges(GROUPS, shards)
        self.chain = Chain(self.storage)
        open_checkpoint(self.storage, "bench", GROUPS, SystemClock(), identity="i")
        self.view: CheckpointView = self.chain.load()
        self.versions: dict[KeyGroupRange, Version] = {}
        self.random = random.Random(7)
        files = [self._snapshot(place / "working", groups) for groups in self.shards]
        self._commit([], files)

    def _snapshot(self, working: Path, groups: KeyGroupRange) -> SnapshotFile:
        parts = 20
        steps, parent = [], EMPTY_VERSION
        for part in range(parts):
            ids = range(part * self.keys // parts, (part + 1) * self.keys // parts)
            version = Version(1, part + 1, "s")
            steps.append(DeltaStep(version, parent, partial(entries_of, ids, groups)))
            parent = version
        target = StateTarget(parent, groups.first, groups.end, deltas=tuple(steps))
        state = open_state(working / str(groups), "i", target)
        local = working / str(groups) / "snapshot"
        info = state.snapshot(local)
        state.close()
        name = f"snapshots/{1:012d}/{groups}"
        self.storage.put_file(name, local)
        self.versions[groups] = Version(epoch=1, attempt=parts, result="s")
        return SnapshotFile(
            operator="totals", first_group=groups.first, end_group=groups.end,
            version=self.versions[groups], object=name, length=info.length, chunk_bytes=info.chunk_bytes,
            chunks=info.chunks, backend="lmdb", schema=file_schema(record_of(LINEAGE)),
        )  # fmt: skip

    def add_delta(self, rows: int) -> None:
        """An epoch that touches `rows` keys in each shard, one of them always the same."""
        epoch = self.view.last_epoch + 1
        ids = {0, *(self.random.randrange(self.keys) for _ in range(rows * len(self.shards)))}
        table = rows_of(sorted(ids), epoch)
        deltas = []
        for groups in self.shards:
            data = write_delta(LAYOUT, of_groups(table, groups))
            name = f"data/{epoch:012d}/{groups}.delta.parquet"
            self.storage.put(name, data)
            extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
            version = Version(epoch=epoch, attempt=1, result=f"{epoch}")
            deltas.append(
                DeltaFile(
                    operator="totals", first_group=groups.first, end_group=groups.end, version=version,
                    parent=self.versions.get(groups, EMPTY_VERSION), extent=extent, entries=rows,
                )
            )  # fmt: skip
            self.versions[groups] = version
        self._commit(deltas, [])

    def _commit(self, deltas: list[DeltaFile], snapshots: list[SnapshotFile]) -> None:
        epoch = self.view.last_epoch + 1
        record = CommitRecord(
            term=1, run="r", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=epoch,
            parallelism=len(self.shards), fingerprint="f", positions={}, deltas=tuple(deltas),
            snapshots=tuple(snapshots), operators=(record_of(LINEAGE),) if epoch == 1 else None,
        )  # fmt: skip
        done = self.chain.commit(self.view, record)
        assert isinstance(done, Committed)
        self.view = done.view


def measure(built: Built, queries: int, rows: int) -> dict[str, Any]:
    """Milliseconds of the first query, of the next ones, of a key that every delta changes, and of the first
    one after a commit.
    """
    reader = StateReader(built.storage.url)
    ask = random.Random(11)
    cold = _timed(reader, ask.randrange(built.keys))
    # The second shard's snapshot and deltas are opened by the first key that falls there.
    opening = [_timed(reader, ask.randrange(built.keys)) for _ in range(len(built.shards) * 4)]
    warm = [_timed(reader, ask.randrange(built.keys)) for _ in range(queries)]
    _timed(reader, 0)
    hot = [_timed(reader, 0) for _ in range(50)]
    after = []
    for _ in range(20):
        built.add_delta(rows)
        after.append(_timed(reader, ask.randrange(built.keys)))
    used = reader._lookup._cache._used
    reader.close()
    return {
        "cold_ms": round(cold, 1),
        "opening_worst_ms": round(max(opening), 1),
        "warm_ms": _spread(warm),
        "hot_key_ms": _spread(hot),
        "after_a_commit_ms": _spread(after),
        "cache_mb": round(used / 1e6, 1),
    }


def _timed(reader: StateReader, id: int) -> float:
    started = time.perf_counter()
    answer = reader.get("totals", f"user-{id}")
    assert answer.found, f"user-{id} is missing"
    return (time.perf_counter() - started) * 1_000


def _spread(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=20)
    return {
        "p50": round(statistics.median(times), 2),
        "p95": round(cuts[18], 2),
        "worst": round(max(times), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--deltas", type=int, default=20)
    parser.add_argument("--rows", type=int, default=5_000, help="rows in each delta")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--queries", type=int, default=500)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        built = Built(Path(place), asked.keys, asked.shards)
        for _ in range(asked.deltas):
            built.add_delta(asked.rows)
        size = sum(file.length for files in built.view.snapshots.values() for file in files)
        result = {
            **vars(asked),
            "snapshot_mb": round(size / 1e6),
            **measure(built, asked.queries, asked.rows),
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
