"""Every source keeps what is promised about planning; what its frames hold is asked on a real Spark
(tests/spark/test_sources_on_spark.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.batch import BatchSource
from holdfast.connectors.contract import Slice, Source
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.generator import GeneratorSource
from holdfast.connectors.kafka.positions import ranges_of
from holdfast.connectors.kafka.source import KafkaSource
from holdfast.connectors.memory import MemorySource
from holdfast.runtime.doors.channel_source import ChannelSource
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows
from holdfast.testing import conformance
from tests.services.kafka_broker import shared_broker
from tests.unit.runtime.parts.channel_kit import CHANNEL, Producer, door

ROWS = 12
NEED_SPARK = {
    "frame-columns", "rows-counted", "same-rows-again", "same-rows-in-another-run", "no-row-twice",
    "frame-plans-nothing", "verify", "vanished-input",
}  # fmt: skip


def memory_source(directory: Path) -> Source:
    return MemorySource(list(range(ROWS)))


def generator_source(directory: Path) -> Source:
    return GeneratorSource(["id"], schema="n long", total=ROWS)


def file_source(directory: Path) -> Source:
    """Six files of two rows."""
    if not any(directory.iterdir()):
        for number in range(ROWS // 2):
            path = directory / f"{number}.json"
            path.write_text("".join(json.dumps({"n": 2 * number + i}) + "\n" for i in range(2)))
            os.utime(path, ns=(number, number))
    return FileSource(directory, format="json", schema="n long")


def channel_source(directory: Path) -> Source:
    """Six epochs of two rows, of a job that has ended."""
    if not any(directory.iterdir()):
        sender = Producer(LocalStorage(directory), door(keep_epochs=100))
        for number in range(ROWS // 2):
            sender.commit([pack_rows(pa.table({"n": [2 * number, 2 * number + 1]}))], rows=2)
        sender.end()
    return ChannelSource(directory, channel=CHANNEL, schema="n long")


def kafka_source(directory: Path) -> Source:
    """Three partitions of four rows."""
    broker, topic = shared_broker(), f"contract-{directory.stat().st_ino}-{directory.name}"
    if not any(directory.iterdir()):
        broker.make(topic, partitions=3)
        for partition in range(3):
            broker.send(topic, [b"%d" % n for n in range(ROWS // 3)], partition)
        (directory / "sent").touch()
    return KafkaSource(broker.servers, topic)


def kafka_rows(slice: Slice) -> int:
    return sum(each.size for each in ranges_of(slice.detail))


def batch_source(directory: Path) -> Source:
    """A table of which Spark reads any piece, and whose user knows its end."""

    def through(after: int | None, max_rows: int | None) -> int | None:
        first = after or 0
        end = ROWS if max_rows is None else min(ROWS, first + max_rows)
        return end if end > first else None

    return BatchSource(
        through=through,
        read=lambda spark, after, end: spark.range(after or 0, end).withColumnRenamed("id", "n"),
        schema="n long",
        unchanging=True,
    )


HOW: dict[Callable[[Path], Source], dict[str, Any]] = {
    memory_source: {},
    generator_source: {},
    file_source: {"max_rows": "approximate", "rows_in": lambda slice: 2 * len(slice.detail)},
    channel_source: {"max_rows": "approximate"},
    kafka_source: {"rows_in": kafka_rows},
    batch_source: {"rows_in": lambda slice: slice.end - (slice.start or 0)},
}
"""The sources, and how each is to be asked."""


OPTIONAL = {
    "check", "end-at", "waiting-and-news", "partitions", "pieces", "committed", "released", "health",
    "arrived",
}  # fmt: skip
"""What is asked of those that have it."""


@pytest.mark.parametrize("make", HOW, ids=lambda make: make.__name__)
def test_a_source_keeps_what_is_promised_about_planning(
    make: Callable[[Path], Source], tmp_path: Path
) -> None:
    report = conformance.check_source(lambda: make(tmp_path), **HOW[make])
    assert set(report.not_asked) - OPTIONAL == NEED_SPARK


def test_a_file_source_has_everything_that_a_source_may_have(tmp_path: Path) -> None:
    report = conformance.check_source(lambda: file_source(tmp_path), **HOW[file_source])
    assert {"check", "end-at", "waiting-and-news"} <= set(report.kept)


def test_everything_is_one_slice_without_a_limit(tmp_path: Path) -> None:
    for make in HOW:
        place = tmp_path / make.__name__
        place.mkdir()
        slice = make(place).reader([]).next(None, None, 0)
        assert slice is not None
        assert make(place).reader(list(slice.notes)).next(slice.end, None, 0) is None
