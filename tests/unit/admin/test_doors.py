"""Channels that lead out of a job, as the commands see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.admin.parts import channels_plainly
from holdfast.admin.remove_channel import remove_channel
from holdfast.admin.upgrade_check import Rehearsal, Start, rehearse
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store.records import ChannelState, LayoutRecord
from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.graph.streams import Declaration
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.runtime.parts.channel_kit import CHANNEL, Producer, door, lead


@pytest.fixture
def sender(tmp_path: Path) -> Producer:
    sender = Producer(LocalStorage(tmp_path), door(keep_epochs=2))
    sender.commit([b"a"], [b"b"], [b"c"])
    return sender


def rehearsed(sender: Producer, uid: str | None, allow_dropped_state: bool = False) -> Rehearsal:
    job = Declaration("job.main")
    rows = job.source(MemorySource([], schema="user string"), uid="clicks")
    rows.sink(MemorySink(), uid="out")
    if uid is not None:
        rows.sink(ChannelSink(), uid=uid)

    def no_spark() -> None:
        raise AssertionError("Spark was started")

    start = Start(allow_dropped_state=allow_dropped_state)
    return rehearse(job.graph(), sender.storage, no_spark, start)  # type: ignore[arg-type]


def told(found: Rehearsal, uid: str) -> list[tuple[str, str]]:
    return [(each.what, each.detail) for each in found.findings if each.name == uid]


def test_check_tells_what_becomes_of_a_door(sender: Producer) -> None:
    found = rehearsed(sender, CHANNEL)
    assert (told(found, CHANNEL), found.problems) == ([("kept", "holds epochs 2 to 3")], ())
    other = rehearsed(sender, "other")
    assert told(other, "other") == [("added", "a channel that begins with the next epoch")]
    (problem,) = other.problems
    assert "'clicks-in' holds 2 rows that other jobs may read" in problem
    assert rehearsed(sender, None, allow_dropped_state=True).problems == ()


def test_status_does_not_take_a_door_for_a_channel_that_the_job_has_no_more(sender: Producer) -> None:
    layout = LayoutRecord(job="job", parts=("main",))
    assert channels_plainly(layout, {"main": sender.view}, {}) == []


def test_a_door_stays_one_when_another_channel_is_removed(sender: Producer) -> None:
    states = sender.outlets.states(sender.view.channels)
    assert states is not None
    more = {**states, "former": ChannelState(through=3)}
    sender.outlets.states = lambda *_, **__: more  # type: ignore[method-assign]
    sender.say()
    assert sender.view.channels["former"] == Channel(through=3)
    lead(sender.storage)
    remove_channel(sender.storage, "former", None, ManualClock(), not_running=True)
    (left,) = History(sender.storage).load().channels.values()
    assert (left.kept, [file.epoch for file in left.files]) == (2, [2, 3])
