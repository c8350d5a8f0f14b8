"""One life of a job in three parts, on a real Spark: `python -m tests.chaos.parts_app ROOT ...`.

A diamond: rows come to part `joined` on a short way and, numbered per key, on a long way through `numbered`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.chaos.inside.child import tightened
from tests.chaos.apps import Place, Shape, choose_spark, options


class Number(hf.KeyedFunction):
    """Numbers the events of a key."""

    output = "key long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Iterator[Any]:
        self.n.value += 1
        yield row.key, self.n.value


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


def diamond(place: Place, shape: Shape) -> hf.Job:
    job = hf.Job("diamond")
    numbered, joined = job.part("numbered"), job.part("joined")
    events = [(shape.key_of(event), event) for event in range(shape.events)]
    source = job.source(hf.MemorySource(events, schema="key long, event long"), uid="events")
    source.sink(hf.FileSink(place.sink("events"), format="parquet"), uid="events-out")
    numbers = source.into(numbered, uid="long-way").key_by("key").process(Number(), uid="number")
    numbers.sink(hf.FileSink(place.sink("numbers"), format="parquet"), uid="numbers-out")
    left = source.into(joined, uid="short-way").key_by("key")
    met = left.connect(numbers.into(joined).key_by("key")).process(Meet(), uid="meet")
    met.sink(hf.FileSink(place.sink("met"), format="parquet"), uid="met-out")
    return job


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--shape", required=True, help="fields of Shape, as JSON: how much is read")
    given = parser.parse_args()
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    choose_spark("local[2]", [], place)
    try:
        with tightened():
            diamond(place, shape).run(**options(place, shape))
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
