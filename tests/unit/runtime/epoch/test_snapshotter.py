"""Which shard gets the next snapshot."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.chain.shard_lines import Line, Lines
from holdfast.checkpoint.store.records import DeltaFile, Extent, SnapshotFile
from holdfast.checkpoint.store.schemas import record_of
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch import snapshotter
from holdfast.runtime.epoch.schemas_in_force import InForce
from holdfast.runtime.epoch.snapshotter import DELTAS_MIN, SnapshotTask, Snapshotter
from holdfast.state.contract import Version
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.schema_conversion import Lineage


def line(shard: int, epochs: int) -> Line:
    groups = shard_ranges(4, 2)[shard]
    made = Line(groups, Version(epoch=0, attempt=0, result=""))
    for epoch in range(1, epochs + 1):
        extent = Extent(object="d", offset=0, length=1, checksum="")
        at = Version(epoch=epoch, attempt=1, result=f"{epoch}")
        delta = DeltaFile(
            operator="op",
            first_group=groups.first,
            end_group=groups.end,
            version=at,
            parent=made.version,
            extent=extent,
            entries=1,
        )
        made = made.extended(delta)
    return made


def due_lines(epochs: int) -> Lines:
    """Both shards are due; the first one is idle, the second goes on."""
    return {("op", 0): line(0, DELTAS_MIN), ("op", 1): line(1, epochs)}


class Asked:
    """A snapshotter without Spark. `answer` is what its jobs give or raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shards: list[int] = []
        self.answer: list[SnapshotFile] | Exception = []
        self.said: list[str] = []
        nothing: Any = None
        lineage = Lineage.begin(StateLayout("op", pa.schema([("k", pa.string())]), ()))
        in_force = InForce((record_of(lineage),), {"op": lineage}, {})
        self.snapshotter = Snapshotter(nothing, nothing, nothing, 2, in_force)
        monkeypatch.setattr(self.snapshotter, "_run", self.run)

    def run(self, task: SnapshotTask) -> list[SnapshotFile]:
        self.shards += task.groups
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def step(self, lines: Lines) -> list[SnapshotFile]:
        given = self.snapshotter.step(lines, 99, self.said.append)
        if self.snapshotter._running is not None:
            wait([self.snapshotter._running])
        return given


def test_a_shard_that_gives_nothing_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotter, "SHARDS_AT_ONCE", 1)
    asked = Asked(monkeypatch)
    for turn in range(4):
        asked.step(due_lines(DELTAS_MIN + turn))
    assert asked.shards == [0, 1, 1, 1]


def test_a_failure_without_a_text_is_told_and_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    asked.answer = AssertionError()
    asked.step(due_lines(DELTAS_MIN))
    assert asked.step(due_lines(DELTAS_MIN)) == []
    assert asked.said == ["a snapshot failed and will be tried again: AssertionError"]


def test_a_shard_is_not_asked_again_before_its_line_has_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    lines = due_lines(DELTAS_MIN)
    del lines["op", 0]
    groups = lines["op", 1].groups
    asked.answer = [
        SnapshotFile(
            operator="op",
            first_group=groups.first,
            end_group=groups.end,
            version=lines["op", 1].version,
            object="s",
            length=1,
            chunk_bytes=1,
            chunks=("",),
            backend="lmdb",
        )
    ]
    asked.step(lines)
    assert asked.step({("op", 1): line(1, DELTAS_MIN + 1)}) == asked.answer
    assert asked.shards == [1]
