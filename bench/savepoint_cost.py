"""What does a savepoint cost the job that it is taken of, and how long does it take?

    python -m bench.savepoint_cost --keys 10000000

A job with that many keys runs at full speed. In turn, its throughput is taken over a quiet stretch and over a
stretch of savepoints, one right after the other; then the same bytes are copied by plain means (read, write,
fsync). Printed: the throughput while a savepoint is always under way as a ratio of that before, and the time
of a savepoint as a ratio of that of the copy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.recovery import job_of
from bench.spark_baselines import session

TURNS = 3
WARM_UP_EPOCHS = 20
STRETCH_SECONDS = 20.0
ROWS = 100_000

Result = dict[str, Any]


class Rate:
    """When how many rows had been run."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def __call__(self, progress: hf.Progress) -> None:
        if progress.timings_ms and (not self.seen or progress.rows > self.seen[-1][1]):
            self.seen.append((time.perf_counter(), progress.rows))

    def between(self, start: float, end: float) -> float:
        """Rows per second over the epochs that ended in this time, the one that began before cut to it."""
        rows = self._rows_at(end) - self._rows_at(start)
        return rows / (end - start)

    def _rows_at(self, when: float) -> float:
        for (before, rows), (after, more) in zip(self.seen, self.seen[1:], strict=False):
            if before <= when <= after:
                return rows + (more - rows) * (when - before) / (after - before)
        raise AssertionError("no epoch ended after that")


def plain_copy(source: Path, target: Path) -> float:
    """Copy every file, each made durable; gives the seconds it took."""
    began = time.perf_counter()
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as read, copy.open("wb") as write:
            shutil.copyfileobj(read, write, 4 << 20)
            write.flush()
            os.fsync(write.fileno())
    return time.perf_counter() - began


def measure(keys: int, place: Path) -> Result:
    rate = Rate()
    handle = job_of(keys, total=1 << 40).start(
        place / "ck", spark=session(), max_rows_per_epoch=ROWS, working_dir=place / "w", on_progress=rate
    )
    while len(rate.seen) < WARM_UP_EPOCHS:
        time.sleep(0.1)
    quiet, during, seconds, copies, size = [], [], [], [], 0
    for turn in range(TURNS):
        began = time.perf_counter()
        time.sleep(STRETCH_SECONDS)
        quiet_end = taken = time.perf_counter()
        while taken - quiet_end < STRETCH_SECONDS:
            shutil.rmtree(place / f"sp-{turn}", ignore_errors=True)
            start = time.perf_counter()
            handle.savepoint(place / f"sp-{turn}")
            taken = time.perf_counter()
            seconds.append(taken - start)
        while rate.seen[-1][0] < taken:
            time.sleep(0.05)
        quiet.append(rate.between(began, quiet_end))
        during.append(rate.between(quiet_end, taken))
        size = sum(file.stat().st_size for file in (place / f"sp-{turn}").rglob("*") if file.is_file())
        print(
            f"turn {turn + 1}: {seconds[-1]:.2f} s, {during[-1] / quiet[-1]:.2f} of the rate before",
            flush=True,
        )
    handle.stop()
    handle.wait()
    for turn in range(TURNS):
        copies.append(plain_copy(place / f"sp-{turn}", place / f"copy-{turn}"))
    return {
        "keys": keys,
        "bytes": size,
        "rows_per_second_before": round(statistics.median(quiet)),
        "rows_per_second_during": round(statistics.median(during)),
        "throughput_ratio": round(statistics.median(d / q for d, q in zip(during, quiet, strict=True)), 2),
        "savepoint_s": round(statistics.median(seconds), 2),
        "copy_s": round(statistics.median(copies), 2),
        "time_ratio": round(statistics.median(seconds) / statistics.median(copies), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path("bench-results/savepoint.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-savepoint-") as root:
        filler = [sys.executable, "-m", "bench.recovery", "--fill", str(given.keys), "--place", root]
        subprocess.run(filler, check=True, stderr=subprocess.DEVNULL)
        found = measure(given.keys, Path(root))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
