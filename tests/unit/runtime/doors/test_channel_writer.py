"""Writing a channel from outside: a batch is in it once, in its order, from one query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.admin.remove_channel import remove_channel
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, SentFile
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    FencedOut,
    InputVanished,
    RestoreError,
    RetryableError,
    UnknownOutcome,
)
from holdfast.runtime.doors.channel_source import ChannelSource
from holdfast.runtime.doors.channel_writer import Appended, Batch, ChannelWriter
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.messages import Output, Payload
from holdfast.tasks.task_output import load_extent, pack_rows
from holdfast.testing.clocks import ManualClock

QUERY = "query-1"


def first(number: int) -> Batch:
    return Batch(QUERY, number)


@pytest.fixture
def writer(tmp_path: Path) -> ChannelWriter:
    return ChannelWriter(LocalStorage(tmp_path / "ck"), "orders", 1_000, "run-1", ManualClock())


def inline(*values: int) -> Output:
    data = pack_rows(pa.table({"n": values}))
    return Output("", len(values), Payload(checksum=checksum(data), length=len(data), inline=data))


def in_file(writer: ChannelWriter, name: str, *values: int, epoch: int) -> Output:
    """As a task with many rows writes them."""
    writer.begin()
    data, place = pack_rows(pa.table({"n": values})), f"{names.data_of(epoch)}{name}"
    writer.storage.put(place, data)
    extent = Extent(object=place, offset=0, length=len(data), checksum=checksum(data))
    return Output("", len(values), Payload(checksum=extent.checksum, length=len(data), extent=extent))


def write(writer: ChannelWriter, number: int, *values: int) -> Appended:
    return writer.append(writer.begin(), [inline(*values)], first(number))


def rows(writer: ChannelWriter) -> dict[int, list[int]]:
    """Epoch -> its rows, as the chain has them."""
    channel = History(writer.storage).load().channels["orders"]
    found: dict[int, list[int]] = {}
    for file in channel.files:
        found.setdefault(file.epoch, []).extend(
            load_extent(writer.storage.url, file.extent).column("n").to_pylist()
        )
    return found


def data(writer: ChannelWriter) -> list[str]:
    return [entry.name for entry in writer.storage.list(names.DATA)]


def test_a_batch_is_an_epoch(writer: ChannelWriter) -> None:
    assert writer.begin() == 1
    large = in_file(writer, "large", 3, 4, epoch=1)
    assert writer.append(1, [inline(1), inline(2), large], first(0)) is Appended.COMMITTED
    assert writer.append(2, [], first(1)) is Appended.COMMITTED, "a batch without rows is an epoch, too"
    assert write(writer, 2, 5) is Appended.COMMITTED
    assert rows(writer) == {1: [1, 2, 3, 4], 3: [5]}
    assert len(data(writer)) == 3, "small pieces of a batch are one object"


def test_a_batch_that_is_written_again_changes_nothing_and_leaves_nothing(writer: ChannelWriter) -> None:
    write(writer, 0, 1)
    write(writer, 1, 2)
    before, stored = History(writer.storage).load(), data(writer)
    again = replace(writer, run="run-2")
    large = in_file(writer, "again", 9, 9, epoch=3)
    assert again.append(3, [inline(9), large], first(1)) is Appended.REPEATED
    assert History(writer.storage).load() == before
    assert data(writer) == stored
    assert write(again, 2, 3) is Appended.COMMITTED
    assert rows(writer) == {1: [1], 2: [2], 3: [3]}


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_below_the_newest_is_refused(writer: ChannelWriter, number: int) -> None:
    for each in range(3):
        write(writer, each, each)
    stored = data(writer)
    with pytest.raises(
        DefinitionError, match=rf"batch {number} comes to .* has come to batch 2: .*older copy"
    ):
        write(replace(writer, run="run-2"), number, 9)
    assert data(writer) == stored
    assert write(writer, 3, 3) is Appended.COMMITTED, "the rightful writer is not disturbed"


@pytest.mark.parametrize("newest", [0, 2])
def test_another_spark_checkpoint_is_refused_whatever_its_batch(writer: ChannelWriter, newest: int) -> None:
    """Also batch 0 on batch 0, which would be taken for written before, and be lost."""
    for each in range(newest + 1):
        write(writer, each, each)
    stored, terms = data(writer), len(writer.storage.list(names.TERMS))
    other = replace(writer, run="run-2")
    for number in (0, newest, newest + 1):
        with pytest.raises(
            DefinitionError, match=r"by another streaming query.* begin at 0 again: start the"
        ):
            other.append(other.begin(), [inline(9)], Batch("query-2", number))
    assert data(writer) == stored
    assert len(writer.storage.list(names.TERMS)) == terms
    assert write(writer, newest + 1, 7) is Appended.COMMITTED


def test_a_gap_is_refused(writer: ChannelWriter) -> None:
    with pytest.raises(
        DefinitionError, match=r"batch 4 comes to .* which has none: those between are missing"
    ):
        write(writer, 4, 1)
    write(writer, 0, 1)
    with pytest.raises(DefinitionError, match=r"batch 2 comes to .* has come to batch 0: those between"):
        write(writer, 2, 1)
    assert rows(writer) == {1: [1]}


def test_a_writer_that_another_took_over_from_is_refused(writer: ChannelWriter) -> None:
    """Two starts of one query: both go on from the same Spark checkpoint."""
    write(writer, 0, 1)
    other = replace(writer, run="run-2")
    assert write(other, 1, 2) is Appended.COMMITTED
    stored = data(writer)
    with pytest.raises(FencedOut, match=r"another writer of channel 'orders' on "):
        write(writer, 2, 3)
    assert data(writer) == stored
    assert write(other, 2, 3) is Appended.COMMITTED
    assert rows(writer) == {1: [1], 2: [2], 3: [3]}


def test_of_two_writers_of_one_batch_the_first_counts(
    writer: ChannelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused writer commits what it had ready, after another has claimed the term: its batch counts."""
    write(writer, 0, 1)
    view, other = Chain(writer.storage).load(), replace(writer, run="run-2")
    ready = in_file(writer, "ready", 2, epoch=2).payload.extent
    assert ready is not None
    sent = [SentFile(channel="orders", epoch=2, part=0, extent=ready, rows=1)]
    record = writer._record(view, 1, sent, first(1))
    before_commit(monkeypatch, lambda: Chain(writer.storage).commit(view, record))
    assert other.append(2, [inline(9)], first(1)) is Appended.REPEATED
    assert rows(writer) == {1: [1], 2: [2]}
    assert len(data(writer)) == 2
    assert write(other, 2, 3) is Appended.COMMITTED


