"""A damaged epoch of a channel is asked for by its reader, and computed again by the part that sent it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from holdfast.admin.rewind import refuse_unless_whole
from holdfast.checkpoint.chain.channels import Channel, answering
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import OperatorSchema, PlannedSlice, SentFile, UncoordinatedShard
from holdfast.errors import EpochFailed, RestoreError
from holdfast.ids import EpochId
from holdfast.runtime.doors.door_reader import DoorReader
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.parts import epochs_again
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked, Request, damaged_epoch
from holdfast.runtime.parts.epochs_again import Asking, answer
from holdfast.runtime.parts.outlets import refuse_unread
from holdfast.runtime.upstream import gone_back
from holdfast.state.contract import Version
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.chain.test_channels import UID, sent, state
from tests.unit.runtime.parts.channel_kit import (
    CHANNEL,
    COLUMNS,
    Consumer,
    Producer,
    door,
    lead,
    leave,
    outlet,
    plan_of,
    rows_of,
)

Both = tuple[Producer, Consumer]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    here = LocalStorage(tmp_path / "main")
    producer = Producer(here, outlet(str(tmp_path / "scoring")), retain=4, writes_plans=True)
    return producer, Consumer(LocalStorage(tmp_path / "scoring"), str(tmp_path / "main"))


def path_of(end: Producer | Consumer, name: str) -> Path:
    return Path(end.storage.url.removeprefix("file://")) / name


def damage(producer: Producer, epoch: int) -> SentFile:
    file = producer.files_of(epoch)[0]
    path_of(producer, file.extent.object).write_bytes(b"#")
    return file


def found(consumer: Consumer) -> EpochDamaged:
    """What the reader meets when it runs what is planned."""
    damaged = consumer.run()
    assert damaged is not None
    return damaged


def read(producer: Producer, consumer: Consumer, max_rows: int | None = None) -> list[bytes]:
    part = consumer.take(max_rows)
    assert part is not None
    return rows_of(producer.storage, part)


def asked(both: Both, *epochs: bytes, lost: int) -> None:
    """Each epoch has one file; one of them is damaged, and asked for."""
    producer, consumer = both
    for data in epochs:
        producer.commit([data])
    damage(producer, lost)
    consumer.take()
    consumer.ask(found(consumer))


def test_only_the_damaged_epoch_is_computed_again(both: Both) -> None:
    producer, consumer = both
    asked(both, b"a", b"b", b"c", lost=2)
    before = list(producer.channel.files)
    producer.answer()
    assert producer.view.last_epoch == 1
    assert (producer.channel.through, producer.channel.lost) == (3, (2,))
    producer.commit([b"other"], [b"never sent"], [b"d"])
    assert producer.channel.lost == ()
    assert [file.epoch for file in producer.channel.files] == [1, 2, 3, 4]
    assert [producer.channel.files[at] for at in (0, 2)] == [before[0], before[2]]
    assert read(producer, consumer) == [b"a", b"other", b"c", b"d"]
    assert Chain(producer.storage).load().channels == producer.view.channels


def test_what_lies_before_the_damage_is_read_meanwhile_and_nothing_after_it(both: Both) -> None:
    producer, consumer = both
    asked(both, b"a", b"b", b"c", lost=2)
    assert read(producer, consumer) == [b"a"]
    assert consumer.take() is None, "it was asked for"
    consumer.commit()
    producer.answer()
    assert consumer.take() is None, "it is being computed"
    assert not consumer.reader.exhausted(consumer.position)
    producer.commit([b"B"])
    assert read(producer, consumer) == [b"B", b"c"]


def test_a_file_that_is_whole_again_when_the_sender_looks_is_kept(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    producer.commit([b"b"])
    file = damage(producer, 2)
    consumer.take()
    consumer.ask(found(consumer))
    path_of(producer, file.extent.object).write_bytes(b"b")
    assert read(producer, consumer) == [b"a"], "the sender may just have seen it damaged"
    producer.answer()
    assert (producer.view.last_epoch, producer.channel.lost) == (2, ())
    assert read(producer, consumer) == [b"b"]


def test_a_request_is_answered_once(both: Both) -> None:
    producer, _ = both
    asked(both, b"a", b"b", lost=2)
    producer.answer()
    number = producer.view.number
    producer.answer()
    assert producer.view.number == number
    # A leader that saw the request before another of the part has answered it.
    stale = EpochsAsked([Request(CHANNEL, "scoring", 2, producer.channel.answered)])
    assert answer(producer.context, stale).number == number


def test_a_leader_that_finds_the_epoch_lost_already_only_answers(both: Both) -> None:
    producer, _ = both
    asked(both, b"a", b"b", lost=2)
    producer.answer()
    again = EpochsAsked([Request(CHANNEL, "scoring", 2, producer.channel.answered + 1)])
    view = answer(producer.context, again)
    assert view.number == producer.view.number + 1
    assert (view.last_epoch, view.channels[CHANNEL].lost) == (1, (2,))


def test_what_a_part_has_read_on_from_is_not_replaced(both: Both) -> None:
    """A person has given the rows up, say."""
    producer, consumer = both
    asked(both, b"a", b"b", lost=2)
    passed_over = news(consumer.view, term=1, run="run-1", published_through={})
    consumer.commit_record(changed(passed_over, positions={CHANNEL: [2, 0]}))
    producer.look()
    assert producer.outlets.requests(producer.view.channels) == []


@pytest.mark.parametrize("rows", [None, 1])
def test_what_was_read_of_an_epoch_before_a_rewind_is_not_asked_for(both: Both, rows: int | None) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    read(producer, consumer)
    consumer.commit()
    producer.commit([b"b", b"c"])
    read(producer, consumer, rows)
    consumer.commit()
    damage(producer, 2)
    if rows is None:
        consumer.rewind(1)
    consumer.take()
    with pytest.raises(RestoreError, match="has committed rows of that epoch") as refusal:
        consumer.ask(found(consumer))
    assert "part 'main'" in str(refusal.value)
    assert consumer.view.asked == {}


def test_what_was_read_in_part_by_an_epoch_that_a_rewind_replays_is_not_asked_for(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    read(producer, consumer)
    consumer.commit()
    producer.commit([b"b", b"c"])
    read(producer, consumer, 1)
    consumer.commit()
    consumer.rewind(1)
    # The epoch that read the first file is planned again as it was, and the next one reads the second.
    consumer.take(1)
    consumer.take(1)
    damage(producer, 2)
    damaged = EpochDamaged(producer.files_of(2)[1], "main", planned=3, begins=False)
    with pytest.raises(RestoreError, match="has committed rows of that epoch"):
        consumer.ask(damaged)


def test_where_nothing_can_compute_it_again_the_reader_says_so(both: Both) -> None:
    producer, consumer = both
    for n in range(8):
        producer.commit([b"%d" % n])
    file = damage(producer, 2)
    consumer.take()
    consumer.ask(found(consumer))
    producer.answer()
    assert producer.view.last_epoch == 8, "the sender goes on"
    assert "epoch 2 of channel 'clicks-in' cannot be computed again: no retained commit" in producer.said[-1]
    consumer.take()
    with pytest.raises(RestoreError) as refusal:
        consumer.ask(found(consumer))
    for said in (file.extent.object, "epoch 2", "'clicks-in'", "part 'main'", "from a copy", "holdfast skip"):
        assert said in str(refusal.value)
    # The next run asks again: what was missing may be there by then.
    consumer.open()
    consumer.take()
    consumer.ask(found(consumer))
    path_of(producer, file.extent.object).write_bytes(b"1")
    producer.answer()
    assert read(producer, consumer) == [b"%d" % n for n in range(8)]


@pytest.mark.parametrize("lacking", ["plan", "keys"])
def test_the_sender_does_not_go_back_where_it_could_not_come_forward(both: Both, lacking: str) -> None:
    producer, _ = both
    asked(both, b"a", b"b", b"c", lost=2)
    if lacking == "plan":
        path_of(producer, names.plan(3, 1)).unlink()
    else:
        version = Version(epoch=1, attempt=1, result="")
        shard = UncoordinatedShard(
            operator="op", shards=1, first_group=0, end_group=4, version=version, incarnation="i", unsaved=0,
            discarded=0, lost=0,
        )  # fmt: skip
        keyed = replace(producer.view, uncoordinated={"op": (shard,)})
        producer.chain.remember(keyed, producer.chain.record(producer.view.number))
    producer.look()
    view = answer(producer.context, EpochsAsked(producer.outlets.requests(producer.view.channels)))
    assert (view.last_epoch, view.channels[CHANNEL].lost) == (3, ())
    assert view.channels[CHANNEL].answered == 1
    assert "cannot be computed again" in producer.said[-1]


def opened(both: Both, *needs: int, retain: int) -> None:
    """A sender without saved state that has run so many epochs, with what it needs after each of them."""
    producer, _ = both
    producer._retain = retain
    producer.open()
    schema = OperatorSchema(uid="windows", key=(), states=())
    begin = news(producer.view, term=1, run="run-1", published_through={})
    producer.commit_record(changed(begin, needs_from=1, operators=(schema,), parallelism=1))
    for epoch, needs_from in enumerate(needs, 1):
        producer.commit([b"%d" % epoch], needs_from=needs_from)


def ask_for(both: Both, epoch: int) -> None:
    producer, consumer = both
    damage(producer, epoch)
    consumer.take()
    consumer.ask(found(consumer))
    producer.answer()


def go_back(producer: Producer) -> None:
    """Have state again that is in no file, as every leader does that begins."""
    program = SimpleNamespace(graph=SimpleNamespace(operators=[SimpleNamespace(uid="windows")]))
    context: Any = SimpleNamespace(**vars(producer.context), program=program)
    gone_back(context, producer.view)
    producer.open()


def test_state_that_is_in_no_file_is_had_again_before_the_epoch_is_computed(both: Both) -> None:
    producer, consumer = both
    opened(both, 1, 2, 3, 4, retain=4)
    ask_for(both, 3)
    assert (producer.view.last_epoch, producer.view.needs_from, producer.channel.lost) == (2, 2, (3,))
    go_back(producer)
    assert (producer.view.last_epoch, producer.view.whole_after, producer.channel.lost) == (1, 2, (3,))
    producer.commit([b"in the making"], needs_from=2)
    producer.commit([b"other"], [b"never sent"], [b"5"], needs_from=4)
    assert producer.channel.lost == ()
    assert read(producer, consumer) == [b"1", b"2", b"other", b"4", b"5"]


def test_the_sender_does_not_go_back_where_the_rows_of_its_state_were_let_go(both: Both) -> None:
    producer, _ = both
    opened(both, 1, 1, 1, 4, 4, 4, 7, 7, retain=1)
    assert [producer.chain.view_at(number).last_epoch for number in producer.retained] == [6, 7, 8]
    ask_for(both, 7)
    assert (producer.view.last_epoch, producer.channel.lost, producer.channel.answered) == (8, (), 1)
    assert "the rows of state that is in no file were let go" in producer.said[-1]


def test_nothing_is_computed_again_with_state_in_the_making(both: Both) -> None:
    producer, _ = both
    opened(both, 1, 1, 1, 4, 4, 4, 7, 7, retain=1)
    go_back(producer)
    replay = producer.view
    assert (replay.last_epoch, replay.whole_after) == (6, 8)
    ask_for(both, 8)
    assert (producer.view.last_epoch, producer.view.whole_after, producer.channel.lost) == (7, 0, (8,))
    with pytest.raises(RestoreError, match="rows in channels of epochs up to 8 have to be computed again"):
        refuse_unless_whole(producer.storage, replay.number)
    go_back(producer)
    assert (producer.view.last_epoch, producer.view.whole_after) == (6, 7)


def test_a_commit_whose_state_cannot_be_read_again_as_it_was_cannot_be_gone_to(both: Both) -> None:
    producer, _ = both
    opened(both, 1, 2, 3, retain=4)
    assert refuse_unless_whole(producer.storage, 3) == []
    path_of(producer, names.plan(2, 1)).unlink()
    with pytest.raises(RestoreError, match="epoch 2 would have to be read again as it was, and that is lost"):
        refuse_unless_whole(producer.storage, 3)


def test_a_commit_past_what_is_lost_cannot_be_gone_to(both: Both) -> None:
    producer, _ = both
    asked(both, b"a", b"b", b"c", lost=2)
    producer.answer()
    assert refuse_unless_whole(producer.storage, 1) == []
    for to in (2, 3):
        with pytest.raises(RestoreError, match=f"rows in channels of epochs up to {to} have to be computed"):
            refuse_unless_whole(producer.storage, to)


def test_a_rewind_of_the_reader_does_not_take_a_request_back(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    read(producer, consumer)
    consumer.commit()
    asked(both, b"b", b"c", lost=2)
    consumer.rewind(1)
    assert consumer.view.asked == {CHANNEL: (2, 2)}
    assert consumer.take() is None
    producer.look()
    assert [request.epoch for request in producer.outlets.requests(producer.view.channels)] == [2]


def test_a_request_survives_manifests_and_their_loss(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    read(producer, consumer)
    consumer.commit()
    asked(both, b"b", lost=2)
    consumer.rewind(1)
    path_of(consumer, consumer.view.manifest).write_bytes(b"#")
    assert Chain(consumer.storage).load().asked == {CHANNEL: (2, 2)}


def test_plans_that_read_what_was_asked_for_are_not_followed(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    consumer.take()
    producer.commit([b"b"], [b"c"])
    consumer.take()
    shape = PlanShape((CHANNEL,), "f", 1)
    assert len(recorded_plans(consumer.chain, consumer.view, shape, {})) == 2
    damage(producer, 3)
    consumer.ask(found(consumer))
    (left,) = recorded_plans(consumer.chain, consumer.view, shape, {})
    assert left.plan.slices[CHANNEL].end == [1, 0]
    assert Plans(consumer.storage).next_attempt(EpochId(2)) == 2


def test_a_part_that_is_to_end_does_not_wait_for_one_that_has(both: Both) -> None:
    producer, consumer = both
    asked(both, b"a", b"b", lost=2)
    lead(producer.storage)
    assert read(producer, consumer) == [b"a"]
    consumer.reader.refuse_abandoned(consumer.position)
    leave(producer.storage)
    with pytest.raises(RestoreError, match=r"epoch 2 of .*'clicks-in'.*'main'.*start the whole job"):
        consumer.reader.refuse_abandoned(consumer.position)
    consumer.reader.refuse_abandoned(None)


def test_an_older_leader_of_the_reader_that_has_committed_counts(both: Both) -> None:
    producer, consumer = both
    producer.commit([b"a"], [b"b"])
    damage(producer, 2)
    consumer.take()
    damaged, before = found(consumer), consumer.view
    consumer.commit()
    newest = Asking().ask(consumer.context, damaged, before, 0, 1)
    assert (newest.number, newest.asked) == (consumer.view.number, {})


def test_an_epoch_is_lost_to_one_channel_alone() -> None:
    channels = {uid: Channel().after(state(2), [sent(1, 0, uid), sent(2, 0, uid)]) for uid in (UID, "other")}
    states = answering(channels, UID, 7, (2,))
    after = {uid: channel.after(states[uid], []) for uid, channel in channels.items()}
    assert after["other"] == channels["other"]
    assert ([file.epoch for file in after[UID].files], after[UID].lost, after[UID].answered) == ([1], (2,), 7)
    assert (after[UID].ready_through, after[UID].covers(2), after[UID].covers(1)) == (1, False, True)


def test_a_channel_with_an_epoch_to_be_computed_again_is_not_left_behind(both: Both) -> None:
    producer, _ = both
    producer.commit([], [b"b"])
    damage(producer, 2)
    only_lost = {CHANNEL: replace(producer.channel, files=type(producer.channel.files)(), lost=(2,))}
    with pytest.raises(RestoreError, match="holds 0 rows"):
        refuse_unread(only_lost, [], "url")


def test_for_readers_that_are_not_known_nothing_is_replaced(tmp_path: Path) -> None:
    producer = Producer(LocalStorage(tmp_path), door(4), writes_plans=True)
    producer.commit([b"a"], [b"b"])
    reader = DoorReader(CHANNEL, str(tmp_path), COLUMNS)
    part = reader.next(None, None, 0)
    assert part is not None
    file = damage(producer, 2)
    planned = PlannedSlice(start=part.start, end=part.end, rows=part.rows, detail=part.detail)
    refusal = damaged_epoch(plan_of(1, {CHANNEL: planned}), {CHANNEL: reader})
    assert isinstance(refusal, RestoreError)
    for said in (file.extent.object, "epoch 2", "'clicks-in'", "from a copy"):
        assert said in str(refusal)


@pytest.mark.parametrize(
    ("text", "replicated", "looks"),
    [
        ("failed in Spark: holdfast.errors.CorruptionError: object 'x' is damaged", False, True),
        ("failed in Spark: holdfast.errors.ObjectMissing: no object 'x'", False, True),
        ("failed in Spark: holdfast.errors.CorruptionError: object 'x' is damaged", True, False),
        ("failed in Spark: an executor was lost", False, False),
    ],
)
def test_damage_is_looked_for_where_tasks_tell_of_it(
    both: Both, text: str, replicated: bool, looks: bool
) -> None:
    producer, consumer = both
    producer.commit([b"a"])
    damage(producer, 1)
    part = consumer.take()
    assert part is not None
    planned = PlannedSlice(start=part.start, end=part.end, rows=part.rows, detail=part.detail)
    runner: Any = type("Runner", (), {"replicated": replicated, "readers": {CHANNEL: consumer.reader}})
    told = EpochRunner._damaged(runner, plan_of(1, {CHANNEL: planned}), EpochFailed(text))
    assert isinstance(told, EpochDamaged) == looks


def test_without_the_look_at_what_was_read_an_epoch_would_be_asked_for(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the refusals above."""
    monkeypatch.setattr(epochs_again, "_refuse_if_read", lambda *given: None)
    producer, consumer = both
    producer.commit([b"a"])
    read(producer, consumer)
    consumer.commit()
    damage(producer, 1)
    consumer.ask(EpochDamaged(producer.files_of(1)[0], "main", planned=1, begins=True))
    assert consumer.view.asked == {CHANNEL: (1, 2)}
