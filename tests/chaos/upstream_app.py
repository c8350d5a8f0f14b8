"""One life of a job whose windows are in a part that saves no state, on a real Spark: `python -m
tests.chaos.upstream_app ROOT ...`. Windows of time, by key; an event happens every second.

    main (rollback) -> recent (upstream backup): counts in windows -> kept (passive standby): totals
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

import holdfast as hf
from holdfast.chaos.inside.child import tightened
from tests.chaos.apps import Place, Shape, choose_spark, options

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW_SECONDS = 240


def windows(place: Place, shape: Shape) -> hf.Job:
    job = hf.Job("windows")
    part = job.part("recent", protection=hf.UpstreamBackup())
    events = [(shape.key_of(event), START + timedelta(seconds=event)) for event in range(shape.events)]
    source = job.source(hf.MemorySource(events, schema="key long, at timestamp"), uid="events")
    recent = source.watermark("at", delay="5s").into(part, uid="events-in").key_by("key")
    counted = recent.window(hf.tumbling(f"{WINDOW_SECONDS}s"), on="at").aggregate(uid="counts", n=hf.count())
    counted.sink(hf.FileSink(place.sink("counts"), format="parquet"), uid="counts-out")
    kept = job.part("kept", protection=hf.PassiveStandby())
    totals = counted.into(kept, uid="counts-in").key_by("key")
    added = totals.aggregate(uid="totals", total=hf.sum("n"), windows=hf.count())
    added.sink(hf.FileSink(place.sink("totals"), format="parquet"), uid="totals-out")
    return job


def wrong(place: Place, shape: Shape) -> list[str]:
    """What the sinks show that is not in the events, or the other way round."""
    expected = Counter((shape.key_of(event), event // WINDOW_SECONDS) for event in range(shape.events))
    problems = []
    rows = pq.read_table(place.sink("counts")).to_pylist()
    found: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        started = int((row["window_start"] - START).total_seconds()) // WINDOW_SECONDS
        found.setdefault((row["key"], started), []).append(row["n"])
    totals = dict.fromkeys({key for key, _ in expected}, (0, 0))
    for row in pq.read_table(place.sink("totals")).to_pylist():
        totals[row["key"]] = max(totals.get(row["key"], (0, 0)), (row["total"], row["windows"]))
    for key, found_total in sorted(totals.items()):
        counts = [n for (of, _), n in expected.items() if of == key]
        if found_total != (sum(counts), len(counts)):
            problems.append(f"key {key}: total {found_total}, should be {sum(counts), len(counts)}")
    return problems + [
        f"key {key}, window {number}: {found.get((key, number), [])}, should be {[expected[key, number]]}"
        for key, number in sorted({*expected, *found})
        if found.get((key, number)) != [expected[key, number]]
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--shape", required=True, help="fields of Shape, as JSON: how much is read")
    given = parser.parse_args()
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    choose_spark("local[2]", [], place)
    try:
        with tightened():
            windows(place, shape).run(**{**options(place, shape), "retain": 2})
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
