"""The table of docs/guarantees.md says of every source and sink what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.contract import Sink, Source
from holdfast.graph.guarantees import Guarantee, Statement, statements
from holdfast.graph.streams import Declaration

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"
DSN, REDIS, RABBIT = "postgresql://bob@127.0.0.1:1/db", "redis://127.0.0.1:1", "amqp://127.0.0.1:1"
SOURCES: dict[str, Callable[[Path], Any]] = {
    "FileSource": lambda place: hf.FileSource(place, format="json", schema="n long"),
    "ChannelSource": lambda place: hf.ChannelSource(place, channel="out", schema="n long"),
    "KafkaSource": lambda place: hf.KafkaSource("127.0.0.1:1", "t"),
    "RedisStreamSource": lambda place: hf.RedisStreamSource(REDIS, "s", schema="n long"),
    "TableSource": lambda place: hf.TableSource("t", dsn=DSN, by="txid", schema="n long"),
    "RabbitSource": lambda place: hf.RabbitSource(RABBIT, "q", schema="n long"),
    "SocketSource(acknowledged=True)": lambda place: hf.SocketSource("127.0.0.1", 1, acknowledged=True),
    "SocketSource": lambda place: hf.SocketSource("127.0.0.1", 1),
    "BatchSource(unchanging=True)": lambda place: hf.BatchSource(
        through=lambda after, most: None, read=lambda *given: None, schema="n long", unchanging=True
    ),
    "GeneratorSource": lambda place: hf.GeneratorSource(["id"], schema="n long", total=1),
    "MemorySource": lambda place: hf.MemorySource([1]),
}
SINKS: dict[str, Callable[[Path], Any]] = {
    "FileSink": lambda place: hf.FileSink(place, format="json"),
    "FileSink(max_file_rows=)": lambda place: hf.FileSink(place, format="json", max_file_rows=10),
    "FileSink(partition_by=)": lambda place: hf.FileSink(place, format="parquet", partition_by=["n"]),
    "DeltaSink": lambda place: hf.DeltaSink(place / "t"),
    "IcebergSink": lambda place: hf.IcebergSink("a.t", catalog={"type": "sql"}),
    "ChannelSink": lambda place: hf.ChannelSink(),
    "KafkaSink": lambda place: hf.KafkaSink("127.0.0.1:1", "t"),
    "PostgresSink": lambda place: hf.PostgresSink("t", dsn=DSN),
    "RedisSink": lambda place: hf.RedisSink(REDIS, "p", key="n"),
    "UpsertSink(keeps_newest=True)": lambda place: hf.UpsertSink(
        lambda *given: None, key="n", keeps_newest=True
    ),
    "MemorySink": lambda place: hf.MemorySink(),
    "RabbitSink": lambda place: hf.RabbitSink(RABBIT, "q"),
    "SocketSink": lambda place: hf.SocketSink("127.0.0.1", 1),
    "ConsoleSink": lambda place: hf.ConsoleSink(),
    "ForeachEpochSink": lambda place: hf.ForeachEpochSink(lambda *given: None),
}


def stated(name: str, place: Path) -> Statement:
    """What `holdfast guarantees` says of it, asked for exactly-once, beside a part that gives all."""
    job = Declaration("job")
    source: Source = SOURCES[name](place) if name in SOURCES else hf.MemorySource([1])
    sink: Sink = SINKS[name](place) if name in SINKS else hf.MemorySink()
    job.source(source, uid="in").transform(lambda frame: frame).sink(sink, uid="out")
    return statements(job.graph(), Guarantee.EXACTLY_ONCE)[0 if name in SOURCES else 1]


def table() -> dict[str, tuple[str, str, str]]:
    """The names in code in the first column -> guarantee, atomic, shared."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 6:
            for name in cells[0].split(", "):
                found[name.strip("`")] = (cells[1], cells[2], cells[3])
    return found


@pytest.mark.parametrize("name", [*SOURCES, *SINKS])
def test_the_page_says_what_a_connector_says_of_itself(name: str, tmp_path: Path) -> None:
    told = stated(name, tmp_path)
    assert table()[name] == (told.guarantee, told.atomic or "-", told.shared or "-")


def test_every_connector_is_on_the_page() -> None:
    exported = {name for name in hf.__all__ if name.endswith(("Source", "Sink"))}
    promises = {name for name in exported if getattr(getattr(hf, name), "_is_protocol", False)}
    connectors = exported - promises
    assert {name.partition("(")[0] for name in table()} == connectors
    assert {*SOURCES, *SINKS} == set(table())