def test_a_writer_that_was_overtaken_at_the_commit_is_refused(
    writer: ChannelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, 0, 1)
    before_commit(monkeypatch, lambda: write(replace(writer, run="run-2"), 1, 2))
    with pytest.raises(FencedOut):
        write(writer, 1, 9)
    assert rows(writer) == {1: [1], 2: [2]}
    assert len(data(writer)) == 2


def before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something happens between the look at the chain and the first commit after it."""
    commit = Chain.commit

    def later(self: Chain, *given: object) -> object:
        monkeypatch.setattr(Chain, "commit", commit)
        act()
        return commit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Chain, "commit", later)


@pytest.mark.parametrize("written", [True, False])
def test_a_commit_whose_fate_is_not_known_is_looked_up(
    writer: ChannelWriter, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    commit = Chain.commit

    def in_doubt(self: Chain, *given: object) -> object:
        monkeypatch.setattr(Chain, "commit", commit)
        if written:
            commit(self, *given)  # type: ignore[arg-type]
        raise UnknownOutcome("not told; look")

    monkeypatch.setattr(Chain, "commit", in_doubt)
    large = in_file(writer, "large", 2, epoch=1)
    outcome = writer.append(1, [inline(1), large], first(0))
    assert outcome is (Appended.REPEATED if written else Appended.COMMITTED)
    assert rows(writer) == {1: [1, 2]}
    assert len(data(writer)) == 2


def test_files_whose_commit_may_still_appear_are_left(
    writer: ChannelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_doubt(self: Chain, *given: object) -> object:
        raise UnknownOutcome("not told; look")

    large = in_file(writer, "large", 2, epoch=1)
    with monkeypatch.context() as patched:
        patched.setattr(Chain, "commit", in_doubt)
        with pytest.raises(UnknownOutcome, match="write the batch again, which tells"):
            writer.append(1, [large], first(0))
    writer.discard(1, [large])
    assert f"{names.data_of(1)}large" in data(writer)
    assert writer.append(1, [large], first(0)) is Appended.COMMITTED


def test_what_is_not_committed_is_removed_and_what_is_committed_is_not(writer: ChannelWriter) -> None:
    kept = in_file(writer, "kept", 1, epoch=1)
    writer.append(1, [kept], first(0))
    gone = in_file(writer, "gone", 2, epoch=2)
    writer.discard(2, [gone, inline(3)])
    writer.discard(1, [kept])
    assert data(writer) == [f"{names.data_of(1)}kept"]


def test_older_epochs_are_let_go_and_deleted(writer: ChannelWriter) -> None:
    writer = replace(writer, keep_epochs=3)
    in_file(writer, "of-a-task-that-failed", 9, epoch=2)
    for number in range(60):
        write(writer, number, number)
    assert rows(writer) == {58: [57], 59: [58], 60: [59]}
    assert len(data(writer)) < 25
    assert len(writer.storage.list(names.COMMITS)) < 60
    assert len(writer.storage.list(names.TERMS)) == 1


def test_a_job_reads_what_was_written(writer: ChannelWriter) -> None:
    write(writer, 0, 1, 2)
    reader = ChannelSource(writer.storage.url, channel="orders", schema="n long").reader([])
    part = reader.next(None, None, 0)
    assert part is not None
    assert (part.end, part.rows) == ([1, 0], 2)
    assert not reader.exhausted(part.end), "a query tells of no end"


def test_a_whole_write_is_an_epoch_and_an_end(writer: ChannelWriter) -> None:
    for run in ("run-1", "run-2"):
        each = replace(writer, run=run)
        assert each.append(each.begin(), [inline(1)], None) is Appended.COMMITTED
    assert rows(writer) == {1: [1], 2: [1]}
    reader = ChannelSource(writer.storage.url, channel="orders", schema="n long").reader([])
    assert reader.exhausted([2, 0])
    with pytest.raises(DefinitionError, match="holds what was written without a streaming query"):
        write(replace(writer, run="run-3"), 0, 1)


def test_a_whole_write_does_not_come_between_the_batches_of_a_query(writer: ChannelWriter) -> None:
    write(writer, 0, 1)
    other = replace(writer, run="run-2")
    with pytest.raises(DefinitionError, match="is written by a streaming query"):
        other.append(other.begin(), [inline(9)], None)
    assert write(writer, 1, 2) is Appended.COMMITTED


def test_a_whole_write_that_another_overtook_is_refused(
    writer: ChannelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be gone: they have the number of an epoch that is not theirs."""
    slow, epoch = replace(writer, run="slow"), writer.begin()
    assert writer.append(epoch, [inline(1)], None) is Appended.COMMITTED
    with pytest.raises(RetryableError, match="come to epoch 1 while epoch 1 was written: another writer"):
        slow.append(epoch, [inline(2)], None)
    assert len(data(writer)) == 1


