"""The job that crash tests run, as a process of its own: `python -m tests.chaos.apps ROOT [options]`.

    events -> ledger (per key: number, sum, a mark) -> buckets (aggregate over the ledger's rows)

Both operators have a file sink. Every row of the ledger says which mark it found in the state and which it
left there: with marks taken at random, state and sink agree only if both are of the same task result, epoch
after epoch. What the rows must be is computed in `checker`, with no Spark and none of this file's classes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import holdfast as hf
from holdfast.chaos.inside.child import tightened

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from holdfast.graph.streams import SourceStream

JOB, LEDGER, BUCKETS = "ledger-job", "ledger", "buckets"
HOLD_VARIABLE = "CHAOS_HOLD"
"""Names a file: the first map-side task that creates it stops itself in the middle of its input."""

Marks = Literal["random", "fixed"]
RETAIN = 6
"""How many commits every test keeps."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much the job reads. Row `event` has key and value by the formulas below."""

    epochs: int = 12
    rows: int = 200
    keys: int = 50
    buckets: int = 7
    shards: int = 2
    pad: int = 0
    """Incompressible text of this length in the ledger's state and rows: makes files of their own."""

    @property
    def events(self) -> int:
        return self.epochs * self.rows

    def key_of(self, event: int) -> int:
        return event * 48271 % 2147483647 % self.keys

    def value_of(self, event: int) -> int:
        return event * 39373 % 2147483647 % 1000


@dataclass(frozen=True)
class Place:
    """Where one job keeps everything."""

    root: Path
    elsewhere: Path | None = None
    """The directory of the sinks, if it is not below `root`."""

    @property
    def outputs(self) -> Path:
        return self.elsewhere or self.root / "out"

    @property
    def checkpoint(self) -> Path:
        return self.root / "ck"

    @property
    def working(self) -> Path:
        return self.root / "working"

    def sink(self, uid: str) -> Path:
        return self.outputs / uid


class Ledger(hf.KeyedFunction):
    """Numbers and adds up a key's events. Each row names the mark it found and the one it left."""

    output = "event long, key long, seq long, total long, mark string, before string, bucket long, pad string"
    seq = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)
    mark = hf.ValueState("string", default="")
    pad = hf.ValueState("string", default="")

    def __init__(self, marks: Marks, shape: Shape) -> None:
        self.marks, self.buckets, self.pad_length = marks, shape.buckets, shape.pad

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.mark.value
        self.seq.value += 1
        self.total.value += row.value
        self.mark.value = uuid.uuid4().hex if self.marks == "random" else f"{row.key}-{self.seq.value}"
        pad = _text(row.event, self.pad_length)
        if pad:
            self.pad.value = pad
        yield (
            row.event, row.key, self.seq.value, self.total.value, self.mark.value, before,
            row.event % self.buckets, pad,
        )  # fmt: skip


