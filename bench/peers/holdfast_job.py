"""The keyed running sum with Holdfast, as a process of its own, as the peers run it.

    python -m bench.peers.holdfast_job OPERATOR IN OUT MARKS PLACE ROWS

ROWS: those of a slice, which is an epoch. A row is through when its epoch is committed, the last one when all
is shown and the run has ended.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import holdfast as hf
from bench.holdfast_runs import OPERATORS
from bench.spark_baselines import session
from bench.workload import SCHEMA


class Noting:
    """Listens to a run."""

    def __init__(self, path: Path, slice_rows: int) -> None:
        self._file, self._slice_rows, self._epoch = path.open("a", buffering=1), slice_rows, -1

    def __call__(self, progress: hf.Progress) -> None:
        if progress.phase == "running" and progress.committed_epoch > self._epoch:
            self._epoch = progress.committed_epoch
            self.note()

    def note(self) -> None:
        self._file.write(f"{time.monotonic()} {self._epoch * self._slice_rows}\n")


def main(operator: str, source: str, out: str, marks: str, place: str, rows: str) -> None:
    job = hf.Job("running-sum")
    slices = job.source(hf.FileSource(source, format="parquet", schema=SCHEMA), uid="slices")
    OPERATORS[operator](slices.key_by("k")).sink(hf.FileSink(out, format="parquet"), uid="sums")
    noting = Noting(Path(marks) / "0.txt", int(rows))
    job.run(
        Path(place) / "checkpoint",
        spark=session(),
        until="exhausted",
        max_rows_per_epoch=int(rows),
        working_dir=Path(place) / "working",
        on_progress=noting,
        on_message=lambda _: None,
    )
    noting.note()


if __name__ == "__main__":
    main(*sys.argv[1:])
