"""How the part before sees its channels: what waits in them, and what may be let go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.store import names
from holdfast.errors import RestoreError, StorageError
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.parts.outlets import Outlets, refuse_unread
from holdfast.runtime.parts.waiting import Waiting
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.parts.channel_kit import CHANNEL, Consumer, Producer, outlet, plan_of

Both = tuple[Producer, Consumer]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    node = outlet(str(tmp_path / "scoring"), limit_bytes=8, limit_epochs=3)
    producer = Producer(LocalStorage(tmp_path / "main"), node)
    return producer, Consumer(LocalStorage(tmp_path / "scoring"), str(tmp_path / "main"))


def waiting(producer: Producer) -> Waiting:
    producer.look()
    (found,) = producer.outlets.waiting(producer.view.channels)
    return found


def released(producer: Producer) -> int:
    producer.look()
    states = producer.outlets.states(producer.view.channels)
    assert states is not None
    return states[CHANNEL].released


def test_what_no_part_has_read_waits(tmp_path: Path) -> None:
    node = outlet(str(tmp_path / "scoring"), limit_bytes=8, limit_epochs=3)
    producer = Producer(LocalStorage(tmp_path / "main"), node)
    producer.commit([b"aa", b"b"], [], [b"ccc"])
    assert waiting(producer) == Waiting(
        channel=CHANNEL, part="scoring", epochs=2, bytes=6, rows=6, kept_bytes=0, share=6 / 8
    )
    assert released(producer) == 0


@pytest.mark.parametrize(("files", "share"), [([b"12345678"], 1.0), ([b"1"], 1 / 3), ([], 0.0)])
def test_a_channel_is_full_by_bytes_or_by_epochs(both: Both, files: list[bytes], share: float) -> None:
    producer, _ = both
    producer.commit(files, [], [])
    assert waiting(producer).share == pytest.approx(share)


def test_three_epochs_fill_a_channel_for_three(both: Both) -> None:
    producer, _ = both
    producer.commit([b"1"], [b"2"], [b"3"])
    assert waiting(producer).share == 1


def test_what_is_kept_for_going_back_does_not_wait(both: Both) -> None:
    """Else the reader, which commits nothing without input, would wait for the part that waits for it."""
    producer, consumer = both
    producer.commit([b"1234"], [b"5678"])
    consumer.commit()
    assert waiting(producer).share == 1
    consumer.take()
    assert waiting(producer).share == 1, "what is planned may be planned again"
    consumer.commit()
    found = waiting(producer)
    assert (found.share, found.epochs, found.bytes, found.rows, found.kept_bytes) == (0, 0, 0, 0, 8)
    assert released(producer) == 0, "the first commit has read nothing"


def test_a_file_of_an_epoch_that_is_read_waits_no_more(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"12", b"3", b"4"], [b"5"])
    consumer.take(max_rows=3)
    consumer.commit()
    found = waiting(producer)
    assert (found.epochs, found.bytes, found.kept_bytes) == (2, 2, 3)


def test_after_a_rewind_of_the_reader_more_waits(both: Both) -> None:
    producer, consumer = both
    for n in range(2):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
    assert waiting(producer).bytes == 0
    consumer.rewind(1)
    assert waiting(producer).bytes == 1


def test_what_no_commit_of_the_reader_can_read_again_is_released(both: Both) -> None:
    producer, consumer = both
    found = []
    for n in range(7):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
        found.append(released(producer))
        assert found[-1] <= min(consumer.position_at(number).epoch for number in consumer.retained)
    # Three commits can be gone back to; the one before is given up, and not yet gone.
    assert found == [1, 1, 1, 1, 2, 3, 4]


def test_a_reader_that_went_back_holds_what_it_reads_again(both: Both) -> None:
    producer, consumer = both
    for n in range(4):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
    before = released(producer)
    consumer.rewind(2)
    for _ in range(2):
        # Without input: the rewind is the oldest commit of three.
        consumer.commit()
        assert released(producer) in (before, 2)
    consumer.commit()
    assert released(producer) == 2


def test_a_part_of_an_epoch_is_not_released(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a", b"b"])
    consumer.take(max_rows=1)
    for _ in range(6):
        consumer.commit()
    assert released(producer) == 0


def test_what_was_released_stays_so_in_another_run(both: Both) -> None:
    producer, consumer = both
    for n in range(6):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
        producer.look()
    producer.say()
    known = producer.channel.released
    assert known
    producer.outlets = Outlets((outlet("/nowhere/at/all"),), ManualClock())
    states = producer.outlets.states(producer.view.channels)
    assert states is not None
    assert states[CHANNEL].released == known


def test_a_reader_with_an_older_commit_damaged_is_still_seen_to_read(both: Both) -> None:
    producer, consumer = both
    for n in range(2):
        producer.commit([b"%d" % n])
        consumer.take()
        consumer.commit()
    # Manifests are rare: commit 4 brings one, so the newest can be read though an older one cannot.
    for _ in range(2):
        consumer.commit()
    consumer.storage.put(names.commit(3), b"damaged")
    assert waiting(producer).bytes == 0
    assert released(producer) == 0, "what may be needed cannot be told"


def test_a_reader_that_cannot_be_read_is_as_it_was(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    consumer.take(max_rows=1)
    consumer.commit()
    assert waiting(producer).bytes == 1
    consumer.take()
    consumer.commit()
    consumer.storage.put(names.commit(2), b"damaged")
    assert waiting(producer).bytes == 1


def test_a_reader_that_went_on_from_an_older_copy_is_seen_to_read(both: Both) -> None:
    """Else the channel would be full for as long as this leader lives."""
    producer, consumer = both
    producer.commit([b"1"], [b"2"], [b"3"])
    consumer.take(1)
    consumer.commit()
    consumer.take(1)
    consumer.commit()
    assert waiting(producer).epochs == 1
    consumer.storage.delete([names.commit(consumer.view.number)])
    consumer.open()
    for _ in range(2):
        consumer.take()
        consumer.commit()
    waiting(producer)
    assert waiting(producer).epochs == 0


def test_it_is_not_looked_at_all_the_time(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    producer.look()
    consumer.take()
    consumer.commit()
    producer.outlets.look()
    assert producer.outlets.waiting(producer.view.channels)[0].bytes == 1
    assert waiting(producer).bytes == 0


def test_what_the_reader_has_planned_was_seen(both: Both) -> None:
    producer, consumer = both
    seen = lambda: producer.outlets.marks()[CHANNEL].epoch  # noqa: E731
    assert seen() == 0
    producer.commit([b"a"], [b"b", b"c"], [b"d"])
    assert seen() == 0
    consumer.take(max_rows=1)
    assert seen() == 1
    consumer.take(max_rows=1)
    assert seen() == 2, "one file of an epoch was seen: it is to be the same again"
    consumer.commit()
    assert seen() == 2
    consumer.take()
    assert seen() == 3
    consumer.open()
    assert seen() == 3, "the plan is there, and will be followed"


def test_what_the_reader_saw_before_it_went_back_was_seen(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    for _ in range(2):
        consumer.take(max_rows=1)
        consumer.commit()
    consumer.rewind(1)
    assert producer.outlets.marks()[CHANNEL].epoch == 2


def test_what_a_reader_saw_is_known_by_its_plans_where_its_commits_are_damaged(both: Both) -> None:
    """A power cut may damage the newest commits of both parts: the epoch has to be computed as it was."""
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    for _ in range(2):
        consumer.take(max_rows=1)
        consumer.commit()
    consumer.storage.put(names.commit(2), b"damaged")
    producer.open()
    assert producer.outlets.marks()[CHANNEL].epoch == 2
    consumer.storage.put(names.JOB, b"damaged")
    producer.open()
    assert producer.outlets.marks()[CHANNEL].epoch == 2


def test_what_a_reader_saw_is_not_taken_for_nothing_where_storage_does_not_answer(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()

    def away(storage: LocalStorage, *_: object) -> NoReturn:
        raise StorageError("not now; try again")

    for call in ("get", "list", "size"):
        monkeypatch.setattr(LocalStorage, call, away)
    with pytest.raises(StorageError, match="not now"):
        producer.outlets.marks()


def test_a_reader_whose_checkpoint_is_damaged_does_not_stop_the_sender(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    assert waiting(producer).bytes == 1
    consumer.storage.put(names.JOB, b"damaged")
    assert waiting(producer).bytes == 1


def test_time_is_told_where_it_moves(both: Both) -> None:
    producer, _ = both
    outcomes = [
        EpochOutcome(plan_of(epoch, time_us=time)) for epoch, time in ((1, None), (2, 20), (3, 20), (4, 40))
    ]
    states = producer.outlets.states({}, outcomes, 4)
    assert states is not None
    assert states[CHANNEL].times == ((2, 20), (4, 40))
    # Epochs 3 and 4 are computed again; what is known is not said again.
    known = {CHANNEL: Channel(through=4, times=((2, 20), (4, 40)))}
    again = producer.outlets.states(
        known, [*outcomes[2:], EpochOutcome(plan_of(5, time_us=40)), EpochOutcome(plan_of(6, time_us=60))], 6
    )
    assert again is not None
    assert (again[CHANNEL].times, again[CHANNEL].through) == (((6, 60),), 6)


def test_a_channel_does_not_go_back_with_its_part(both: Both) -> None:
    producer, _ = both
    states = producer.outlets.states({CHANNEL: Channel(through=9)}, [EpochOutcome(plan_of(3))], 3)
    assert states is not None
    assert (states[CHANNEL].through, states[CHANNEL].times) == (9, ())


def test_a_part_without_channels_says_nothing_of_them() -> None:
    none = Outlets((), ManualClock())
    assert none.states({}) is None
    assert none.waiting({}) == []
    assert none.marks() == {}


def test_rows_are_not_left_behind_in_a_channel_that_is_gone(both: Both) -> None:
    producer, _ = both
    producer.commit([b"ab", b"c"])
    refuse_unread(producer.view.channels, [producer.node], "url")
    with pytest.raises(
        RestoreError,
        match=r"channel 'clicks-in' holds 3 rows .* no longer has it; start the former job until",
    ):
        refuse_unread(producer.view.channels, [replace(producer.node, uid="other")], "url")
    empty = {CHANNEL: Channel(through=4, released=4)}
    refuse_unread(empty, [], "url")
