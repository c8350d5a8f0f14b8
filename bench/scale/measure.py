"""One point: a job is filled and run on a standalone cluster of this machine, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.large_output import live_heap_mb
from bench.scale.driver_watch import DriverWatch
from bench.scale.job import job_of
from bench.scale.points import Point
from bench.soak import java_child, resident_mb
from holdfast.chaos.spark_cluster import HOST, Cluster
from holdfast.checkpoint.chain.commits import Chain
from holdfast.storage.urls import open_storage

FILL_ROWS = 1_000_000
SPARE_BYTES = 5 * 10**9
RECORDS_PER_EPOCH = 2
"""A plan and a commit."""

Result = dict[str, Any]


def fits(point: Point) -> bool:
    """Whether the disk has room for it."""
    return shutil.disk_usage(tempfile.gettempdir()).free > point.disk_bytes + SPARE_BYTES


def measure(point: Point, warm_up: int, measured: int) -> Result:
    """All figures of a point, from a process of its own: heap and compiled code are not those of another."""
    told = json.dumps({"point": asdict(point), "warm_up": warm_up, "measured": measured})
    command = [sys.executable, "-m", "bench.scale.measure", told]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Result = json.loads(ran.stdout.splitlines()[-1])
    return found


def session(cluster: Cluster) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        **cluster.conf(os.environ.get("PYTHONPATH", "")),
        # That of the cluster is for runs of seconds.
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.executor.memory": "1g",
        "spark.driver.memory": "2g",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    spark = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure_here(point: Point, place: Path, warm_up: int, measured: int) -> Result:
    with Cluster(place / "cluster", point.executors) as cluster:
        spark = session(cluster)
        options: dict[str, Any] = {
            "spark": spark,
            "key_groups": point.groups,
            "parallelism": point.shards or point.executors,
            "until": "exhausted",
            "working_dir": place / "working",
            "on_message": lambda _: None,
        }
        job_of(point, place / "out", 0).run(place / "ck", max_rows_per_epoch=FILL_ROWS, **options)
        watch = DriverWatch(warm_up, measured)
        # One more: the times of an epoch are those between two.
        job_of(point, place / "out", warm_up + measured + 1).run(
            place / "ck", max_rows_per_epoch=point.rows, on_progress=watch, **options
        )
        found = {
            **asdict(point),
            **watch.figures(),
            **stored(place / "ck", measured),
            "heap_mb": round(live_heap_mb(java_child()), 1),
            "python_mb": resident_mb(os.getpid()),
        }
        spark.stop()
    return found


def stored(checkpoint: Path, measured: int) -> Result:
    """What a checkpoint holds, and how many files its newest epochs wrote."""
    view = Chain(open_storage(str(checkpoint))).load()
    newest = {
        (uid, snapshot.first_group): snapshot for uid, kept in view.snapshots.items() for snapshot in kept
    }
    newest_epochs = sorted((checkpoint / "data").iterdir())[-measured:]
    files = [sum(1 for _ in directory.iterdir()) for directory in newest_epochs]
    return {
        "snapshot_bytes": sum(snapshot.length for snapshot in newest.values()),
        "files_per_epoch": round(statistics.median(files)) + RECORDS_PER_EPOCH,
        "objects": sum(1 for path in checkpoint.rglob("*") if path.is_file()),
    }


def main() -> None:
    told = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as place:
        found = measure_here(Point(**told["point"]), Path(place), told["warm_up"], told["measured"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
