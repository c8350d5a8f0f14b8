"""The keyed running sum with bytewax, for a Python that has bytewax: each of its processes runs this.

    python -m bytewax.run "bytewax_flow.py:flow('IN', 'OUT', 'MARKS', PROCESS, PROCESSES)" \\
        -r RECOVERY -s 1 -b 0 -i PROCESS -a "localhost:1;localhost:2"

Every process reads its own share of the files and writes a file of its own, so that rows cross between
processes only where bytewax sends them to their keys. What was read and what was written is part of its
recovery: a run that is started again goes on from the newest snapshot, and the output is cut to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import bytewax.operators as op
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

BATCH = 1_000
Item = tuple[str, int]
Position = tuple[int, int]
"""Files that were read whole, and batches of the next one."""


class Marks:
    """Notes how many rows were through, and when."""

    def __init__(self, path: Path) -> None:
        self._file, self._rows = path.open("a", buffering=1), 0

    def add(self, rows: int) -> None:
        self._rows += rows
        self._file.write(f"{time.monotonic()} {self._rows}\n")


class Slices(StatefulSourcePartition[Item, Position]):
    def __init__(self, paths: list[Path], position: Position | None, marks: Marks) -> None:
        self._paths, self._marks = paths, marks
        self._file, self._batch = position or (0, 0)
        self._batches = self._read(self._batch)
        self._begun = False

    def next_batch(self) -> list[Item]:
        if not self._begun:
            self._marks.add(0)
            self._begun = True
        while self._file < len(self._paths):
            batch = next(self._batches, None)
            if batch is not None:
                self._batch += 1
                return batch
            self._file, self._batch = self._file + 1, 0
            self._batches = self._read(0)
        raise StopIteration

    def snapshot(self) -> Position:
        return self._file, self._batch

    def _read(self, skipped: int) -> Iterator[list[Item]]:
        if self._file < len(self._paths):
            for number, rows in enumerate(pq.ParquetFile(self._paths[self._file]).iter_batches(BATCH)):
                if number >= skipped:
                    keys = pc.cast(rows.column("k"), "string").to_pylist()
                    yield list(zip(keys, rows.column("value").to_pylist(), strict=True))


class Source(FixedPartitionedSource[Item, Position]):
    def __init__(self, paths: list[Path], process: int, marks: Marks) -> None:
        self._paths, self._process, self._marks = paths, process, marks

    def list_parts(self) -> list[str]:
        return [str(self._process)]

    def build_part(self, step_id: str, for_part: str, resume_state: Position | None) -> Slices:
        return Slices(self._paths, resume_state, self._marks)


class Lines(StatefulSinkPartition[str, int]):
    def __init__(self, path: Path, end: int | None, marks: Marks) -> None:
        self._file, self._marks = path.open("ab"), marks
        self._file.truncate(end or 0)

    def write_batch(self, values: list[str]) -> None:
        self._file.write("".join(values).encode())
        self._marks.add(len(values))

    def snapshot(self) -> int:
        """What is below it is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class Sink(FixedPartitionedSink[str, int]):
    def __init__(self, directory: Path, process: int, marks: Marks) -> None:
        self._directory, self._process, self._marks = directory, process, marks

    def list_parts(self) -> list[str]:
        return [str(self._process)]

    def part_fn(self, item_key: str) -> int:
        return int(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Lines:
        return Lines(self._directory / f"part-{for_part}.csv", resume_state, self._marks)


def running_sum(total: int | None, value: int) -> tuple[int, int]:
    new = (total or 0) + value
    return new, new


def flow(source: str, out: str, marks: str, process: int, processes: int) -> Dataflow:
    noted = Marks(Path(marks) / f"{process}.txt")
    paths = sorted(Path(source).glob("*.parquet"))[process::processes]
    made = Dataflow("running-sum")
    rows = op.input("slices", made, Source(paths, process, noted))
    totals = op.stateful_map("sum", rows, running_sum)
    lines = op.map("line", totals, lambda each: (str(process), f"{each[0]},{each[1]}\n"))
    op.output("sums", lines, Sink(Path(out), process, noted))
    return made
