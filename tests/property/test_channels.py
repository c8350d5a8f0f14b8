"""Whatever happens at both ends of a channel, its rows are read once, and as they were first committed; of an
epoch that was damaged before any of it was read, as they were computed again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.chain import commits, history
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.view import CheckpointView, Head, rewound
from holdfast.checkpoint.store import names
from holdfast.connectors.contract import Slice
from holdfast.errors import HoldfastError, RestoreError
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.runtime.parts import epochs_again
from holdfast.runtime.parts.channel_source import ChannelReader, Position
from holdfast.runtime.parts.damaged_epochs import EpochDamaged
from holdfast.runtime.parts.outlets import ChannelReading
from tests.unit.checkpoint.kept import MemoryStorage
from tests.unit.runtime.parts.channel_kit import CHANNEL, Consumer, Producer, outlet, places, rows_of


class Act(NamedTuple):
    kind: str
    number: int
    more: int


KINDS = (
    *["send"] * 6, *["take"] * 7, *["commit"] * 7, *["look"] * 4, "say", "send back", "go back",
    "restart producer", "restart consumer", *["damage"] * 3, "restore", *["answer"] * 3,
)  # fmt: skip
ACTS = st.lists(
    st.builds(Act, st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), min_size=30, max_size=80
)


class Story:
    """Two parts and the channel between them; `check` holds after every act."""

    def __init__(self) -> None:
        self.here, self.there = MemoryStorage(), MemoryStorage()
        self.places = {"producer": self.here, "consumer": self.there}
        with places(self.places):
            self.producer = Producer(self.here, outlet("consumer"), retain=6, writes_plans=True)
            self.consumer = Consumer(self.there, "producer")
        self.first: dict[int, list[bytes]] = {}
        """Epoch -> its files, as the first commit that covered it had them."""
        self.times: dict[int, int] = {}
        """Epoch -> the event time after it, as the first commit had it."""
        self.paths: dict[int, tuple[Slice, ...]] = {0: ()}
        """Consumer's commit -> what it has read since the beginning."""
        self.planned: dict[int, Slice] = {}
        """Consumer's epoch -> what it read when it was last committed."""
        self.serial = 0
        self.damaged: dict[str, bytes] = {}
        """What is damaged, as it was."""
        self.happened: Counter[str] = Counter()

    def act(self, act: Act) -> None:
        producer, consumer = self.producer, self.consumer
        match act.kind:
            case "send":
                self.send(act)
            case "say" if producer.view.number:
                producer.say(ended=act.more % 2 == 0)
            case "send back" if producer.view.number:
                to = producer.retained[act.number % len(producer.retained)]
                if not any(lost <= producer.chain.view_at(to).last_epoch for lost in producer.channel.lost):
                    producer.rewind(to)
            case "take":
                self.take(act)
            case "commit" if (damage := consumer.run()) is not None:
                self.ask(damage)
            case "commit":
                self.planned |= enumerate(consumer.planned, consumer.view.last_epoch + 1)
                path = (*self.paths[consumer.view.number], *consumer.planned)
                consumer.commit()
                self.paths[consumer.view.number] = path
            case "go back" if consumer.view.number:
                to = consumer.retained[act.number % len(consumer.retained)]
                consumer.rewind(to)
                self.paths[consumer.view.number] = self.paths[to]
            case "look":
                producer.look()
            case "damage":
                self.damage(act)
            case "restore":
                self.restore()
            case "answer":
                self.answer()
            case "restart producer":
                producer.open()
            case "restart consumer":
                consumer.open()
            case _:
                pass

    def damage(self, act: Act) -> None:
        there = sorted({file.extent.object for file in self.producer.channel.files} - self.damaged.keys())
        if there:
            name = there[act.number % len(there)]
            self.damaged[name] = self.here.objects[name]
            self.here.objects[name] = b"#" * len(self.damaged[name])

    def restore(self) -> None:
        self.here.objects |= {name: data for name, data in self.damaged.items() if name in self.here.objects}
        self.damaged = {}

    def ask(self, damage: EpochDamaged) -> None:
        """What cannot be read is asked for; a person restores it where that is refused."""
        before = self.consumer.view.number
        try:
            self.consumer.ask(damage)
        except RestoreError:
            self.happened["refused"] += 1
            self.restore()
            return
        self.paths[self.consumer.view.number] = self.paths[before]

    def answer(self) -> None:
        known = {*self.producer.channel.lost}
        self.producer.answer()
        for epoch in {*self.producer.channel.lost} - known:
            self.happened["replaced"] += 1
            ends = [Position.of(part.end) for path in self.paths.values() for part in path]
            assert all(end.newest < epoch for end in ends), "nothing of it was ever read"

    def send(self, act: Act) -> None:
        """Commit epochs; the files of one that is computed again are others."""
        epochs, times, at = [], {}, self.producer.view.last_epoch
        lost = self.producer.channel.lost
        for n in range(1 + act.number % 3):
            self.serial += 1
            count = (act.more + n) % 4
            epochs.append([b"%d/%d;" % (self.serial, part) * (1 + part) for part in range(count)])
            if act.more > 4:
                times[at + n + 1] = 1_000 * self.serial
        self.producer.commit(*epochs, times=times)
        for epoch, files in enumerate(epochs, at + 1):
            if epoch in lost:
                self.first[epoch] = files
            if epoch not in self.first:
                self.first[epoch] = files
                self.times[epoch] = times.get(epoch, self.times.get(epoch - 1, 0))

    def take(self, act: Act) -> None:
        """Plan an epoch: as it was planned, where it was, or what is there now."""
        epoch = self.consumer.view.last_epoch + len(self.consumer.planned) + 1
        known = self.planned.get(epoch)
        if known is not None and known.start == self.consumer.position and act.more % 2:
            self.consumer.follow(known)
        else:
            part = self.consumer.take(max_rows=None if act.number == 9 else 1 + act.number * 6)
            if part is not None:
                known_time = part.detail["time_us"] or 0
                assert known_time == self.times.get(Position.of(part.end).epoch, 0)

    def check(self) -> None:
        everything = [data for epoch in sorted(self.first) for data in self.first[epoch]]
        read: list[bytes] = []
        consumer = self.consumer
        for part in (*self.paths[consumer.view.number], *consumer.planned):
            read += self.content(part)
        assert read == everything[: len(read)], "each row once, in order"
        for number in consumer.retained:
            self.check_readable(consumer.position_at(number))
        self.check_readable(Position.of(consumer.position))
        for part in consumer.planned:
            self.rows_of(part)

    def check_readable(self, at: Position) -> None:
        """From here, everything that was sent after it can be read, up to what is to be computed again."""
        reader = self.consumer.new_reader()
        part = reader.next(at.stored if at > Position() else None, None, 0)
        waits = [*self.producer.channel.lost]
        epoch, commit = self.consumer.view.asked.get(CHANNEL, (0, 0))
        if commit > self.producer.channel.answered and at.newest < epoch:
            waits.append(epoch)
        ready = [e for e in sorted(self.first) if e < min(waits, default=e + 1)]
        later = [(e, data) for e in ready for data in self.first[e] if e > at.epoch]
        assert [data for _, data in later[at.files :]] == (self.rows_of(part) if part else [])

    def rows_of(self, part: Slice) -> list[bytes]:
        """What a slice has, or would have without damage."""
        whole = MemoryStorage()
        whole.objects = {
            name: self.damaged.get(name, self.here.objects[name]) for name, *_ in part.detail["files"]
        }
        return rows_of(whole, part)

    def content(self, part: Slice) -> list[bytes]:
        """What a slice was to have, by positions alone."""
        start, end = Position.of(part.start), Position.of(part.end)
        files = [(e, n) for e in sorted(self.first) for n in range(len(self.first[e]))]
        wanted = [
            (e, n)
            for e, n in files
            if (e > start.epoch + 1 or (e == start.epoch + 1 and n >= start.files))
            and (e <= end.epoch or (e == end.epoch + 1 and n < end.files))
        ]
        found = [self.first[e][n] for e, n in wanted]
        assert sum(map(len, found)) == part.rows
        return found


