"""The data source without Spark: its options, its partitions, and its pins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.pins import pin, read_pins
from holdfast.checkpoint.chain.retention import Retention
from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, RestoreError
from holdfast.inspect.datasource import READERS, StateDataSource, StatePartition
from tests.unit.inspect.stored import MadeCheckpoint


@pytest.fixture
def made(tmp_path: Path) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path)
    made.commit({(f"u{i}", i): {"total": i} for i in range(20)}, snapshots=True)
    return made


def source(made: MadeCheckpoint, **options: str) -> StateDataSource:
    return StateDataSource({"checkpoint": made.url, "uid": "totals", **options})


def read(made: MadeCheckpoint, partitions: list[Any], **options: str) -> list[Any]:
    reader = source(made, **options).reader(None)
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


def test_a_read_shows_the_commit_it_was_planned_for(made: MadeCheckpoint) -> None:
    partitions = source(made).reader(None).partitions()
    made.commit({("u1", 1): {"total": 100}})
    rows = read(made, partitions)
    assert {(row["user"], row["total"]) for row in rows} == {(f"u{i}", i) for i in range(20)}
    assert isinstance(next(source(made).reader(None).read(partitions[0])), pa.RecordBatch)
    assert source(made).schema().startswith("`user` string, `day` long, `total` long, `tags` array<string>")


def test_the_pin_is_there_until_the_last_partition_is_read(made: MadeCheckpoint) -> None:
    partitions = source(made).reader(None).partitions()
    assert len(partitions) == 2
    (held,) = read_pins(made.storage).records
    assert held.commit == 1
    read(made, partitions[:1])
    read(made, partitions[:1])  # Spark ran it again
    assert read_pins(made.storage).records == (held,)
    read(made, partitions[1:])
    assert read_pins(made.storage).records == ()
    assert made.storage.list(READERS) == []


@pytest.mark.parametrize("pinned", ["1h", "off"])
def test_a_pinned_read_outlasts_the_retention_of_its_commit(tmp_path: Path, pinned: str) -> None:
    made = MadeCheckpoint(tmp_path, retain=2)
    made.commit({(f"u{i}", i): {"total": i} for i in range(20)}, snapshots=True)
    retention = Retention(made.chain, sweep_every=1)
    partitions = source(made, pin=pinned).reader(None).partitions()
    for turn in range(10):
        made.commit({("u1", 1): {"total": turn}}, snapshots=True)
        retention.after_commit(made.view)
    if pinned == "off":
        with pytest.raises(RestoreError, match="commit 1 is not retained"):
            read(made, partitions)
        return
    assert {(row["user"], row["total"]) for row in read(made, partitions)} == {
        (f"u{i}", i) for i in range(20)
    }


def test_planning_removes_the_pins_of_reads_that_died(made: MadeCheckpoint) -> None:
    now = SystemClock().now_ms()
    pin(History(made.storage), "read-dead", 1, "x", now - 9, expires_ms=now - 1)
    pin(History(made.storage), "savepoint-x", 1, "x", now - 9)
    made.storage.put(f"{READERS}read-dead/000000", b"")
    source(made, pin="off").reader(None).partitions()
    assert [kept.name for kept in read_pins(made.storage).records] == ["savepoint-x"]
    assert made.storage.list(READERS) == []


def test_a_commit_that_was_given_up_under_a_read_is_told_so(made: MadeCheckpoint) -> None:
    (first, *_) = source(made, pin="off").reader(None).partitions()
    assert isinstance(first, StatePartition)
    made.storage.delete([entry.name for entry in made.storage.list("data/")])
    made.storage.delete([entry.name for entry in made.storage.list("snapshots/")])
    with pytest.raises(RestoreError, match="commit 1 was given up while it was read"):
        read(made, [first])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"commit": "x"}, "'commit' is a number, not 'x'"),
        ({"commit": "1", "epoch": "1"}, "'commit' or 'epoch', not both"),
        ({"savepoint": "elsewhere"}, "give one of the options"),
        ({"speed": "1"}, "'speed' is not known"),
        ({"uid": ""}, "give the option 'uid'"),
        ({"pin": "long"}, "'long' is not a duration"),
    ],
)
def test_wrong_options_are_refused(made: MadeCheckpoint, options: dict[str, str], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        source(made, **options)
