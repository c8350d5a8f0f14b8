"""Reading a channel: what the commits of the part before name, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.plans import Plans, PlanWritten
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent
from holdfast.connectors.contract import Arrived, Slice, Waiting
from holdfast.errors import InputVanished, RestoreError, RetryableError
from holdfast.ids import CommitNumber
from holdfast.runtime.parts.channel_source import ChannelReader, PartChannel, Position
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.messages import Payload
from holdfast.tasks.task_output import ChannelRows
from tests.unit.runtime.parts.channel_kit import (
    CHANNEL,
    COLUMNS,
    Consumer,
    Producer,
    lead,
    outlet,
    plan_of,
    rows_of,
)

Both = tuple[Producer, Consumer]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    producer = Producer(LocalStorage(tmp_path / "main"), outlet(str(tmp_path / "scoring")))
    return producer, Consumer(LocalStorage(tmp_path / "scoring"), str(tmp_path / "main"))


def shape(part: Slice | None) -> object:
    assert part is not None
    return _place(part.start), _place(part.end), part.rows


def _place(position: object) -> object:
    return position[:2] if isinstance(position, list) else position


def test_a_channel_is_read_epoch_by_epoch(both: Both) -> None:
    producer, consumer = both
    assert consumer.take() is None
    producer.commit([b"aa", b"b"])
    producer.commit([b"cc"], [b"d"])
    part = consumer.take()
    assert shape(part) == (None, [3, 0], 6)
    assert part is not None
    assert rows_of(producer.storage, part) == [b"aa", b"b", b"cc", b"d"]
    assert consumer.take() is None
    producer.commit([b"e"])
    assert shape(consumer.take()) == ([3, 0], [4, 0], 1)


def test_an_epoch_may_be_taken_file_by_file(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"aa", b"bbb", b"c"], [], [b"dddd", b"e"])
    assert [shape(consumer.take(max_rows=3)) for _ in range(5)] == [
        (None, [0, 1], 2),
        ([0, 1], [0, 2], 3),
        # The epoch after it has no rows, and is read with it.
        ([0, 2], [2, 0], 1),
        # One file in any case.
        ([2, 0], [2, 1], 4),
        ([2, 1], [3, 0], 1),
    ]
    assert [rows_of(producer.storage, part) for part in consumer.planned[-2:]] == [[b"dddd"], [b"e"]]
    assert consumer.take(max_rows=3) is None


def test_files_of_several_epochs_are_taken_together_up_to_the_limit(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"aa", b"b"], [b"cc", b"dd"], [b"e"])
    assert shape(consumer.take(max_rows=5)) == (None, [1, 1], 5)
    assert shape(consumer.take(max_rows=5)) == ([1, 1], [3, 0], 3)


@pytest.mark.parametrize("again", [[b"aacc", b"bbdd"], [b"aa", b"bB", b"cc", b"dd"]])
def test_an_epoch_that_was_read_in_part_is_read_on_only_where_it_is_what_it_was(
    both: Both, again: list[bytes]
) -> None:
    producer, consumer = both
    producer.commit([b"x"])
    producer.commit([b"aa", b"bb", b"cc", b"dd"])
    consumer.take(max_rows=5)
    consumer.commit()
    producer.storage.put(names.commit(2), b"damaged")
    with pytest.raises(DamagedChain) as damage:
        producer.open()
    producer.chain.rewind(damage.value.head, CommitNumber(1), term=1, run="run-1")
    producer.open()
    producer.commit(again)
    consumer.open()
    with pytest.raises(RestoreError, match=r"2 files of the next, .* computed it again with other files"):
        consumer.take()


def test_a_first_epoch_without_rows_is_read_with_the_next(both: Both) -> None:
    producer, consumer = both
    producer.commit([], [])
    assert consumer.take() is None
    producer.commit([b"a"])
    assert shape(consumer.take()) == (None, [3, 0], 1)


def test_time_comes_with_the_rows_before_it(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a", b"b"], [b"c"], times={1: 100, 2: 200})
    times = []
    for _ in range(3):
        part = consumer.take(max_rows=1)
        assert part is not None
        times.append(consumer.reader.time_after(part))
    # Of an epoch that is read in part, not even the rows that are read count.
    assert times == [None, 100, 200]


def test_time_that_moves_without_rows_is_read(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], times={1: 100})
    consumer.take()
    producer.commit([], [], times={3: 300})
    part = consumer.take()
    assert part is not None
    assert shape(part) == ([1, 0], [3, 0], 0)
    assert (rows_of(producer.storage, part), consumer.reader.time_after(part)) == ([], 300)
    producer.commit([], times={4: 300})
    assert consumer.take() is None, "the same time is no news"


def test_a_channel_ends_when_all_of_it_is_read(both: Both) -> None:
    producer, consumer = both
    assert not consumer.reader.exhausted(None)
    producer.commit([b"a"])
    producer.end()
    assert not consumer.reader.exhausted(None)
    consumer.take()
    assert consumer.reader.exhausted(consumer.position)
    producer.commit([b"b"])
    assert not consumer.reader.exhausted(consumer.position), "a later commit takes it back"
    producer.end()
    assert not consumer.reader.exhausted(consumer.position)
    consumer.take()
    assert consumer.reader.exhausted(consumer.position)
    lead(producer.storage)
    assert not consumer.reader.exhausted(consumer.position), "a leader that has begun may read more"


def test_rows_arrived_when_the_part_before_planned_their_epochs(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"aa"])
    there = consumer.take()
    assert there is not None
    assert consumer.reader.arrived(there) == [], "it was there before the channel was opened"
    producer.commit([b"b"], [b"c"])
    assert consumer.take(max_rows=1) is not None
    producer.commit([b"d"])
    last = consumer.take()
    assert shape(last) == ([2, 0], [4, 0], 2)
    assert last is not None
    # The clock of the kit is the number of the newest epoch in a commit.
    assert consumer.reader.arrived(last) == [Arrived(1, 3, 3), Arrived(1, 4, 4)]
    assert consumer.new_reader().arrived(last) == [], "of another process"


def test_epochs_without_rows_are_read_up_to_the_end(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()
    producer.commit([], [])
    assert consumer.take() is None
    producer.end()
    assert shape(consumer.take()) == ([1, 0], [3, 0], 0)
    assert consumer.take() is None
    assert consumer.reader.exhausted(consumer.position)


def test_a_channel_that_never_had_rows_ends(both: Both) -> None:
    producer, consumer = both
    producer.commit([])
    producer.end()
    assert shape(consumer.take()) == (None, [1, 0], 0)
    assert consumer.take() is None
    assert consumer.reader.exhausted(consumer.position)


def test_time_after_the_last_rows_is_read_before_the_end(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()
    producer.commit([], times={2: 200})
    producer.end()
    assert not consumer.reader.exhausted(consumer.position)
    part = consumer.take()
    assert part is not None
    assert consumer.reader.time_after(part) == 200
    assert consumer.reader.exhausted(consumer.position)


@pytest.mark.parametrize("rows", [[b"b"], []])
def test_what_has_come_to_its_end_shows_every_barrier_there(both: Both, rows: list[bytes]) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()
    producer.commit(rows)
    producer.end()
    assert not consumer.reader.shows(1, consumer.position, exactly=True)
    consumer.take()
    assert consumer.reader.shows(1, consumer.position, exactly=True)


def test_what_waits_is_counted_as_of_now(both: Both) -> None:
    """A drain goes by it: what the part before has committed just now belongs to it."""
    producer, consumer = both
    producer.commit([b"aa", b"b"], [b"ccc"])
    assert consumer.reader.waiting(None) is None, "it has not looked yet"
    assert consumer.reader.lag(None) == 6
    assert consumer.reader.lag([0, 1]) == 4
    assert consumer.reader.lag([2, 0]) == 0
    assert consumer.reader.waiting([0, 1]) == Waiting(2, 4)


def test_rows_of_which_open_windows_are_made_are_kept_until_these_close(both: Both) -> None:
    """A part whose state is in no file goes back before them at every start."""
    producer, consumer = both

    def passes(needs_from: int) -> None:
        producer.commit([b"a"])
        consumer.take()
        consumer.commit(needs_from)
        producer.look()

    for _ in range(10):
        passes(needs_from=2)
    assert producer.channel.released <= 1
    assert consumer.view.retained_from <= 1, "more than it keeps otherwise"
    again = consumer.new_reader().next(consumer.chain.view_at(1).positions[CHANNEL], None, 0)
    assert again is not None
    assert (again.start, again.rows) == ([1, 0], 9)
    for epoch in range(11, 16):
        passes(needs_from=epoch + 1)
    producer.say()
    assert producer.channel.released > 1
    with pytest.raises(InputVanished, match="has let go of epochs up to"):
        consumer.new_reader().next([1, 0], None, 0)


def test_rows_that_were_let_go_are_missed(both: Both) -> None:
    producer, consumer = both
    for n in range(6):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
        producer.look()
    producer.commit([b"x"])
    assert producer.channel.released > 1
    with pytest.raises(
        InputVanished,
        match=r"channel 'clicks-in' has let go of epochs up to \d, and this checkpoint has read it up to "
        r"epoch 1: .* part 'main' .*; restore a newer copy",
    ):
        consumer.new_reader().next([1, 0], None, 0)


def test_a_channel_that_is_there_again_is_not_read_on_behind_the_gap(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    consumer.take(max_rows=1)
    consumer.commit()
    producer.go_on_without(3)
    producer.commit([b"f"])
    with pytest.raises(InputVanished, match=r"up to 5, .* up to epoch 1: .* give the channel another uid"):
        consumer.take()


def test_a_reader_that_had_only_planned_to_read_is_told_of_the_gap_too(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()
    producer.go_on_without(1)
    producer.commit([b"c"])
    consumer.open()
    with pytest.raises(InputVanished, match="up to 2, and this"):
        consumer.take()


def test_a_channel_that_is_there_again_is_read_on_where_nothing_is_missing(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    consumer.take()
    consumer.commit()
    producer.go_on_without(0)
    producer.commit([b"c"])
    assert shape(consumer.take()) == ([2, 0], [3, 0], 1)


def test_a_part_that_never_read_a_channel_begins_where_it_is_there_again(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    producer.go_on_without(2)
    producer.commit([b"d"])
    assert shape(consumer.take()) == (None, [4, 0], 1)


@pytest.mark.parametrize("position", [[2, 0], [1, 1]])
def test_a_reader_that_is_ahead_of_the_channel_is_refused(both: Both, position: list[int]) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    with pytest.raises(RestoreError, match=r"'main' has come to epoch 1: .*restore both from copies"):
        consumer.reader.next(position, None, 0)


def test_a_reader_whose_part_before_has_no_checkpoint_is_ahead(both: Both) -> None:
    _, consumer = both
    with pytest.raises(RestoreError, match="has come to epoch 0"):
        consumer.reader.next([1, 0], None, 0)


def test_a_part_that_began_with_a_savepoint_waits_until_the_one_before_has(both: Both) -> None:
    producer, consumer = both
    consumer.reader.seeded = True
    assert consumer.reader.next([2, 0], None, 0) is None
    assert not consumer.reader.exhausted([2, 0])
    producer.commit([b"a"])
    with pytest.raises(RestoreError, match="has come to epoch 1"):
        consumer.reader.next([2, 0], None, 0)


def test_a_channel_of_a_part_that_never_ran_has_nothing(tmp_path: Path) -> None:
    reader = ChannelReader(CHANNEL, "main", str(tmp_path / "nothing"), COLUMNS)
    assert reader.next(None, None, 0) is None
    assert not reader.exhausted(None)
    assert reader.lag(None) == 0


def test_damage_in_the_part_before_is_waited_for(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    producer.commit([b"b"])
    intact = producer.storage.get(names.commit(2))
    producer.storage.put(names.commit(2), b"damaged")
    with pytest.raises(RetryableError, match=r"channel 'clicks-in' cannot be read now: commit 2"):
        consumer.reader.next(None, None, 0)
    producer.storage.put(names.commit(2), intact)
    assert shape(consumer.reader.next(None, None, 0)) == (None, [2, 0], 2)


def test_a_damaged_checkpoint_of_the_part_before_is_waited_for(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    producer.storage.put(names.JOB, b"damaged")
    with pytest.raises(RetryableError, match=r"channel 'clicks-in' cannot be read now: job is not"):
        consumer.reader.next(None, None, 0)


def test_what_is_computed_again_is_not_read(both: Both) -> None:
    """Neither by a reader that has read it, nor by one that has not."""
    producer, consumer = both
    producer.commit([b"a"])
    producer.commit([b"b"], times={2: 200})
    producer.rewind(1)
    assert shape(consumer.new_reader().next(None, None, 0)) == (None, [2, 0], 2)
    producer.commit([b"other"], times={2: 999})
    producer.commit([b"c"])
    part = consumer.take()
    assert part is not None
    assert rows_of(producer.storage, part) == [b"a", b"b", b"c"]
    assert consumer.reader.time_after(part) == 200


def test_a_source_knows_its_columns_once_it_has_learned_them(tmp_path: Path) -> None:
    source = PartChannel(CHANNEL, "main", str(tmp_path))
    with pytest.raises(AssertionError):
        source.reader([])
    source.learn(pa.schema([("user", pa.string()), ("at", pa.int64())]))
    assert source.schema == "`user` string, `at` long"
    assert source.replayable
    assert source.reader([]).next(None, None, 0) is None


def test_positions_are_ordered_as_they_are_read() -> None:
    stored = [None, [0, 1, "b"], [0, 2, "a"], [1, 0], [1, 1], [2, 0]]
    positions = [Position.of(each) for each in stored]
    assert positions == sorted(positions)
    assert [each.stored for each in positions[1:]] == stored[1:]


Read = Callable[[pa.Table, pa.Schema], pa.Table]


@pytest.fixture
def read_as(tmp_path: Path) -> Read:
    """Rows, written into a channel and read when it has other columns."""
    storage = LocalStorage(tmp_path / "main")

    def read(rows: pa.Table, columns: pa.Schema) -> pa.Table:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        data = sink.getvalue().to_pybytes()
        storage.put("data/1/bundle", data)
        extent = Extent(object="data/1/bundle", offset=0, length=len(data), checksum=checksum(data))
        payload = Payload(checksum=extent.checksum, length=extent.length, extent=extent)
        reading = ChannelRows(storage.url, (payload,), columns, CHANNEL)
        return pa.Table.from_batches(reading(iter([pa.record_batch({"id": [0]})])), columns)

    return read


ROWS = pa.table({"user": ["ann", None], "n": pa.array([1, 2], pa.int32())})


def test_rows_of_a_channel_come_as_they_went(read_as: Read) -> None:
    assert read_as(ROWS, ROWS.schema).equals(ROWS)


def test_a_column_that_came_since_is_null_and_one_that_went_is_left_out(read_as: Read) -> None:
    read = read_as(ROWS, pa.schema([("at", pa.timestamp("us")), ("user", pa.string())]))
    assert read.to_pylist() == [{"at": None, "user": "ann"}, {"at": None, "user": None}]


def test_a_time_is_the_same_in_any_time_zone(read_as: Read) -> None:
    """Rows have the time zone of the session that wrote them."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    there, here = pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")
    rows = pa.table({"at": pa.array([at], there), "in": pa.array([{"at": [at]}], _nested(there))})
    read = read_as(rows, pa.schema([("at", here), ("in", _nested(here))]))
    assert read.to_pylist() == [{"at": at, "in": {"at": [at]}}]