def test_the_place_of_another_job_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    open_checkpoint(storage, "fraud", 128, ManualClock(), identity="id")
    writer = ChannelWriter(storage, "orders", 10, "run-1", ManualClock())
    with pytest.raises(RestoreError, match="belongs to job 'fraud', not to 'orders'; choose another place"):
        writer.begin()


def test_a_damaged_chain_is_told(writer: ChannelWriter) -> None:
    write(writer, 0, 1)
    writer.storage.put(names.commit(1), b"damaged")
    with pytest.raises(CorruptionError):
        write(writer, 1, 2)


def test_after_a_rewind_the_channel_stays_what_it_was(writer: ChannelWriter) -> None:
    for number in range(3):
        write(writer, number, number)
    chain = Chain(writer.storage)
    chain.rewind(chain.load().head, 1, term=1, run="run-1")  # type: ignore[arg-type]
    assert write(writer, 1, 9) is Appended.COMMITTED
    assert rows(writer) == {1: [0], 2: [1], 3: [2]}


def test_a_channel_that_was_removed_does_not_hide_it(writer: ChannelWriter) -> None:
    write(writer, 0, 1)
    write(writer, 1, 2)
    reader = ChannelSource(writer.storage.url, channel="orders", schema="n long").reader([])
    first_epoch = reader.next(None, 1, 0)
    assert first_epoch is not None
    remove_channel(writer.storage, "orders", None, ManualClock(), not_running=True)
    again = replace(writer, run="run-2")
    write(again, 2, 3)
    with pytest.raises(InputVanished, match="let go of epochs up to 2, and it was read up to epoch 1"):
        reader.next(first_epoch.end, None, 0)
