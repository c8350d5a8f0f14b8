"""Does state with a ttl stay bounded, and does the checkpoint shrink when all of it has expired?

    python -m bench.ttl --keys 10000000

Every key gets an item in a list and an entry in a map, once, and is never seen again. Then event time goes on
by days, with a few rows of a few other keys: all that was there expires, a bounded part in every epoch. Shown
after each phase: the bytes that working state uses, those of the newest snapshots and of the deltas since,
and those of the whole checkpoint directory, which follow as older commits are given up. What is left in the
end does not depend on the number of keys.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.spark_baselines import session
from holdfast.checkpoint.chain.commits import Chain
from holdfast.inspect.stored_state import open_stored, state_entries
from holdfast.storage.urls import open_storage

FILL_ROWS = 250_000
TAIL_ROWS, TAIL_EPOCHS, TAIL_KEYS = 64, 100, 16
DAY_S = 86_400


class Visits(hf.KeyedFunction):
    """What a key did last: a list and a map that nobody clears."""

    output = "k long, seen long"
    pages = hf.ListState("long", ttl="1h", clock="event")
    by_page = hf.MapState("long", "long", ttl="1h", clock="event")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.pages.append(row.page)
        self.by_page[row.page] = row.page
        if row.k < 0:
            yield row.k, len(self.pages)


def job_of(keys: int, tail: int) -> hf.Job:
    """Ids below `keys` are a key each, in one hour; those after it come a day later each TAIL_ROWS."""
    columns = {
        "k": f"if(id < {keys}, id, -1 - pmod(id, {TAIL_KEYS}))",
        "page": "pmod(id, 100)",
        "ts": f"timestamp_seconds(if(id < {keys}, id * 3600 div {keys}, "
        f"(2 + (id - {keys}) div {TAIL_ROWS}) * {DAY_S}))",
    }
    source = hf.GeneratorSource(columns, schema="k long, page long, ts timestamp", total=keys + tail)
    job = hf.Job("ttl")
    stream = job.source(source, uid="ids").watermark("ts", delay="0s")
    stream.key_by("k").process(Visits(), uid="visits").sink(hf.MemorySink(), uid="out")
    return job


def measured(phase: str, keys: int, place: Path, state_bytes: int, seconds: float) -> dict[str, Any]:
    view = Chain(open_storage(str(place / "ck"))).load()
    newest = {(s.first_group, s.end_group): s for s in view.snapshots.get("visits", ())}
    since = max((s.version.epoch for s in newest.values()), default=0)
    waiting = [d for d in view.live_deltas("visits") if d.version.epoch > since]
    entries = sum(len(run) for run in state_entries(open_stored(str(place / "ck")), "visits"))
    return {
        "phase": phase,
        "keys": keys,
        "epochs": view.last_epoch,
        "seconds": round(seconds, 1),
        "entries": entries,
        "state_bytes": state_bytes,
        "snapshot_bytes": sum(s.length for s in newest.values()),
        "delta_bytes_since": sum(d.extent.length for d in waiting),
        "checkpoint_bytes": sum(f.stat().st_size for f in (place / "ck").rglob("*") if f.is_file()),
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def run(keys: int, place: Path, backend: str) -> None:
    spark = session()
    used = [0]

    def remember(progress: hf.Progress) -> None:
        used[0] = progress.state_bytes or used[0]

    for phase, tail, rows in (
        ("filled", 0, FILL_ROWS),
        ("expired", 2 * TAIL_ROWS, TAIL_ROWS),
        ("gone on", TAIL_EPOCHS * TAIL_ROWS, TAIL_ROWS),
    ):
        started = time.perf_counter()
        job_of(keys, tail).run(
            place / "ck", spark=spark, until="exhausted", max_rows_per_epoch=rows, backend=backend,
            working_dir=place / "w", on_progress=remember,
        )  # fmt: skip
        print(json.dumps(measured(phase, keys, place, used[0], time.perf_counter() - started)), flush=True)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.ttl", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--backend", default="lmdb")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="holdfast-ttl-"))
    try:
        run(asked.keys, place, asked.backend)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
