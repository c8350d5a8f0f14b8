"""The job of a point: running sums, one operator after the other, into as many sinks as it has."""

from __future__ import annotations

from pathlib import Path

import holdfast as hf
from bench.scale.points import Point
from holdfast.graph.streams import Stream


def job_of(point: Point, out: Path, epochs: int) -> hf.Job:
    """Ids below the number of keys set up one key each; after that each epoch touches keys spread over all of
    them, the same number of rows for each."""
    fill, rows, touched = point.keys, point.rows, point.touched
    spread = f"(id - {fill}) div {rows} * {touched} + (id - {fill}) % {touched}"
    columns = {
        "k": f"if(id < {fill}, id, pmod(xxhash64({spread}), {point.keys}))",
        "value": "pmod(id, 10)",
    }
    source = hf.GeneratorSource(columns, schema="k long, value long", total=fill + epochs * rows)
    job = hf.Job("scale")
    stream: Stream = job.source(source, uid="ids")
    for number in range(point.operators):
        stream = stream.key_by("k").aggregate(uid=f"sum-{number}", value=hf.sum("value"))
    for number in range(point.sinks):
        stream.sink(hf.FileSink(out / f"out-{number}", format="parquet"), uid=f"out-{number}")
    return job
