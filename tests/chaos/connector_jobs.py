"""The job that storms over connectors hurt: `python -m tests.chaos.connector_jobs ROOT --sink NAME`.

    events -> ledger (see apps) -> the sink under test
    the source under test -> files (--source NAME)

Whoever writes to the sink (a Python worker that writes lanes, or the driver) looks for an order first. One
that is there is taken, and the process kills itself in the middle of its write.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.chaos.inside.child import RESTART, tightened
from holdfast.connectors import lane_publisher
from holdfast.connectors.contract import Mark, RepeatingSource
from holdfast.connectors.files import sink_lanes
from holdfast.connectors.kafka import lane_writer as kafka_lanes
from holdfast.connectors.lanes import LaneMark, LaneRows, LaneWriter, OpenLanes, Result
from holdfast.connectors.postgres import lane_writer as postgres_lanes
from holdfast.connectors.redis import sink as redis_sink
from holdfast.runtime.epoch import outages, sink_queues
from holdfast.storage.contract import Put, Storage
from holdfast.storage.urls import open_storage
from tests.chaos.apps import LEDGER, Ledger, Marks, Place, Shape, choose_spark, options, read_events

OUT = "out"
ORDER = "order"
TIMEOUT_SECONDS = 1.5
"""How long a server may be silent. A lost answer is noticed after a multiple of it."""
KAFKA_TIMEOUT_SECONDS = 5.0
"""A broker that was just started may take longer than a database to open a transaction."""
DYING_SECONDS_MAX = 0.03
"""A write takes about so long: whoever is ordered to die does so within it."""

At = Mapping[str, Any]
"""Where a system is, as JSON holds it."""


def give_order(root: Path, seconds: float) -> Path:
    """Whoever writes next dies after so many seconds. Returns the file that is there when the order was
    taken."""
    taken = root / f"{ORDER}-{time.monotonic_ns()}"
    draft = root / f".{ORDER}"
    draft.write_text(json.dumps({"seconds": seconds, "taken": str(taken)}))
    draft.replace(root / ORDER)
    return taken


def obey(root: Path) -> None:
    """Take the order that is there, if there is one: of all processes just one does."""
    mine = root / f"{ORDER}-{os.getpid()}"
    try:
        (root / ORDER).rename(mine)
    except FileNotFoundError:
        return
    order = json.loads(mine.read_text())
    Path(order["taken"]).touch()

    def die() -> None:
        time.sleep(order["seconds"])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


@dataclass(frozen=True)
class ObedientWriter:
    """A lane writer that obeys orders, in whichever process it is. `forgets`: it takes no notice of marks."""

    writer: LaneWriter
    root: str
    forgets: str

    def open(self, term: int) -> OpenLanes:
        faulthandler.register(signal.SIGUSR1)
        forget(self.forgets, Path(self.root))
        lanes = self.writer.open(term)
        # One that forgets the names of files obeys elsewhere.
        return lanes if self.forgets == "files" else ObedientLanes(lanes, Path(self.root))


class ObedientLanes:
    def __init__(self, lanes: OpenLanes, root: Path) -> None:
        self._lanes, self._root = lanes, root

    def begin(self, through: int) -> None:
        self._lanes.begin(through)

    def marks(self) -> Mapping[int, LaneMark]:
        return self._lanes.marks()

    def write(self, rows: LaneRows) -> Result:
        obey(self._root)
        return self._lanes.write(rows)

    def close(self) -> None:
        self._lanes.close()


def obedient(sink: Any, root: Path, forgets: str) -> hf.Sink:
    """The sink, of whatever kind, with writers that obey orders."""
    if hasattr(sink, "lane_writer") and sink.lane_writer("", "") is not None:
        made = sink.lane_writer
        sink.lane_writer = lambda job, uid: ObedientWriter(made(job, uid), str(root), forgets)
        return sink  # type: ignore[no-any-return]
    opened = sink.publisher

    def publisher(job: str, uid: str) -> Any:
        found = opened(job, uid)
        if forgets:
            return forgetful(found, root)
        publish = found.publish

        def obedient_publish(epoch: int, parts: Any) -> None:
            obey(root)
            publish(epoch, parts)

        found.publish = obedient_publish
        return found

    sink.publisher = publisher
    return sink  # type: ignore[no-any-return]


def forget(system: str, root: Path) -> None:
    """Take a sink's safeguard away, in this process: rows are written whatever it shows already."""
    if system in ("postgres", "kafka"):
        module = postgres_lanes if system == "postgres" else kafka_lanes
        setattr(module, "continues", lambda mark, rows: 0)  # noqa: B010
    elif system == "redis-stream":
        _, found, writes = redis_sink._WRITE.partition("local wanted")
        assert found, "the script is another one by now"
        mark = "local mark = redis.call('HGET', KEYS[1], ARGV[1]) "
        setattr(redis_sink, "_WRITE", mark + found + writes)  # noqa: B010
    elif system == "files":
        setattr(sink_lanes, "open_storage", lambda url: NamesForgotten(open_storage(url), root))  # noqa: B010


