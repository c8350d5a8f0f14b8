"""One life of a job in three parts, on a real Spark: `python -m tests.chaos.parts_app ROOT ...`.

A diamond: rows come to part `joined` on a short way and, numbered per key, on a long way through `numbered`.
With `--gated` the long way is slower by any measure: a test says when rows pass on it, and in the first part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import holdfast as hf
from holdfast.chaos.inside.child import tightened
from tests.chaos.apps import RETAIN, Place, Shape, choose_spark, options

COLUMNS = "key long, event long"
RENUMBERED = 1_000_000


class Number(hf.KeyedFunction):
    """Numbers the events of a key."""

    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, self.n.value


class Renumber(Number):
    """Newer code for the same state, which its rows show."""

    def process(self, row: hf.Row, ctx: hf.Context) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, RENUMBERED + self.n.value


class Meet(hf.CoFunction):
    """Counts what came on each way, and adds up the numbers."""

    output = "key long, way string, n long, total long"
    short = hf.ValueState("long", default=0)
    long = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)

    def process_left(self, row: hf.Row, ctx: hf.Context) -> Iterator[Any]:
        self.short.value += 1
        yield row.key, "short", self.short.value, self.total.value

    def process_right(self, row: hf.Row, ctx: hf.Context) -> Iterator[Any]:
        self.long.value += 1
        self.total.value += row.n
        yield row.key, "long", self.long.value, self.total.value


@dataclass(frozen=True)
class Gate:
    """Lets `event` and what comes after it pass when the file is there."""

    path: str
    event: int

    def __call__(self, frame: DataFrame) -> DataFrame:
        # One task, so that what waits keeps one core from the other parts.
        return frame.coalesce(1).mapInArrow(self._passed, frame.schema)

    def _passed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch.num_rows and pc.max(batch["event"]).as_py() >= self.event and not self.is_open:
                time.sleep(0.05)
            yield batch

    @property
    def is_open(self) -> bool:
        return os.path.exists(self.path)

    def open(self) -> None:
        Path(self.path).touch()


def gates_of(place: Place, shape: Shape) -> tuple[Gate, Gate]:
    """Of the first part, in the middle of the input, and of the long way, soon after its beginning."""
    first = Gate(str(place.root / "main-goes-on"), shape.events // 2)
    return first, Gate(str(place.root / "long-way-goes-on"), shape.events // 8)


def finite(shape: Shape) -> hf.Source:
    """The events of a shape, all there from the beginning."""
    events = [(shape.key_of(event), event) for event in range(shape.events)]
    return hf.MemorySource(events, schema=COLUMNS)


def steady(shape: Shape, rows_per_second: float) -> hf.Source:
    """The same events as they become due, without end."""
    columns = {"key": f"id * 48271 % 2147483647 % {shape.keys}", "event": "id"}
    return hf.GeneratorSource(columns, schema=COLUMNS, rows_per_second=rows_per_second)


def diamond(
    place: Place,
    source_of_events: hf.Source,
    *,
    number: hf.KeyedFunction | None = None,
    protection: hf.Rollback | hf.PassiveStandby | hf.ActiveReplicas | None = None,
    joined_by: hf.Rollback | hf.PassiveStandby | None = None,
    gates: tuple[Gate, Gate] | None = None,
) -> hf.Job:
    """`protection`: that of part `numbered`, where `number` is; `joined_by`: that of part `joined`. `gates`:
    of the first part, and of the long way."""
    job = hf.Job("diamond")
    numbered = job.part("numbered", protection=protection or hf.Rollback())
    joined = job.part("joined", protection=joined_by or hf.Rollback())
    source: hf.Stream = job.source(source_of_events, uid="events")
    if gates is not None:
        source = source.transform(gates[0])
    source.sink(hf.FileSink(place.sink("events"), format="parquet"), uid="events-out")
    long_way = source.into(numbered, uid="long-way")
    if gates is not None:
        long_way = long_way.transform(gates[1])
    numbers = long_way.key_by("key").process(number or Number(), uid="number")
    numbers.sink(hf.FileSink(place.sink("numbers"), format="parquet"), uid="numbers-out")
    left = source.into(joined, uid="short-way").key_by("key")
    met = left.connect(numbers.into(joined).key_by("key")).process(Meet(), uid="meet")
    met.sink(hf.FileSink(place.sink("met"), format="parquet"), uid="met-out")
    return job


def alone(
    place: Place, source: hf.Source, protection: hf.ActiveReplicas, number: hf.KeyedFunction | None = None
) -> hf.Job:
    """Part `numbered` of the diamond without the others: it reads the events itself."""
    job = hf.Job("diamond")
    numbered = job.part("numbered", protection=protection)
    events = job.source(source, uid="events", part=numbered)
    numbers = events.key_by("key").process(number or Number(), uid="number")
    numbers.sink(hf.FileSink(place.sink("numbers"), format="parquet"), uid="numbers-out")
    return job


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--shape", required=True, help="fields of Shape, as JSON: how much is read")
    parser.add_argument("--gated", action="store_true", help="rows wait at gates")
    parser.add_argument("--retain", type=int, default=RETAIN, help="commits that are kept")
    parser.add_argument("--guarantee", default="exactly-once")
    parser.add_argument("--from-savepoint")
    given = parser.parse_args()
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    # What waits at a gate keeps cores.
    choose_spark("local[6]" if given.gated else "local[2]", [], place)
    job = diamond(place, finite(shape), gates=gates_of(place, shape) if given.gated else None)
    more = {"guarantee": given.guarantee, "from_savepoint": given.from_savepoint, "retain": given.retain}
    try:
        with tightened():
            job.run(**{**options(place, shape), **more})
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
