"""How much faster do two executors publish than one?

    python -m bench.publishing [ROWS] [ROUNDS]

The rows of an epoch were staged before, in sixteen parts, and are shown by a FileSink in lanes to a local
directory: read, verified, encoded as Parquet and synced. A Spark standalone cluster on this machine gives one
executor of one core, then two, in turns of several epochs each; the driver only starts the jobs and takes the
answers. No server stands behind the sink: it is the executors, and the disk that they share, that are
measured.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.turns import Turns, machine
from holdfast.chaos.spark_cluster import Cluster
from holdfast.checkpoint.store.records import Extent
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES
from holdfast.runtime.epoch.lane_jobs import LaneJobs
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import load_extent, pack_rows

SESSIONS = 2
"""How often each number of executors has its turn."""
ONE, TWO = "one executor", "two executors"


def staged(storage: LocalStorage, rows: int) -> list[StagedPart]:
    """The parts of an epoch. All have the same rows: it is their number that counts."""
    size = rows // LANES
    numbers = np.random.default_rng(7).integers(0, 2**62, size)
    table = pa.table(
        {
            "k": np.arange(size) % 1_000,
            "value": numbers,
            "text": np.char.add("user-", (numbers % 100_000).astype(str)),
        }
    )
    data = pack_rows(table)
    parts = []
    for part in range(LANES):
        name = f"part-{part}"
        storage.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
        parts.append(StagedPart(part, size, partial(load_extent, storage.url, extent), "", len(data)))
    return parts


def measure(
    cluster: Cluster, executors: int, place: Path, parts: list[StagedPart], rounds: int
) -> list[float]:
    """Seconds of each epoch, published with so many executors."""
    settings: dict[str, bool | float | int | str | None] = {
        **cluster.conf(os.environ.get("PYTHONPATH", "")),
        "spark.cores.max": executors,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    spark = SparkSession.builder.master(cluster.url).config(map=settings).getOrCreate()
    try:
        sink = FileSink(place / "out", format="parquet", max_file_rows=1_000_000)
        writer = sink.lane_writer("bench", "out")
        assert writer is not None
        publisher = LanePublisher(writer, elsewhere=LaneJobs(spark, writer, "out", 1))
        epochs = count(1)
        turns = Turns(
            {"publishing": lambda: publisher.publish(next(epochs), parts)},
            before=lambda name: emptied(place / "out"),
        )
        turns.take(rounds)
        publisher.close()
    finally:
        spark.stop()
        shutil.rmtree(place / "out", ignore_errors=True)
    return turns.seconds["publishing"]


def emptied(directory: Path) -> None:
    """Files of a FileSink may be taken away once they are shown."""
    for path in directory.glob("*.parquet"):
        path.unlink()


def main(rows: int, rounds: int) -> None:
    print(machine())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        place = Path(directory)
        parts = staged(LocalStorage(place / "staged"), rows)
        print(f"{rows:,} rows, {sum(part.bytes for part in parts) / 1e6:,.0f} MB staged")
        found = Turns({}, seconds={ONE: [], TWO: []})
        with Cluster(place / "cluster") as cluster:
            for _ in range(SESSIONS):
                for executors, name in ((1, ONE), (2, TWO)):
                    found.seconds[name] += measure(cluster, executors, place, parts, -(-rounds // SESSIONS))
    found.show(rows, ONE)


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*[*given, *[16_000_000, 6][len(given) :]])