def forgetful(found: Any, root: Path) -> Any:
    """A publisher into a lake that never knows the newest epoch to be there. It dies where that matters:
    after rows were shown, and before a commit of the job says so."""
    mark, publish = found.mark, found.publish

    def older_mark() -> Any:
        newest = mark()
        return newest and Mark(max(newest.epoch - 1, 0))

    def publish_and_die(epoch: int, parts: Any) -> None:
        publish(epoch, parts)
        if (root / ORDER).exists():
            obey(root)
            time.sleep(60)

    found.mark, found.publish = older_mark, publish_and_die
    found._is_shown = lambda look, shown, ours: False
    return found


class NamesForgotten:
    """Storage in which no file is known again by its name. The writer dies where that matters: after rows
    were shown, and before the mark says so."""

    def __init__(self, inner: Storage, root: Path) -> None:
        self._inner, self._root = inner, root

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_new(self, name: str, data: bytes) -> Put:
        if name.startswith("_"):
            return self._inner.put_new(name, data)
        stem, _, suffix = name.rpartition(".")
        put = self._inner.put_new(f"{stem}-{uuid.uuid4().hex}.{suffix}", data)
        if (self._root / ORDER).exists():
            obey(self._root)
            time.sleep(60)
        return put


def postgres_append(at: At) -> Any:
    return hf.PostgresSink("ledger", dsn=at["url"], timeout_seconds=TIMEOUT_SECONDS)


def postgres_upsert(at: At) -> Any:
    url = at["url"]
    return hf.PostgresSink("ledger", dsn=url, mode="upsert", key="key", timeout_seconds=TIMEOUT_SECONDS)


def redis_stream(at: At) -> Any:
    return hf.RedisSink(at["url"], "ledger", form="stream", timeout_seconds=TIMEOUT_SECONDS)


def redis_hash(at: At) -> Any:
    return hf.RedisSink(at["url"], "ledger", key="key", timeout_seconds=TIMEOUT_SECONDS)


def kafka(at: At) -> Any:
    return hf.KafkaSink(at["servers"], "ledger", key="key", timeout_seconds=KAFKA_TIMEOUT_SECONDS)


def files(at: At) -> Any:
    return hf.FileSink(at["path"], format="parquet", max_file_rows=50, partition_by=["bucket"])


def delta(at: At) -> Any:
    return hf.DeltaSink(at["path"], partition_by=["bucket"])


def iceberg(at: At) -> Any:
    return hf.IcebergSink("db.ledger", properties=at)


def lines(at: At) -> Any:
    return hf.SocketSink("127.0.0.1", at["port"], timeout_seconds=TIMEOUT_SECONDS)


def foreach(at: At) -> Any:
    return hf.ForeachEpochSink(lambda frame, epoch: frame.write.mode("append").parquet(at["path"]))