def play(acts: list[Act]) -> Story:
    story = Story()
    with places(story.places):
        for act in acts:
            story.act(act)
            story.check()
    return story


@settings(max_examples=150, deadline=None)
@given(ACTS)
def test_what_was_sent_is_read_once_and_as_it_was_whatever_goes_back(acts: list[Act]) -> None:
    play(acts)


@settings(max_examples=30, deadline=None)
@given(ACTS)
def test_what_was_read_is_deleted_in_the_end(acts: list[Act]) -> None:
    story = play([act for act in acts if act.kind != "damage"])
    producer, consumer = story.producer, story.consumer
    with places(story.places):
        while producer.view.last_epoch < producer.channel.through:
            story.act(Act("send", 0, 1))
        old = [entry.name for entry in story.here.list(names.DATA)]
        for _ in range(12):
            for act in (Act("send", 0, 1), Act("take", 9, 0), Act("commit", 0, 0), Act("look", 0, 0)):
                story.act(act)
                story.check()
        producer.open()
        story.act(Act("look", 0, 0))
        for _ in range(4):
            story.act(Act("send", 0, 1))
    assert not {*old} & {entry.name for entry in story.here.list(names.DATA)}
    assert consumer.view.last_epoch


def drawn(seed: int) -> list[Act]:
    chance = random.Random(seed)
    return [Act(chance.choice(KINDS), chance.randrange(10), chance.randrange(10)) for _ in range(60)]


