"""Holdfast on the common workload: the same files, the same session, the same kind of sink as Spark's own
ways.

Measured is the time between commits, in the steady state: planning, reading, state, delta, staged output,
commit record and
published file all happen within it. The first WARM_UP epochs do not count, and the sums are checked.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

import holdfast as hf
from bench.workload import SCHEMA, Workload, expected_sums, write_slices

WARM_UP = 3
Result = dict[str, Any]


class RowSum(hf.KeyedFunction):
    """A plain Python function, a row at a time."""

    output = "k long, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.value
        yield row.k, self.total.value


class ColumnSum(hf.BatchFunction):
    """The same with columns."""

    output = "k long, total long"
    total = hf.ValueState("long", default=0)

    def process(self, rows: pa.Table, ctx: Any) -> pa.Table:
        # Weights are summed as doubles: exact below 2**53, far above any sum here.
        added = np.bincount(ctx.key_index, weights=rows["value"].to_numpy(), minlength=len(ctx.keys))
        self.total.column = pa.array(self.total.column.to_numpy() + added.astype(np.int64))
        return pa.table({"k": ctx.keys["k"], "total": self.total.column})


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "aggregate": lambda keyed: keyed.aggregate(uid="sum", total=hf.sum("value")),
    "process": lambda keyed: keyed.process(RowSum(), uid="sum"),
    "process_batch": lambda keyed: keyed.process_batch(ColumnSum(), uid="sum"),
}


@dataclass
class CommitTimes:
    """Listens to a run: when each epoch was committed, by this process's clock."""

    at: dict[int, float] = field(default_factory=dict)

    def __call__(self, progress: hf.Progress) -> None:
        if progress.committed_epoch not in self.at:
            self.at[progress.committed_epoch] = time.perf_counter()

    def gaps_ms(self, skip: int) -> list[float]:
        """Time from commit to commit, in milliseconds, after the first `skip` epochs."""
        times = [self.at[epoch] for epoch in sorted(self.at) if epoch >= skip]
        return [(after - before) * 1_000 for before, after in pairwise(times)]


def measure(
    spark: SparkSession,
    operator: str,
    workload: Workload,
    slices: int,
    checkpoint: str | None = None,
    **options: Any,
) -> Result:
    """Run one operator over the workload; `checkpoint` is a storage URL, a local directory unless given."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        place = Path(scratch)
        write_slices(place / "in", workload, WARM_UP + slices)
        job = hf.Job(f"bench-{operator.replace('_', '-')}")
        source = hf.FileSource(place / "in", format="parquet", schema=SCHEMA)
        OPERATORS[operator](job.source(source, uid="slices").key_by("k")).sink(
            hf.FileSink(place / "out", format="parquet"), uid="sums"
        )
        times = CommitTimes()
        job.run(
            checkpoint or place / "checkpoint",
            spark=spark,
            until="exhausted",
            max_rows_per_epoch=workload.rows,
            working_dir=place / "working",
            on_progress=times,
            on_message=lambda _: None,
            **options,
        )
        _check_sums(place / "out", workload, WARM_UP + slices)
    gaps = times.gaps_ms(WARM_UP)
    assert len(gaps) == slices, f"{len(gaps)} epochs were measured, not {slices}"
    milliseconds = statistics.median(gaps)
    return {
        "name": f"holdfast {operator}",
        "sink": "parquet",
        "workload": str(workload),
        "slices": slices,
        "ms_per_batch": round(milliseconds, 1),
        "ms_per_batch_min": round(min(gaps), 1),
        "ms_per_batch_max": round(max(gaps), 1),
        "rows_per_s": round(workload.rows / milliseconds * 1_000),
    }


def _check_sums(directory: Path, workload: Workload, slices: int) -> None:
    # Values are never negative, so a key's last sum is its largest.
    last = ds.dataset(directory).to_table(columns=["k", "total"]).group_by("k").aggregate([("total", "max")])
    sums = dict(zip(last["k"].to_pylist(), last["total_max"].to_pylist(), strict=True))
    assert sums == expected_sums(workload, slices), "the sums are wrong: nothing measured here means anything"
