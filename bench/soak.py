"""Does anything grow without end?

    python -m bench.soak --epochs 2000

A small job with all there is runs through many epochs: two parts, state of every kind with a ttl, timers,
sliding windows with late rows, duplicates dropped, keys that are saved on their own, a failing function with
dead letters, a latency target, and sinks of files in one piece and in lanes. Every few
epochs: objects in the checkpoint (by kind), memory of the driver (Python) and of Spark's driver (the whole
Java process), threads of both, files of working state, files of Spark's shuffles. All curves must stay below
a constant; sink output does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.spark_baselines import session

ROWS = 200
EVERY = 20
USERS = 500
LIMITS = {
    "objects": 600, "working_files": 60, "shuffle_files": 400, "driver_mb": 400, "heap_mb": 2_500,
    "driver_threads": 60, "java_threads": 450,
}  # fmt: skip
"""What every curve stays below. Objects: of both parts two manifest strides of records and plans, the data of
retained epochs and two snapshots a shard; and what is kept for each user."""


class Visits(hf.KeyedFunction):
    """State of every kind, timers, and a row now and then that fails."""

    output = "user string, visits long, pages long, ts timestamp"
    visits = hf.ValueState("long", default=0, ttl="1m")
    pages = hf.MapState("string", "long", ttl="30s")
    last = hf.ListState("long", ttl="30s")

    def process(self, row: Any, ctx: Any) -> Any:
        if row.n % 1_000 == 999:
            raise ValueError("one of a thousand")
        self.visits.value += 1
        self.pages[f"p{row.n % 7}"] = row.n
        self.last.append(row.n)
        ctx.timers.event(row.ts + timedelta(seconds=2))
        yield row.user, self.visits.value, len(self.pages), row.ts

    def on_timer(self, at: Any, ctx: Any) -> Any:
        self.last.clear()
        yield ctx.key, self.visits.value, len(self.pages), at


class Saved(hf.KeyedFunction):
    output = "user string, n long"
    seen = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield row.user, self.seen.value


def job_of(place: Path, epochs: int) -> hf.Job:
    job = hf.Job("soak")
    columns = {
        "user": f"concat('u', pmod(rnd, {USERS}))",
        "n": "id",
        "ts": f"timestamp_millis(1767225600000 + id * {1_000 // ROWS} - pmod(rnd, 1500))",
    }
    source = hf.GeneratorSource(columns, schema="user string, n long, ts timestamp", total=epochs * ROWS)
    events = job.source(source, uid="events").watermark("ts", delay="1s")
    once = events.drop_duplicates(by="n", ttl="30s", uid="once")
    visits = once.key_by("user").process(Visits(), uid="visits", on_error="dead-letter")
    visits.sink(hf.FileSink(place / "visits", format="parquet", max_file_rows=ROWS // 4), uid="visit-files")
    visits.dead_letters().sink(hf.FileSink(place / "dead", format="json"), uid="dead")
    storage = hf.FileStateStorage(str(place / "keys"))
    saved = events.key_by("user").process(
        Saved(), uid="saved", protection=hf.Uncoordinated(storage=storage, events=10)
    )
    saved.sink(hf.FileSink(place / "saved", format="json"), uid="saved-files")
    windows = visits.into(job.part("windows"), uid="to-windows").key_by("user")
    counts = windows.window(hf.sliding("5s", every="1s"), on="ts").aggregate(uid="counts", n=hf.count())
    counts.sink(hf.FileSink(place / "counts", format="json"), uid="counts-files")
    counts.late().sink(hf.FileSink(place / "late", format="json"), uid="late-files")
    return job


def soak(epochs: int) -> list[dict[str, Any]]:
    place = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(place / "spark")
    spark = session()
    samples: list[dict[str, Any]] = []

    def sample(progress: hf.Progress) -> None:
        done = progress.committed_epoch
        if progress.job != "soak.main" or not done or done % EVERY:
            return
        if not samples or samples[-1]["epoch"] != done:
            samples.append({"epoch": done, **_look(place)})
            if len(samples) % 10 == 0:
                print(json.dumps(samples[-1]), flush=True)

    job_of(place, epochs).run(
        place / "ck",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS,
        target_latency="5s",
        working_dir=place / "working",
        on_progress=sample,
    )
    spark.stop()
    return samples


def _look(place: Path) -> dict[str, Any]:
    files = [path for path in (place / "ck").rglob("*") if path.is_file()]
    kinds = Counter(path.relative_to(place / "ck").parent.name for path in files)
    java = java_child()
    return {
        "objects": sum(kinds.values()),
        **{f"objects_{kind}": count for kind, count in sorted(kinds.items()) if not kind.isdecimal()},
        "checkpoint_kb": sum(path.stat().st_size for path in files if path.exists()) // 1_024,
        "working_files": sum(1 for path in (place / "working").rglob("*") if path.is_file()),
        "shuffle_files": sum(1 for path in (place / "spark").rglob("shuffle_*")),
        "driver_mb": resident_mb(os.getpid()),
        "heap_mb": resident_mb(java),
        "driver_threads": threads(os.getpid()),
        "java_threads": threads(java),
    }


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def resident_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def java_child() -> int:
    """The process of the driver's JVM. A cluster that this process started has others."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getpid() and b"SparkSubmit" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except (OSError, IndexError):
                continue
    raise AssertionError("this process has no Spark session of its own")


def over_limits(samples: list[dict[str, Any]]) -> list[str]:
    return [
        f"{name}: {max(s[name] for s in samples)} is above {limit}"
        for name, limit in LIMITS.items()
        if max(s[name] for s in samples) > limit
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="whether anything grows over many epochs")
    parser.add_argument("--epochs", type=int, default=2_000)
    parser.add_argument("--out", type=Path, help="write the curves here, as JSON")
    given = parser.parse_args()
    samples = soak(given.epochs)
    if given.out:
        given.out.write_text(json.dumps(samples))
    for name in LIMITS:
        print(f"{name:<14} max {max(s[name] for s in samples):>6}  limit {LIMITS[name]:>6}")
    problems = over_limits(samples)
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