def found_out() -> bool:
    """Whether some story makes the check fail. Seeded, since the smallest such story is of no interest."""
    for seed in range(2_000):
        try:
            play(drawn(seed))
        except (AssertionError, HoldfastError):
            return True
    return False


def test_releasing_what_the_reader_has_committed_is_found_out() -> None:
    real = ChannelReading.look

    def hasty(self: ChannelReading) -> None:
        real(self)
        self.released = max(self.released, self.position.epoch)

    with patch.object(ChannelReading, "look", hasty):
        assert found_out()


def test_releasing_by_the_oldest_commit_alone_is_found_out() -> None:
    """One after it may be a rewind, and have read less."""
    real = ChannelReading.look

    def straight(self: ChannelReading) -> None:
        real(self)
        if self._view.number:
            oldest = self._history.view_at(self._view.given_up_below)
            self.released = max(self.released, self._position(oldest).epoch)

    with patch.object(ChannelReading, "look", straight):
        assert found_out()


def test_channels_that_go_back_with_a_rewind_are_found_out() -> None:
    def forgetful(head: Head, to: CheckpointView, *given: Any) -> CheckpointView:
        return replace(rewound(head, to, *given), channels=to.channels)

    with patch.object(commits, "rewound", forgetful), patch.object(history, "rewound", forgetful):
        assert found_out()


def test_sending_again_what_is_computed_again_is_found_out() -> None:
    with patch.object(EpochRunner, "_channels_of", lambda self, stream, epoch: ["clicks-in"]):
        assert found_out()


def test_damaged_epochs_are_replaced_and_refused() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        happened += play(drawn(seed)).happened
    assert happened.keys() == {"replaced", "refused"}


def test_replacing_what_was_read_is_found_out() -> None:
    with patch.object(epochs_again, "_refuse_if_read", lambda *given: None):
        assert found_out()


def test_reading_what_was_asked_for_before_the_answer_is_found_out() -> None:
    with patch.object(ChannelReader, "_ready_through", lambda self, at, channel: channel.ready_through):
        assert found_out()


def test_reading_past_what_is_to_be_computed_again_is_found_out() -> None:
    with patch.object(Channel, "ready_through", property(lambda self: self.through)):
        assert found_out()
