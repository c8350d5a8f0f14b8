"""The format `holdfast` without Spark: options, offsets, partitions, files and commits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import SentFile
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    FencedOut,
    InputVanished,
    RestoreError,
    RetryableError,
)
from holdfast.runtime.doors import spark_writers
from holdfast.runtime.doors.data_source import ChannelDataSource, ChannelStreamReader
from holdfast.runtime.doors.door_reader import DoorReader
from holdfast.runtime.doors.spark_writers import ChannelStreamWriter, WrittenRows
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows
from tests.unit.cli.parts_kit import CHANNEL as PART_CHANNEL
from tests.unit.cli.parts_kit import Parts
from tests.unit.runtime.parts.channel_kit import CHANNEL, Producer, door

ALL = ReadAllAvailable()
COLUMNS = StructType([StructField("n", LongType())])


@pytest.fixture
def sender(tmp_path: Path) -> Producer:
    return Producer(LocalStorage(tmp_path / "ck"), door(keep_epochs=3))


def commit(sender: Producer, *values: int) -> None:
    """One epoch, of a file for each value."""
    sender.commit([pack_rows(pa.table({"n": [value]})) for value in values], rows=1)


def source(sender: Producer, **options: str) -> ChannelDataSource:
    return ChannelDataSource({"checkpoint": sender.storage.url, "channel": CHANNEL, **options})


def stream(sender: Producer, **options: str) -> ChannelStreamReader:
    return source(sender, **options).streamReader(COLUMNS)


def values(reader: Any, partitions: list[Any]) -> list[int]:
    # As Spark sends both to its workers.
    reader, partitions = pickle.loads(pickle.dumps((reader, partitions)))
    return [n for each in partitions for batch in reader.read(each) for n in batch.column("n").to_pylist()]


def read(sender: Producer, **options: str) -> list[int]:
    planned = source(sender, **options).reader(COLUMNS).partitions()
    return values(source(sender, **options).reader(COLUMNS), planned)


def test_a_read_has_all_epochs_that_are_held_or_those_that_are_asked_for(sender: Producer) -> None:
    for n in range(5):
        commit(sender, n, 10 + n)
    assert source(sender).schema() == "`n` long"
    assert read(sender) == [2, 12, 3, 13, 4, 14]
    assert read(sender, startingEpoch="4") == [3, 13, 4, 14]
    assert read(sender, startingEpoch="3", endingEpoch="4") == [2, 12, 3, 13]
    assert read(sender, endingEpoch="1") == []
    with pytest.raises(InputVanished, match="let go of epochs up to 2, and epochs from 2 on are to be"):
        read(sender, startingEpoch="2")
    assert read(sender, startingEpoch="2", failOnDataLoss="false") == [2, 12, 3, 13, 4, 14]


def test_small_files_share_a_partition_in_their_order(sender: Producer) -> None:
    for n in range(3):
        commit(sender, n, 10 + n)
    planned = {
        least: source(sender, minPartitions=least).reader(COLUMNS).partitions() for least in ("1", "3", "99")
    }
    assert {least: len(found) for least, found in planned.items()} == {"1": 1, "3": 3, "99": 6}
    reader = source(sender).reader(COLUMNS)
    assert all(values(reader, found) == [0, 10, 1, 11, 2, 12] for found in planned.values())
    with pytest.raises(DefinitionError, match="option 'minpartitions' is a number from 1 on"):
        source(sender, minPartitions="0").reader(COLUMNS)


def test_rows_come_in_the_columns_that_are_asked_for(sender: Producer) -> None:
    sender.commit([pack_rows(pa.table({"n": pa.array([1], pa.int32())}))], rows=1)
    sender.commit([pack_rows(pa.table({"n": pa.array([2], pa.int32()), "who": ["x"]}))], rows=1)
    assert source(sender).schema() == "`n` int, `who` string"
    both = StructType([StructField("who", StringType()), StructField("n", LongType())])
    reader = source(sender).reader(both)
    found = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"who": None, "n": 1},
        {"who": "x", "n": 2},
    ]
    with pytest.raises(DefinitionError, match="has no column 'm', its columns are n, who"):
        source(sender).reader(StructType([StructField("m", LongType())]))


def test_a_stream_begins_with_the_oldest_and_follows(sender: Producer) -> None:
    for n in range(5):
        commit(sender, n)
    reader = stream(sender)
    start = reader.initialOffset()
    assert start == {"identity": "main", "epoch": 2}
    end = reader.latestOffset(start, ALL)
    assert end == {"identity": "main", "epoch": 5}
    assert values(stream(sender), reader.partitions(start, end)) == [2, 3, 4]
    assert reader.latestOffset(end, ALL) == end
    sender.commit([])
    assert reader.latestOffset(end, ALL) == end, "an epoch without rows is no reason for a batch"
    commit(sender, 7)
    later = reader.latestOffset(end, ALL)
    assert values(stream(sender), reader.partitions(end, later)) == [7]


def test_a_stream_waits_for_an_epoch_that_is_computed_again(tmp_path: Path) -> None:
    """Of a channel between parts: what comes after a lost epoch is there, and would be taken for all."""
    parts = Parts(tmp_path)
    main = ChannelDataSource({"checkpoint": parts.main.url, "channel": PART_CHANNEL})
    reader = main.streamReader(COLUMNS)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL)["epoch"] == 3
    parts.ask(2)
    parts.answer(2, Chain(parts.scoring).load().number)
    reader = main.streamReader(COLUMNS)
    assert reader.latestOffset(start, ALL)["epoch"] == 1
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ALL)["epoch"] == 1


def test_a_query_that_has_read_an_epoch_that_is_computed_again_goes_on_after_that(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    main = ChannelDataSource({"checkpoint": parts.main.url, "channel": PART_CHANNEL, "endingEpoch": "3"})
    before, at = {"identity": "main", "epoch": 2}, {"identity": "main", "epoch": 3}
    newest = main.streamReader(COLUMNS).partitions(before, at)
    parts.ask(2)
    parts.answer(2, Chain(parts.scoring).load().number)
    reader = main.streamReader(COLUMNS)
    assert reader.latestOffset(at, ALL) == at, "it waits, and is no older copy"
    assert files_of(reader.partitions(before, at)) == files_of(newest), "a batch that runs again is the same"
    for partitions in (
        lambda: reader.partitions({"identity": "main", "epoch": 1}, at),
        main.reader(COLUMNS).partitions,
    ):
        with pytest.raises(RetryableError, match=r"epoch 2 of channel .* is damaged, and its sender"):
            partitions()
    source = DoorReader(PART_CHANNEL, parts.main.url, pa.schema([]), "main")
    assert source.next([3, 0], None, 0) is None
    with pytest.raises(RestoreError, match="an older one; restore both"):
        source.next([4, 0], None, 0)


def test_a_read_stops_at_an_epoch_that_is_computed_again_and_reads_beside_it(tmp_path: Path) -> None:
    parts = Parts(tmp_path)

    def epochs(**options: str) -> set[int]:
        given = {"checkpoint": parts.main.url, "channel": PART_CHANNEL, **options}
        return {file.epoch for file in files_of(ChannelDataSource(given).reader(COLUMNS).partitions())}

    assert epochs() == {1, 2, 3}
    parts.ask(2)
    parts.answer(2, Chain(parts.scoring).load().number)
    ranges: list[dict[str, str]] = [
        {}, {"startingEpoch": "2"}, {"endingEpoch": "3"}, {"startingEpoch": "2", "endingEpoch": "2"},
    ]  # fmt: skip
    for asked in ranges:
        with pytest.raises(RetryableError, match=r"epoch 2 of channel .* is damaged, and its sender"):
            epochs(**asked)
    assert epochs(endingEpoch="1") == {1}
    assert epochs(startingEpoch="3") == epochs(startingEpoch="3", endingEpoch="3") == {3}


def files_of(partitions: list[Any]) -> list[SentFile]:
    return [file for each in partitions for file in each.files]


def test_another_run_of_a_query_reads_the_same_and_goes_on(sender: Producer) -> None:
    commit(sender, 0)
    commit(sender, 1)
    start, middle = {"identity": "main", "epoch": 0}, {"identity": "main", "epoch": 1}
    assert values(stream(sender), stream(sender).partitions(start, middle)) == [0]
    reader = stream(sender)
    end = reader.latestOffset(middle, ALL)
    assert values(reader, stream(sender).partitions(middle, end)) == [1]


def test_a_stream_begins_where_it_is_told(sender: Producer) -> None:
    for n in range(3):
        commit(sender, n)
    reader = stream(sender, startingEpoch="3")
    assert values(reader, reader.partitions(reader.initialOffset(), {"identity": "main", "epoch": 3})) == [2]
    ahead = stream(sender, startingEpoch="9")
    start = ahead.initialOffset()
    assert ahead.latestOffset(start, ALL) == start, "it waits"


def test_a_stream_takes_no_more_epochs_at_once_than_it_may(sender: Producer) -> None:
    for n in range(3):
        commit(sender, n)
    reader = stream(sender, maxEpochsPerTrigger="2")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["epoch"] == 2
    assert reader.latestOffset(end, ALL)["epoch"] == 3


def test_what_comes_after_a_query_began_is_not_available_now(sender: Producer) -> None:
    commit(sender, 0)
    reader = stream(sender)
    reader.prepareForTriggerAvailableNow()
    commit(sender, 1)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["epoch"] == 1
    assert reader.latestOffset(end, ALL) == end


def test_epochs_that_were_let_go_unread_end_a_query_unless_it_may_go_on(sender: Producer) -> None:
    for n in range(6):
        commit(sender, n)
    start, end = {"identity": "main", "epoch": 1}, {"identity": "main", "epoch": 6}
    told = r"let go of epochs up to 3, and epochs from 2 on are to be read; .* failOnDataLoss=false"
    with pytest.raises(InputVanished, match=told):
        stream(sender).partitions(start, end)
    reader = stream(sender, failOnDataLoss="false")
    assert values(reader, reader.partitions(start, end)) == [3, 4, 5]


def test_what_is_let_go_while_it_is_read_is_told(sender: Producer) -> None:
    commit(sender, 0)
    planned = stream(sender).partitions({"identity": "", "epoch": 0}, {"identity": "main", "epoch": 1})
    sender.storage.delete([entry.name for entry in sender.storage.list(names.DATA)])
    with pytest.raises(InputVanished, match=r"epoch 1 of channel 'clicks-in' in .* let go while it was read"):
        values(stream(sender), planned)


def test_damaged_rows_are_not_read(sender: Producer) -> None:
    commit(sender, 0)
    planned = source(sender).reader(COLUMNS).partitions()
    (entry,) = sender.storage.list(names.DATA)
    sender.storage.put(entry.name, b"x" * entry.size)
    with pytest.raises(CorruptionError, match="is damaged"):
        values(stream(sender), planned)


def test_a_query_does_not_go_on_with_another_checkpoint(sender: Producer, tmp_path: Path) -> None:
    commit(sender, 0)
    (tmp_path / "ck").rename(tmp_path / "former")
    other = Producer(LocalStorage(tmp_path / "ck"), door(keep_epochs=3), name="other")
    commit(other, 1)
    commit(other, 2)
    told = "is of another checkpoint than the one that was read .* new checkpointLocation"
    with pytest.raises(RestoreError, match=told):
        stream(sender).latestOffset({"identity": "main", "epoch": 1}, ALL)


def test_a_query_does_not_go_on_with_an_older_copy(sender: Producer) -> None:
    commit(sender, 0)
    ahead = {"identity": "main", "epoch": 2}
    for ask in (lambda r: r.latestOffset(ahead, ALL), lambda r: r.partitions(ahead, ahead)):
        with pytest.raises(RestoreError, match=r"epoch 2, and it has come to epoch 1 only: .*older copy"):
            ask(stream(sender))


def test_a_channel_without_rows_needs_a_schema_and_is_waited_for(tmp_path: Path) -> None:
    source = ChannelDataSource({"path": str(tmp_path / "ck"), "channel": CHANNEL})
    with pytest.raises(DefinitionError, match=r"is not there yet .* give the columns with .schema"):
        source.schema()
    with pytest.raises(RestoreError, match="there is no checkpoint"):
        source.reader(COLUMNS).partitions()
    reader = source.streamReader(COLUMNS)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start == {"identity": "", "epoch": 0}
    sender = Producer(LocalStorage(tmp_path / "ck"), door(keep_epochs=3))
    sender.commit([])
    with pytest.raises(DefinitionError, match="holds no row yet"):
        source.schema()
    assert source.reader(COLUMNS).partitions() == []
    assert list(source.reader(COLUMNS).read(None)) == []  # type: ignore[arg-type]
    commit(sender, 1)
    end = reader.latestOffset(start, ALL)
    assert end == {"identity": "main", "epoch": 2}
    assert values(reader, source.streamReader(COLUMNS).partitions(start, end)) == [1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checkpoint": "ck"}, "give the option 'channel'"),
        ({"channel": "c"}, "give the option 'checkpoint'"),
        ({"checkpoint": "ck", "path": "ck", "channel": "c"}, "give the option 'checkpoint'"),
        ({"checkpoint": "ck", "channel": "c", "chanel": "c"}, "option 'chanel' is not known here"),
        ({"checkpoint": "ck", "channel": "c", "startingEpoch": "x"}, "'startingepoch' is a number from 1 on"),
        ({"checkpoint": "ck", "channel": "c", "startingEpoch": "0"}, "'startingepoch' is a number from 1 on"),
        ({"checkpoint": "ck", "channel": "c", "failOnDataLoss": "no"}, "'failOnDataLoss' is true or false"),
    ],
)
def test_wrong_options_of_a_read_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        ChannelDataSource(options).schema()


# Writing.


def sink(place: Path, **options: str) -> ChannelDataSource:
    return ChannelDataSource({"checkpoint": str(place), "writer": "orders", **options})


def written(writer: ChannelStreamWriter, *numbers: int) -> WrittenRows:
    """What a task sends to the driver."""
    task = pickle.loads(pickle.dumps(writer))
    batches = [pa.record_batch({"n": [n]}) for n in numbers]
    message = pickle.loads(pickle.dumps(task.write(iter(batches))))
    assert isinstance(message, WrittenRows)
    return message


def put(source: ChannelDataSource, batch: int, *numbers: int) -> None:
    """A micro-batch of two tasks, as Spark carries it out: the commit is made by another process."""
    writer = source.streamWriter(COLUMNS, False)
    messages = [written(writer, *numbers), written(writer)]
    pickle.loads(pickle.dumps(source)).streamWriter(COLUMNS, False).commit(messages, batch)


def shown(place: Path) -> list[int]:
    source = ChannelDataSource({"checkpoint": str(place), "channel": "orders"})
    reader = source.reader(COLUMNS)
    return values(reader, reader.partitions())


@pytest.fixture(params=[0, 1 << 20], ids=["files", "inline"])
def inline_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_writers, "INLINE_BYTES", request.param)


@pytest.mark.usefixtures("inline_bytes")
def test_batches_are_written_once_in_their_order(tmp_path: Path) -> None:
    query = sink(tmp_path)
    put(query, 0, 1, 2)
    put(query, 1)
    put(query, 2, 3)
    again = sink(tmp_path)
    put(again, 2, 9)
    put(again, 3, 4)
    assert shown(tmp_path) == [1, 2, 3, 4]
    assert History(LocalStorage(tmp_path)).load().last_epoch == 4
    with pytest.raises(FencedOut):
        put(query, 4, 5)


@pytest.mark.usefixtures("inline_bytes")
def test_a_batch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    query = sink(tmp_path)
    put(query, 0, 1)
    storage = LocalStorage(tmp_path)
    before = storage.list(names.DATA)
    writer = query.streamWriter(COLUMNS, False)
    messages = [written(writer, 7, 8), None]
    query.streamWriter(COLUMNS, False).abort(messages, 1)
    query.streamWriter(COLUMNS, False).abort([None], 1)
    assert storage.list(names.DATA) == before
    put(query, 1, 2)
    assert shown(tmp_path) == [1, 2]


def test_many_rows_of_a_task_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_writers, "FILE_BYTES_MAX", 16)
    message = written(sink(tmp_path).streamWriter(COLUMNS, False), 1, 2, 3)
    assert [output.rows for output in message.outputs] == [2, 1]


def test_keep_epochs_is_kept(tmp_path: Path) -> None:
    query = sink(tmp_path, keepEpochs="2")
    for batch in range(5):
        put(query, batch, batch)
    assert shown(tmp_path) == [3, 4]


def test_a_write_of_a_frame_is_an_epoch(tmp_path: Path) -> None:
    for n in range(2):
        source = sink(tmp_path)
        writer = source.writer(COLUMNS, False)
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"n": [n]})]))])
    aborted = sink(tmp_path).writer(COLUMNS, False)
    aborted.abort([aborted.write(iter([pa.record_batch({"n": [9]})])), None])
    assert shown(tmp_path) == [0, 1]


def test_a_channel_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"write with mode\('append'\)"):
        sink(tmp_path).writer(COLUMNS, True)
    with pytest.raises(DefinitionError, match=r"use outputMode\('append'\)"):
        sink(tmp_path).streamWriter(COLUMNS, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checkpoint": "ck"}, "give the option 'writer'"),
        ({"checkpoint": "ck", "writer": "w", "keepEpochs": "-1"}, "'keepepochs' is a number from 1 on"),
        ({"checkpoint": "ck", "writer": "w", "startingEpoch": "1"}, "'startingepoch' is not known here"),
    ],
)
def test_wrong_options_of_a_write_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        ChannelDataSource(options).streamWriter(COLUMNS, False)