def _nested(type: pa.DataType) -> pa.DataType:
    return pa.struct([("at", pa.list_(type))])


def test_a_number_may_have_become_wider(read_as: Read) -> None:
    read = read_as(ROWS, pa.schema([("n", pa.int64())]))
    assert read.column("n").to_pylist() == [1, 2]
    assert read.schema.field("n").type == pa.int64()


@pytest.mark.parametrize("now", [pa.int16(), pa.string(), pa.timestamp("us")])
def test_a_column_that_cannot_be_read_is_refused(read_as: Read, now: pa.DataType) -> None:
    with pytest.raises(
        RestoreError, match=r"channel 'clicks-in' holds rows whose column 'n' is int32, and it is .* now; let"
    ):
        read_as(ROWS, pa.schema([("n", now)]))


def test_what_the_part_before_has_lost_and_computes_again_is_waited_for(both: Both) -> None:
    producer, consumer = both
    for n in range(3):
        producer.commit([b"%d" % n])
        assert isinstance(Plans(producer.storage).write(plan_of(n + 1)), PlanWritten)
    consumer.take()
    producer.storage.delete([names.commit(2)])
    with pytest.raises(RetryableError):
        consumer.new_reader().next(consumer.position, None, 0)
    with pytest.raises(DamagedChain) as damage:
        Chain(producer.storage).load()
    Chain(producer.storage).rewind(damage.value.head, damage.value.fallback, term=1, run="run-1")
    producer.open()
    reader = consumer.new_reader()
    for epoch in (2, 3):
        with pytest.raises(RetryableError, match=f"has lost what came after epoch {epoch - 1} and computes"):
            reader.next(consumer.position, None, 0)
        producer.commit([b"%d" % (epoch - 1)])
    assert reader.next(consumer.position, None, 0) is None
    producer.commit([b"3"])
    assert shape(reader.next(consumer.position, None, 0)) == ([3, 0], [4, 0], 1)


def test_an_end_counts_only_with_the_commit_that_was_seen(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the commits and that at the end, another leader may have read more, and ended."""
    producer, consumer = both
    producer.commit([b"a"])
    producer.end()
    consumer.take()
    reader = consumer.reader
    assert reader.exhausted(consumer.position)
    seen = reader._known()
    monkeypatch.setattr(reader, "_look", lambda: seen)
    producer.commit([b"b"])
    producer.end()
    assert not reader.exhausted(consumer.position)
    assert not reader.shows(1, consumer.position, exactly=True)


def test_a_part_before_that_has_lost_all_its_commits_is_waited_for(both: Both) -> None:
    """Its damage is not that of the part that reads."""
    producer, consumer = both
    for n in range(12):
        producer.commit([b"%d" % n])
    producer.storage.delete([entry.name for entry in producer.storage.list(names.COMMITS)])
    with pytest.raises(RetryableError, match=r"channel 'clicks-in' cannot be read now: .* they were lost"):
        consumer.new_reader().next(None, None, 0)