def _text(seed: int, length: int) -> str:
    """Text that does not compress, the same for the same seed."""
    import hashlib

    blocks = range(-(-length // 64))
    return "".join(hashlib.sha256(f"{seed}-{i}".encode()).hexdigest() for i in blocks)[:length]


def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on. The first task that creates the file named by CHAOS_HOLD stops after its first batch."""
    for batch in batches:
        yield batch
        token = os.environ.get(HOLD_VARIABLE)
        if token is not None:
            try:
                os.close(os.open(token, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGSTOP)


def through_python(frame: DataFrame) -> DataFrame:
    """A map side that is Python, so that a test can stop it while it feeds the shuffle."""
    return frame.mapInArrow(hold, frame.schema)


def file_sink(place: Place, uid: str) -> hf.Sink:
    return hf.FileSink(place.sink(uid), format="parquet")


def read_events(job: hf.Job, shape: Shape) -> SourceStream:
    """The input, as `Shape` says."""
    columns = {
        "event": "id",
        "key": f"id * 48271 % 2147483647 % {shape.keys}",
        "value": "id * 39373 % 2147483647 % 1000",
    }
    source = hf.GeneratorSource(columns, schema="event long, key long, value long", total=shape.events)
    return job.source(source, uid="events")


def declare(
    place: Place,
    shape: Shape,
    *,
    marks: Marks = "random",
    map_side: Callable[[DataFrame], DataFrame] | None = None,
    ledger_of: Callable[[Marks, Shape], hf.KeyedFunction] = Ledger,
    sink_of: Callable[[Place, str], hf.Sink] = file_sink,
) -> hf.Job:
    """The job, with sinks below `place`. Tests put doubles in the place of its parts."""
    job = hf.Job(JOB)
    events = read_events(job, shape)
    if map_side is not None:
        events = events.transform(map_side)
    ledger = events.key_by("key", order_by="event").process(ledger_of(marks, shape), uid=LEDGER)
    ledger.sink(sink_of(place, LEDGER), uid=LEDGER + "-out")
    totals = ledger.key_by("bucket").aggregate(uid=BUCKETS, rows=hf.count(), seqs=hf.sum("seq"))
    totals.sink(sink_of(place, BUCKETS), uid=BUCKETS + "-out")
    return job


def options(place: Place, shape: Shape) -> dict[str, Any]:
    """The arguments of `run` and `start` that every test uses."""
    return {
        "checkpoint": place.checkpoint,
        "until": "exhausted",
        "max_rows_per_epoch": shape.rows,
        "parallelism": shape.shards,
        "retain": RETAIN,
        "working_dir": place.working,
        # What ends a driver shall end it here: the next one is the test's to start.
        "restart": hf.NoRestart(),
    }


def record_placement(path: Path) -> Callable[[hf.Progress], None]:
    """A listener that appends to `path`, after each epoch, which executor ran which shard."""
    told = [0]

    def listen(progress: hf.Progress) -> None:
        if progress.epoch > told[0] and progress.executors:
            told[0] = progress.epoch
            with path.open("a") as file:
                file.write(json.dumps({"epoch": progress.epoch, "executors": progress.executors}) + "\n")

    return listen


def main() -> None:
    """Run the job to its end. Exit codes are those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--shape", default="{}", help="fields of Shape, as JSON")
    parser.add_argument("--marks", choices=["random", "fixed"], default="random")
    parser.add_argument("--python-map-side", action="store_true")
    parser.add_argument("--unverified", action="store_true", help="read deltas without their checksums")
    parser.add_argument("--placement", type=Path)
    parser.add_argument("--outputs", type=Path, help="the directory of the sinks")
    parser.add_argument("--from-savepoint")
    parser.add_argument("--claim", action="store_true")
    given = parser.parse_args()
    place, shape = Place(given.root, given.outputs), Shape(**json.loads(given.shape))
    choose_spark(given.master, given.conf, place)
    map_side = through_python if given.python_map_side else None
    ledger_of: Callable[[Marks, Shape], hf.KeyedFunction] = Ledger
    if given.unverified:
        from tests.chaos.unverified import UnverifiedLedger as ledger_of
    job = declare(place, shape, marks=given.marks, map_side=map_side, ledger_of=ledger_of)
    listener = record_placement(given.placement) if given.placement else None
    try:
        with tightened():
            begin = {"from_savepoint": given.from_savepoint, "claim": given.claim}
            job.run(**options(place, shape), **begin, on_progress=listener)
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


def choose_spark(master: str, conf: list[str], place: Place) -> None:
    """Before there is a session, Spark's own variable is the public way to configure it."""
    settings = [
        # Lives are short: time spent on making code fast is time lost.
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.memory=700m",
        f"spark.local.dir={place.root / 'spark'}",
        f"spark.sql.warehouse.dir={place.root / 'warehouse'}",
        *conf,
    ]
    arguments = shlex.join(part for setting in settings for part in ("--conf", setting))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {master} {arguments} pyspark-shell"


if __name__ == "__main__":
    main()
