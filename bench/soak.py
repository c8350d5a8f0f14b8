"""Does anything grow without end?

    python -m bench.soak --epochs 2000

A small job runs through many epochs. Every few of them: objects in the checkpoint (by kind), memory of the
driver
(Python) and of Spark's driver (the whole Java process), files of working state, files of Spark's
shuffles. All curves
must stay below a constant; sink output does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.spark_baselines import session

ROWS = 200
EVERY = 20
LIMITS = {"objects": 200, "working_files": 20, "shuffle_files": 400, "driver_mb": 300, "heap_mb": 2_000}
"""What every curve stays below. Objects: two manifest strides of records and plans, the retained epochs'
data, two
snapshots a shard.
"""


def soak(epochs: int) -> list[dict[str, Any]]:
    place = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(place / "spark")
    spark = session()
    job = hf.Job("soak")
    source = hf.GeneratorSource(
        {"user": "concat('u', pmod(rnd, 500))", "n": "id"}, schema="user string, n long", total=epochs * ROWS
    )
    counted = (
        job.source(source, uid="events")
        .key_by("user")
        .aggregate(uid="counts", n=hf.count(), last=hf.max("n"))
    )
    counted.sink(hf.FileSink(place / "out", format="json"), uid="out")
    samples: list[dict[str, Any]] = []

    def sample(progress: hf.Progress) -> None:
        done = progress.committed_epoch
        if done % EVERY == 0 and done and (not samples or samples[-1]["epoch"] != done):
            samples.append({"epoch": done, **_look(place)})
            if len(samples) % 10 == 0:
                print(json.dumps(samples[-1]), flush=True)

    job.run(
        place / "ck",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS,
        working_dir=place / "working",
        on_progress=sample,
    )
    spark.stop()
    return samples


def _look(place: Path) -> dict[str, Any]:
    kinds = Counter(
        path.relative_to(place / "ck").parts[0] for path in (place / "ck").rglob("*") if path.is_file()
    )
    return {
        "objects": sum(kinds.values()),
        **{f"objects_{kind}": count for kind, count in sorted(kinds.items())},
        "checkpoint_kb": sum(p.stat().st_size for p in (place / "ck").rglob("*") if p.is_file()) // 1_024,
        "working_files": sum(1 for path in (place / "working").rglob("*") if path.is_file()),
        "shuffle_files": sum(1 for path in (place / "spark").rglob("shuffle_*")),
        "driver_mb": resident_mb(os.getpid()),
        "heap_mb": resident_mb(java_child()),
    }


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
