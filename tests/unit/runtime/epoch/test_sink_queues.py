"""One queue and one thread per sink: a sink that is away holds up no other, and no stop for ever."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.store.records import Extent, StagedFile
from holdfast.connectors.contract import StagedPart
from holdfast.errors import RetryableError, StorageError, Unavailable
from holdfast.graph.guarantees import Guarantee
from holdfast.runtime.epoch import outages, sink_queues
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.leader_context import LeaderContext, ToldToStop
from holdfast.runtime.parts.outlets import Outlets
from holdfast.runtime.settings import Until
from holdfast.storage.local_directory import LocalStorage
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import Shown, context_of, outcome

LONG = 60.0


class Server(Shown):
    """A sink whose server may be away."""

    def __init__(self, dedupes: bool = True) -> None:
        super().__init__(dedupes=dedupes)
        self.away = threading.Event()
        self.tries = 0

    def published_through(self) -> int:
        self._reach()
        return 0

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self._reach()
        super().publish(epoch, parts)

    def _reach(self) -> None:
        self.tries += 1
        if self.away.is_set():
            raise Unavailable("nobody listens at sink.example")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.02)


class Leading:
    """A committer with two sinks, and what it says."""

    def __init__(
        self,
        root: Path,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        until: Until = Until.STOPPED,
        goes_on: bool = False,
        asked: bool = False,
        **sinks: Shown,
    ) -> None:
        self.context = context_of(LocalStorage(root), sinks)
        settings = dataclasses.replace(
            self.context.settings, guarantee=guarantee, until=until, stop_within=0.05
        )
        self.context = dataclasses.replace(self.context, settings=settings, goes_on=goes_on, asked=asked)
        self.said: list[str] = []
        self.context.monitor._messages.append(self.said.append)
        view = self.context.checkpoint.chain.load()
        self.publishing = Publishing(self.context, view)
        self.work = Committer(self.context, self.publishing, view, (), Outlets((), self.context.clock))

    @property
    def sinks(self) -> dict[str, dict[str, Any]]:
        assert self.work.room >= 0
        return self.context.monitor.progress.sinks


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Callable[..., Leading]]:
    made: list[Leading] = []

    def make(*given: Any, **sinks: Any) -> Leading:
        made.append(Leading(tmp_path, *given, **sinks))
        return made[-1]

    yield make
    for each in made:
        each.work.close(wait=False)


def commit(job: Leading, *epochs: int) -> None:
    """Commit epochs, and wait until they are shown."""
    for epoch in epochs:
        job.work.submit([outcome(epoch)])
    job.work.record_published()


def test_a_sink_that_is_away_holds_up_neither_commits_nor_other_sinks(leading: Any) -> None:
    dead, alive = Server(), Server()
    job = leading(dead=dead, alive=alive)
    dead.away.set()
    for epoch in range(1, 11):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: alive.epochs == list(range(1, 11)), "the sinks come there")
    job.work.check(0)
    assert (dead.epochs, job.work.view.last_epoch) == ([], 10)
    told = job.sinks["dead"]
    assert (told["epochs"], told["through"]) == (10, 0)
    assert "nobody listens" in told["unavailable"]["reason"]
    assert job.sinks["alive"]["unavailable"] is None
    dead.away.clear()
    job.work.record_published()
    assert dead.epochs == list(range(1, 11))
    assert job.said[0].startswith("WAITING for the server of sink 'dead': nobody listens at sink.example")
    assert any("is there again" in text for text in job.said)


def test_a_sink_that_hangs_holds_up_neither_commits_nor_other_sinks(leading: Any) -> None:
    stuck, alive = Shown(), Shown()
    stuck.wait.clear()
    job = leading(stuck=stuck, alive=alive)
    for epoch in range(1, 6):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: alive.epochs == [1, 2, 3, 4, 5], "the sinks come there")
    stuck.wait.set()
    job.work.record_published()
    assert stuck.epochs == [1, 2, 3, 4, 5]


def test_a_full_queue_leaves_less_room_and_then_none(leading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 4)
    dead = Server()
    job = leading(dead=dead)
    dead.away.set()
    rooms = []
    for epoch in range(1, 5):
        job.work.submit([outcome(epoch)])
        job.work.check(0)
        rooms.append(job.work.room)
    assert rooms == [1.0, 1.0, 0.5, 0.0]
    assert job.sinks["dead"]["full"]
    assert [text for text in job.said if text.startswith("FULL")] == [
        "FULL: 4 epochs wait for sink 'dead'; nothing more is read until it has shown some"
    ]
    dead.away.clear()
    wait_until(lambda: dead.epochs == [1, 2, 3, 4], "the sinks come there")
    wait_until(lambda: job.work.room == 1.0, "the sinks come there")


def test_a_queue_is_full_by_the_bytes_that_wait_too(leading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_BYTES", 100)
    dead = Server()
    job = leading(dead=dead)
    dead.away.set()
    large = outcome(1)
    extent = Extent(object="data/1", offset=0, length=100, checksum="")
    large.staged.append(StagedFile(epoch=1, stream="stream", sinks=("dead",), part=0, rows=1, extent=extent))
    job.work.submit([large])
    job.work.check(0)
    assert job.work.room == 0.0
    assert job.sinks["dead"]["bytes"] == 100


def test_a_stop_does_not_wait_for_ever_and_the_next_start_shows_the_rest(leading: Any) -> None:
    dead, alive = Server(), Server()
    job = leading(dead=dead, alive=alive)
    dead.away.set()
    for epoch in (1, 2, 3):
        job.work.submit([outcome(epoch)])
    job.context.wishes.stopping.set()
    job.work.record_published()
    job.work.close(wait=True)
    assert job.work.unpublished == {"dead": 3}
    assert Chain(job.context.checkpoint.storage).load().published_through == {"dead": 0, "alive": 3}
    dead.away.clear()
    again = leading(dead=dead, alive=alive)
    again.work.publish_recovered()
    again.work.record_published()
    assert (dead.epochs, again.work.unpublished) == ([1, 2, 3], {})
    assert again.work.close(wait=True) is None
    assert again.work.view.published_through == {"dead": 3, "alive": 3}


def test_a_stop_does_not_wait_for_ever_for_a_sink_that_hangs(leading: Any) -> None:
    stuck = Shown()
    stuck.wait.clear()
    job = leading(stuck=stuck)
    job.work.submit([outcome(1)])
    job.context.wishes.stopping.set()
    job.work.record_published()
    job.work.close(wait=True)
    job.publishing.close()
    assert job.work.unpublished == {"stuck": 1}
    assert not stuck.closed, "its own thread is still using it"
    stuck.wait.set()
    wait_until(lambda: stuck.closed, "the sinks come there")


def test_without_a_stop_the_end_waits_until_sinks_have_shown_all(leading: Any) -> None:
    dead = Server()
    job = leading(dead=dead)
    dead.away.set()
    job.work.submit([outcome(1)])
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            dead.away.clear()

    job.work.record_published(look=look)
    assert dead.epochs == [1]


def test_after_an_epoch_that_a_sink_failed_on_others_are_shown_theirs(leading: Any) -> None:
    bad, good = Shown(), Shown()
    bad.failing = {2}
    job = leading(bad=bad, good=good)
    with pytest.raises(StorageError, match="refused epoch 2"):
        commit(job, 1, 2, 3)
    wait_until(lambda: len(good.epochs) >= 2, "the sinks come there")
    assert bad.epochs == [1]


def test_with_at_least_once_nothing_is_committed_that_a_repeating_sink_has_not_shown(leading: Any) -> None:
    dead, deduping = Server(dedupes=False), Server()
    job = leading(Guarantee.AT_LEAST_ONCE, dead=dead, deduping=deduping)
    dead.away.set()
    job.work.submit([outcome(1)])
    wait_until(lambda: dead.tries > 3, "the sinks come there")
    assert (job.work.view.last_epoch, deduping.epochs) == (0, [])
    job.context.wishes.stopping.set()
    job.work.submit([outcome(2)])
    job.work.record_published()
    job.work.close(wait=True)
    assert (job.work.uncommitted, job.work.unpublished, job.work.refused) == (2, {"dead": 1}, {})
    assert Chain(job.context.checkpoint.storage).load().number == 0
    assert deduping.epochs == []


def test_a_drain_waits_for_a_server_that_is_away_before_a_commit_no_longer_than_a_stop_does(
    leading: Any,
) -> None:
    dead, alive = Server(dedupes=False), Server()
    job = leading(Guarantee.AT_LEAST_ONCE, dead=dead, alive=alive)
    commit(job, 1)
    dead.away.set()
    job.work.submit([outcome(2)])
    wait_until(lambda: dead.tries > 3, "the sink is waited for")
    job.context.wishes.draining.set()
    job.work.record_published()
    job.work.close(wait=True)
    assert (job.work.uncommitted, job.work.unpublished) == (1, {"dead": 1})
    assert Chain(job.context.checkpoint.storage).load().last_epoch == 1
    ending = [text for text in job.said if text.startswith("ENDING before all is read: ")]
    assert [text.count("sink 'dead'") for text in ending] == [1]


def test_a_drain_without_room_waits_for_a_server_that_is_away_no_longer_than_a_stop_does(
    leading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    dead = Server()
    job = leading(dead=dead)
    dead.away.set()
    for epoch in (1, 2):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: job.work.room == 0.0, "it is full")
    assert not job.work.ends_without_room(), "nobody has asked it to end"
    job.context.wishes.draining.set()
    wait_until(job.work.ends_without_room, "it has waited for as long as a stop does")


def test_a_run_that_comes_to_its_end_by_itself_waits_for_a_server_for_as_long_as_it_takes(
    leading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    dead = Server()
    job = leading(Guarantee.EXACTLY_ONCE, Until.EXHAUSTED, dead=dead)
    dead.away.set()
    for epoch in (1, 2):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: dead.tries > 20, "the sink is waited for")
    assert (job.work.room, job.work.ends_without_room()) == (0.0, False)


def test_with_at_least_once_nothing_is_committed_when_a_run_ends_before_a_repeating_sink_has_it(
    leading: Any,
) -> None:
    dead = Server(dedupes=False)
    job = leading(Guarantee.AT_LEAST_ONCE, dead=dead)
    dead.away.set()
    job.work.submit([outcome(1)])
    wait_until(lambda: dead.tries > 1, "the sink is waited for")
    job.work.close(wait=False)
    assert (Chain(job.context.checkpoint.storage).load().last_epoch, dead.epochs) == (0, [])


def test_with_at_least_once_nothing_is_committed_after_a_repeating_sink_has_failed(leading: Any) -> None:
    """Also where it failed on what it was given before, at the start."""
    bad = Shown(dedupes=False)
    bad.failing = {1}
    job = leading(Guarantee.AT_LEAST_ONCE, bad=bad)
    job.work._queues.put(1, 1, [], sink_queues.Recipients.ALL)
    with pytest.raises(StorageError, match="refused epoch 1"):
        commit(job, 2)
    assert Chain(job.context.checkpoint.storage).load().last_epoch == 0


def test_a_run_that_fails_does_not_wait_for_a_server_that_is_away(leading: Any) -> None:
    dead = Server()
    job = leading(dead=dead)
    dead.away.set()
    job.work.submit([outcome(1)])
    wait_until(lambda: dead.tries > 3, "the sinks come there")
    job.work.close(wait=False)
    tries = dead.tries
    job.work.publish([outcome(2)])
    assert (dead.epochs, dead.tries) == ([], tries)


def test_a_server_that_is_away_at_the_start_is_waited_for_and_shown(tmp_path: Path) -> None:
    dead = Server()
    dead.away.set()
    context = context_of(LocalStorage(tmp_path), {"dead": dead})
    opened: list[Publishing] = []
    start = threading.Thread(
        target=lambda: opened.append(Publishing(context, context.checkpoint.chain.load())), daemon=True
    )
    start.start()
    wait_until(lambda: dead.tries > 3, "the sinks come there")
    assert "nobody listens" in context.monitor.progress.sinks["dead"]["unavailable"]["reason"]
    dead.away.clear()
    start.join(LONG)
    assert opened
    assert context.monitor.progress.sinks["dead"]["unavailable"] is None


def test_a_stop_while_waiting_at_the_start_ends_it(tmp_path: Path) -> None:
    dead = Server()
    dead.away.set()
    context: LeaderContext = context_of(LocalStorage(tmp_path), {"dead": dead})
    context.wishes.stopping.set()
    with pytest.raises(ToldToStop, match="sink 'dead'"):
        Publishing(context, context.checkpoint.chain.load())
    assert dead.closed


def test_the_first_failure_is_the_one_that_is_raised(leading: Any) -> None:
    """Though threads that were never started, and one that is left behind, are ended after it."""
    job = leading(idle=Shown(), other=Shown())

    def die() -> None:
        try:
            raise RetryableError("the first one")
        finally:
            job.work.close(wait=False)

    with pytest.raises(RetryableError, match="the first one"):
        die()