SINKS: dict[str, Callable[[At], Any]] = {
    "postgres": postgres_append,
    "postgres-upsert": postgres_upsert,
    "redis-stream": redis_stream,
    "redis-hash": redis_hash,
    "kafka": kafka,
    "files": files,
    "delta": delta,
    "iceberg": iceberg,
    "socket": lines,
    "foreach": foreach,
}


def table_source(at: At) -> Any:
    by = ("txid", "n")
    return hf.TableSource("feed", dsn=at["url"], by=by, schema="n long", timeout_seconds=TIMEOUT_SECONDS)


def redis_source(at: At) -> Any:
    return hf.RedisStreamSource(at["url"], "feed", schema="n long", timeout_seconds=TIMEOUT_SECONDS)


def queue_source(at: At) -> Any:
    schema, seconds = "n long, id string", TIMEOUT_SECONDS
    return hf.RabbitSource(at["url"], "feed", schema=schema, id_column="id", timeout_seconds=seconds)


def lines_source(at: At) -> Any:
    return hf.SocketSource(
        "127.0.0.1", at["port"], schema="n long, id string", format="json", acknowledged=True, id_column="id",
        timeout_seconds=TIMEOUT_SECONDS,
    )  # fmt: skip


SOURCES: dict[str, Callable[[At], Any]] = {
    "table": table_source,
    "redis-entries": redis_source,
    "queue": queue_source,
    "lines": lines_source,
}


def declare_fed(source: Any, place: Place) -> hf.Job:
    """Numbers as they come, into files; those that may come again once."""
    job = hf.Job("storm")
    rows = job.source(source, uid="in")
    if isinstance(source, RepeatingSource) and source.told_apart_by:
        rows = rows.drop_duplicates(by=source.told_apart_by, uid="once")
    rows.sink(hf.FileSink(place.sink(OUT), format="json"), uid=OUT)
    return job


def declare(sink: hf.Sink, shape: Shape, marks: Marks) -> hf.Job:
    job = hf.Job("storm")
    ledger = read_events(job, shape).key_by("key", order_by="event").process(Ledger(marks, shape), uid=LEDGER)
    ledger.sink(sink, uid=OUT)
    return job


def hurry(*, by_tasks: bool) -> None:
    """Short queues and short waits: what is done to a server is felt at once. `by_tasks`: lanes of epochs of
    any size are written by tasks."""
    often: list[tuple[Any, str, Any]] = [(sink_queues, "LIMIT_EPOCHS", 2), (outages, "MOST_SECONDS", 2.0)]
    if by_tasks:
        often += [(lane_publisher, name, 1) for name in ("ELSEWHERE_FROM_BYTES", "HERE_BELOW_BYTES")]
    for module, name, value in often:
        setattr(module, name, value)


def main() -> None:
    """Run the job to its end. Exit codes are those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--shape", default="{}", help="fields of Shape, as JSON")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--sink", choices=SINKS)
    which.add_argument("--source", choices=SOURCES)
    parser.add_argument("--at", default="{}", help="where the system is, as JSON")
    parser.add_argument("--marks", choices=["random", "fixed"], default="random")
    parser.add_argument("--by-tasks", action="store_true")
    parser.add_argument("--forget", default="", help="the system whose marks are taken no notice of")
    given = parser.parse_args()
    # One that hangs is asked where.
    faulthandler.register(signal.SIGUSR1)
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    choose_spark(given.master, given.conf, place)
    hurry(by_tasks=given.by_tasks)
    at, how = json.loads(given.at), options(place, shape)
    if given.source is not None:
        job = declare_fed(SOURCES[given.source](at), place)
        # Rows are read by tasks: where the server is not there for them the run fails, and begins again.
        how |= {"until": "stopped", "restart": RESTART}
    else:
        sink = SINKS[given.sink](at)
        if not sink.exactly_once:
            how["guarantee"] = "at-least-once"
        job = declare(obedient(sink, given.root, given.forget), shape, given.marks)
    try:
        with tightened():
            job.run(**how)
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
