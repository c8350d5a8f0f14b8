"""The frames of an epoch, as far as they say what Spark is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.store.records import PlannedSlice
from holdfast.connectors.memory import MemoryReader
from holdfast.graph.event_time import watermark_nodes
from holdfast.runtime.epoch.epoch_frames import EpochFrames, SparkColumns, Untold
from tests.unit.runtime.epoch.test_recorded_plans import plan


class Partitioned(hf.MemorySource):
    partition_column = "part"

    def reader(self, notes: Any = ()) -> Any:
        return _Reader(self)


class _Reader(MemoryReader):
    def partitions(self, slice: Any) -> dict[str, bool]:
        return {"0": False, "1": False}


def test_of_a_slice_without_rows_of_any_partition_spark_is_asked_for_no_time() -> None:
    """Such as one that only moves on over what is no row. Spark refuses to find nothing."""
    job = hf.Job("timed")
    source = Partitioned([], schema="ts timestamp, part int")
    job.source(source, uid="rows").watermark("ts", delay="1s").key_by("part").aggregate(
        uid="op", n=hf.count()
    )
    program: Any = SimpleNamespace(graph=job.graph(), streams={})
    planned = replace(plan(1, 1, 0), slices={"rows": PlannedSlice(start=None, end=1)})
    no_session: Any = None
    frames = EpochFrames(
        no_session, program, {"rows": source.reader()}, "", planned, Untold(), SparkColumns()
    )
    rows: Any = SimpleNamespace()
    frames._sources["rows"] = rows
    (watermark,) = watermark_nodes(program.graph).values()
    assert frames.computed(watermark) is rows
    assert frames.newest_times() == ({"rows": {}}, {"rows": ["0", "1"]})
