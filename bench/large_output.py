"""Does a large output pass without the driver growing with it?

    python -m bench.large_output [--gigabytes 10] [--against 1]

A job on a standalone cluster of two executors writes so many gigabytes through the lanes of a FileSink, in
epochs of about 130 MB; each size in a process of its own, whose Java part has DRIVER_MEMORY at most. Of the
driver: resident memory of its Python process and of its Java process at the highest, the live objects of the
Java heap at the end, what its Python process has read from storage, and what its Java process has read from
files and sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from bench.soak import java_child, resident_mb
from bench.turns import machine
from holdfast.chaos.spark_cluster import Cluster
from holdfast.storage.local_directory import LocalStorage

PARTS = 16
ROW_BYTES = 16 * PARTS + 8
EPOCH_ROWS = 500_000
DRIVER_MEMORY = "512m"
DISK_FACTOR = 1.3
"""Beside the output: the staged rows of the epochs that are retained."""
SAMPLE_SECONDS = 0.2
FIGURES = {
    "output_gb": "output (GB)",
    "epochs": "epochs",
    "seconds": "seconds",
    "python_mb": "driver, Python (MB)",
    "java_mb": "driver, Java (MB)",
    "heap_mb": "live heap (MB)",
    "storage_mb": "read from storage (MB)",
    "java_read_mb": "read by Java (MB)",
}


def job(rows: int, out: Path) -> hf.Job:
    # Hexadecimal digits of hashes: no codec makes them much shorter.
    payload = ", ".join(f"lpad(hex(xxhash64(id, {part})), 16, '0')" for part in range(PARTS))
    source = hf.GeneratorSource(
        {"n": "id", "payload": f"concat({payload})"}, schema="n long, payload string", total=rows
    )
    job = hf.Job("large-output")
    sink = hf.FileSink(out, format="parquet", max_file_rows=EPOCH_ROWS)
    job.source(source, uid="rows").sink(sink, uid="out")
    return job


class Watch:
    """The driver's own figures, at their highest."""

    def __init__(self) -> None:
        self._ended, self.highest = threading.Event(), {"python_mb": 0, "java_mb": 0}
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.storage_bytes = 0
        read = LocalStorage.get

        def counted(storage: LocalStorage, name: str, offset: int = 0, length: int | None = None) -> bytes:
            data = read(storage, name, offset, length)
            self.storage_bytes += len(data)
            return data

        LocalStorage.get = counted  # type: ignore[method-assign,assignment]

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            for name, pid in (("python_mb", os.getpid()), ("java_mb", java_child())):
                self.highest[name] = max(self.highest[name], resident_mb(pid))


def live_heap_mb(pid: int) -> float:
    """What is left after a full collection."""
    shown = subprocess.run(
        ["jcmd", str(pid), "GC.class_histogram"], capture_output=True, text=True, check=True
    )
    return int(shown.stdout.strip().splitlines()[-1].split()[2]) / 1e6


def read_mb(pid: int) -> float:
    told = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(told["rchar"]) / 1e6


def measure(gigabytes: float) -> dict[str, Any]:
    """In a process of its own."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    rows = int(gigabytes * 1e9 / ROW_BYTES)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        place = Path(directory)
        with Cluster(place / "cluster") as cluster:
            settings: dict[str, bool | float | int | str | None] = {
                **cluster.conf(os.environ.get("PYTHONPATH", "")),
                "spark.driver.memory": DRIVER_MEMORY,
                "spark.ui.enabled": False,
                "spark.ui.showConsoleProgress": False,
            }
            spark = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
            begun, before = time.perf_counter(), read_mb(java_child())
            with Watch() as watch:
                made = job(rows, place / "out")
                made.run(
                    place / "ck", spark=spark, until="exhausted", max_rows_per_epoch=EPOCH_ROWS,
                    working_dir=place / "working",
                )  # fmt: skip
            found = {
                "output_gb": sum(path.stat().st_size for path in (place / "out").glob("*.parquet")) / 1e9,
                "epochs": -(-rows // EPOCH_ROWS),
                "seconds": time.perf_counter() - begun,
                **watch.highest,
                "heap_mb": live_heap_mb(java_child()),
                "storage_mb": watch.storage_bytes / 1e6,
                "java_read_mb": read_mb(java_child()) - before,
            }
            spark.stop()
    return found


def refuse_small_disk(gigabytes: float) -> None:
    free, needed = shutil.disk_usage(tempfile.gettempdir()).free / 1e9, gigabytes * DISK_FACTOR + 1
    if free < needed:
        raise SystemExit(
            f"an output of {gigabytes:g} GB needs about {needed:.0f} GB in {tempfile.gettempdir()}, and "
            f"{free:.0f} are free; make room, name another place with TMPDIR, or give fewer --gigabytes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="whether a large output makes the driver grow")
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--against", type=float, default=1.0)
    parser.add_argument("--alone", action="store_true", help="one size, its figures as JSON")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.gigabytes)))
        return
    print(machine())
    refuse_small_disk(max(given.gigabytes, given.against))
    found = []
    for size in (given.against, given.gigabytes):
        command = [sys.executable, "-m", "bench.large_output", "--alone", "--gigabytes", str(size)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    print(f"| {'':24} | {given.against:6g} GB | {given.gigabytes:6g} GB | ratio |")
    print("| --- | --- | --- | --- |")
    for name, title in FIGURES.items():
        small, large = found[0][name], found[1][name]
        ratio = f"{large / small:5.2f}" if small else "    -"
        print(f"| {title:24} | {small:9.1f} | {large:9.1f} | {ratio} |")


if __name__ == "__main__":
    main()
