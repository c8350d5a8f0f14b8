"""What does each safeguard of an epoch cost?

    python -m bench.safeguards

One shard's half of the common workload's slice (125,000 rows over 50,000 keys), in this process alone,
without Spark:
each safeguard is done, then left out, on the same data, and the difference is its price. The commit is timed
whole.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.store.records import CommitRecord, DeltaFile, Extent
from holdfast.clock import SystemClock
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.column_types import state_layout
from holdfast.state.contract import EMPTY_VERSION, DeltaStep, ShardState, StateTarget, Version
from holdfast.state.encoding.keys import routing_hash
from holdfast.state.encoding.routing import key_groups_of
from holdfast.state.files.delta import to_entries, write_delta
from holdfast.state.local.backends import open_state
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.operators.aggregate import run_aggregate
from holdfast.tasks.operators.result import EpochContext
from holdfast.tasks.operators.shard_rows import cut
from holdfast.tasks.task_output import pack_rows

ROWS, KEYS, TURNS, GROUPS = 125_000, 50_000, 9, 64
SCHEMA = pa.schema([("k", pa.int64()), ("value", pa.int64())])


def run() -> dict[str, float]:
    """Safeguard -> milliseconds per shard and epoch (commit: per epoch)."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-safeguards-"))
    try:
        slices = [_Epoch(place, number) for number in range(1, TURNS + 1)]
        return {
            "staging the output": _median(lambda e: pack_rows(e.output), slices),
            "writing the delta": _median(lambda e: write_delta(e.layout, e.changes), slices),
            "checksums": _median(lambda e: (checksum(e.delta), checksum(e.staged)), slices),
            "undo": _apply_ms(place, slices, undo=True) - _apply_ms(place, slices, undo=False),
            "fsync": _put_ms(place, slices, fsync=True) - _put_ms(place, slices, fsync=False),
            "commit record": _commit_ms(place, slices),
        }
    finally:
        shutil.rmtree(place)


class _Epoch:
    """One epoch's slice, run once so that its outputs and changes are at hand."""

    def __init__(self, place: Path, number: int) -> None:
        chance = np.random.default_rng(number)
        keys = chance.integers(0, KEYS, ROWS)
        self._rows = pa.table({"k": keys, "value": chance.integers(0, 1_000, ROWS)}, schema=SCHEMA)
        self._groups = key_groups_of(routing_hash([pa.array(keys)]), GROUPS)
        self._function = Aggregation({"total": hf.sum("value")})
        self.layout = state_layout("sum", self._function, SCHEMA, ("k",))
        self.number = number
        self._state = open_at(place / "nothing", EMPTY_VERSION)
        done = self._run()
        self.output = done.outputs[""]
        self.staged = pack_rows(self.output)
        self.changes = done.changes
        self.delta = write_delta(self.layout, done.changes)
        self.entries = to_entries(self.layout, done.changes)

    def _run(self) -> Any:
        context = EpochContext("sum", self.number, 0, 0, "fail")
        keyed = cut(self.layout, self._rows, self._groups, ("k",), ())
        return run_aggregate(self._function, self.layout, keyed, self._state, context)


def open_at(directory: Path, version: Version) -> ShardState:
    steps = () if version == EMPTY_VERSION else (DeltaStep(version, EMPTY_VERSION, list),)
    return open_state(directory, "bench", StateTarget(version, 0, GROUPS, (), steps, committed=0))


def _apply_ms(place: Path, epochs: list[_Epoch], undo: bool) -> float:
    spent, version = [], EMPTY_VERSION
    for epoch in epochs:
        state = open_at(place / f"undo-{undo}", version)
        state.get_many([key for key, _ in epoch.entries])
        after = Version(epoch.number, 1, "r")
        begun = time.perf_counter()
        state.apply(version, after, epoch.entries, committed=epoch.number - 1, undo=undo)
        spent.append(time.perf_counter() - begun)
        version = after
    return statistics.median(spent) * 1_000


def _put_ms(place: Path, epochs: list[_Epoch], fsync: bool) -> float:
    storage = LocalStorage(place / f"fsync-{fsync}", fsync=fsync)

    def put(epoch: _Epoch) -> None:
        storage.put(f"data/{epoch.number}/delta", epoch.delta)
        storage.put(f"data/{epoch.number}/staged", epoch.staged)

    return _median(put, epochs)


def _commit_ms(place: Path, epochs: list[_Epoch]) -> float:
    storage = LocalStorage(place / "chain")
    checkpoint = open_checkpoint(storage, "bench", 128, SystemClock(), identity="bench")
    view = checkpoint.chain.load()
    spent = []
    for epoch in epochs:
        version = Version(epoch=epoch.number, attempt=1, result="r")
        extent = Extent(object="o", offset=0, length=1, checksum="")
        delta = DeltaFile(
            operator="sum",
            first_group=0,
            end_group=64,
            version=version,
            parent=version,
            extent=extent,
            entries=1,
        )
        record = CommitRecord(
            term=1, run="r", first_epoch=epoch.number, last_epoch=epoch.number, attempts={}, clock_ms=0,
            parallelism=2, fingerprint="", positions={}, deltas=(delta, delta), published_through={"out": 0},
        )  # fmt: skip
        begun = time.perf_counter()
        view = checkpoint.chain.commit(view, record).view
        checkpoint.retention.after_commit(view)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1_000


def _median(work: Callable[[_Epoch], object], epochs: list[_Epoch]) -> float:
    spent = []
    for epoch in epochs:
        begun = time.perf_counter()
        work(epoch)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1_000


if __name__ == "__main__":
    print(json.dumps({name: round(spent, 2) for name, spent in run().items()}, indent=2))
