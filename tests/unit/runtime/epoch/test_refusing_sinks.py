"""A sink that refuses what is committed: it waits for a person, and holds up no other."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.connectors.contract import StagedPart
from holdfast.errors import DefinitionError, Unavailable
from holdfast.graph.guarantees import Guarantee
from holdfast.runtime.epoch import outages, sink_queues
from holdfast.runtime.settings import Until
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import Shown, outcome
from tests.unit.runtime.epoch.test_sink_queues import Leading, commit

NO_TABLE = "the table is not there; create it"


class Strict(Shown):
    """A sink that refuses an epoch, or whose server is away, as long as a test says so."""

    def __init__(self, dedupes: bool = True) -> None:
        super().__init__(dedupes=dedupes)
        self.refuses, self.away = threading.Event(), threading.Event()
        self.tries = 0

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self.tries += 1
        if self.away.is_set():
            raise Unavailable("nobody listens")
        if self.refuses.is_set():
            raise DefinitionError(NO_TABLE)
        super().publish(epoch, parts)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.02)


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Callable[..., Leading]]:
    made: list[Leading] = []

    def make(*given: Any, **sinks: Any) -> Leading:
        made.append(Leading(tmp_path, *given, **sinks))
        return made[-1]

    yield make
    for each in made:
        each.work.close(wait=False)


def refused(job: Leading, uid: str) -> dict[str, Any]:
    wait_until(lambda: job.sinks[uid]["refused"] is not None, "it is refused")
    found: dict[str, Any] = job.sinks[uid]["refused"]
    return found


def test_a_sink_that_refuses_holds_up_no_other_and_goes_on_when_a_person_says_so(leading: Any) -> None:
    strict, alive = Strict(), Strict()
    job = leading(strict=strict, alive=alive)
    commit(job, 1)
    strict.refuses.set()
    for epoch in range(2, 12):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: alive.epochs == list(range(1, 12)), "the other sink shows all")
    job.work.check(0)
    told = refused(job, "strict")
    assert (told["tries"], "next_try_ms" in told) == (1, False)
    url = job.context.checkpoint.storage.url
    assert told["reason"] == (
        f"sink 'strict' cannot show epoch 2, which is committed: {NO_TABLE}; once that is mended, have the "
        f"sink tried again with `holdfast sinks retry strict --checkpoint {url}`, or start the job again if "
        "it has ended; or, to go on without showing it there, stop the job and put its rows aside with "
        f"`holdfast sinks set-aside strict --checkpoint {url} --to DIRECTORY`"
    )
    assert job.sinks["strict"]["unavailable"] is None
    assert (job.sinks["strict"]["epochs"], job.sinks["strict"]["through"]) == (10, 1)
    said = [text for text in job.said if text.startswith("REFUSED: ")]
    assert said == [f"REFUSED: {told['reason']}; all else goes on until its queue is full"]

    job.context.wishes.retry("strict")
    wait_until(lambda: refused(job, "strict")["tries"] == 2, "it is tried once more")
    assert strict.epochs == [1]
    strict.refuses.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == list(range(1, 12)), "it shows all, each once, in order")
    job.work.record_published()
    job.work.check(0)
    assert job.sinks["strict"]["refused"] is None
    assert job.work.view.published_through == {"strict": 11, "alive": 11}
    assert strict.tries == 1 + 2 + 10, "nobody tried it without a word"


def test_the_queue_of_a_sink_that_refuses_gets_full(leading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    strict = Strict()
    job = leading(strict=strict)
    strict.refuses.set()
    for epoch in (1, 2):
        job.work.submit([outcome(epoch)])
        job.work.check(0)
    assert (job.work.room, job.sinks["strict"]["full"]) == (0.0, True)


def test_a_run_that_is_told_to_stop_does_not_wait_for_it_and_the_next_start_shows_the_rest(
    leading: Any,
) -> None:
    strict, alive = Strict(), Strict()
    job = leading(strict=strict, alive=alive)
    strict.refuses.set()
    for epoch in (1, 2, 3):
        job.work.submit([outcome(epoch)])
    refused(job, "strict")
    job.context.wishes.stopping.set()
    job.work.record_published()
    job.work.close(wait=True)
    assert job.work.unpublished == {"strict": 3}
    assert Chain(job.context.checkpoint.storage).load().published_through == {"strict": 0, "alive": 3}
    strict.refuses.clear()
    again = leading(strict=strict, alive=alive)
    again.work.publish_recovered()
    again.work.record_published()
    assert strict.epochs == alive.epochs == [1, 2, 3]


def test_a_run_that_comes_to_its_end_ends_with_the_refusal_once_all_others_have_shown_all(
    leading: Any,
) -> None:
    strict, slow = Strict(), Strict()
    job = leading(strict=strict, slow=slow)
    strict.refuses.set()
    slow.wait.clear()
    for epoch in (1, 2):
        job.work.submit([outcome(epoch)])
    refused(job, "strict")
    job.work.record_published(look=slow.wait.set)
    job.work.close(wait=True)
    (why,) = job.work.refused.values()
    assert why.startswith("sink 'strict' cannot show epoch 1, which is committed: the table")
    assert (job.work.unpublished, job.work.uncommitted, job.work.is_cut_short) == ({"strict": 2}, 0, False)
    assert slow.epochs == [1, 2]
    assert Chain(job.context.checkpoint.storage).load().published_through == {"strict": 0, "slow": 2}


def test_a_sink_that_was_told_to_be_tried_again_is_waited_for_while_it_shows(leading: Any) -> None:
    strict = Strict()
    job = leading(strict=strict)
    strict.refuses.set()
    for epoch in (1, 2):
        job.work.submit([outcome(epoch)])
    refused(job, "strict")
    strict.refuses.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs != [], "it shows the first")
    job.work.record_published()
    job.work.close(wait=True)
    assert strict.epochs == [1, 2]


def test_with_at_least_once_a_repeating_sink_that_refuses_holds_up_its_commit(leading: Any) -> None:
    strict = Strict(dedupes=False)
    job = leading(Guarantee.AT_LEAST_ONCE, strict=strict)
    strict.refuses.set()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    assert job.work.view.last_epoch == 0
    strict.refuses.clear()
    job.context.wishes.retry("strict")
    job.work.check(0)
    assert (job.work.view.last_epoch, strict.epochs) == (1, [1])
    strict.refuses.set()
    job.work.submit([outcome(2)])
    told = refused(job, "strict")["reason"]
    assert told.startswith(
        f"sink 'strict' cannot show epoch 2, which is committed only after that: {NO_TABLE}"
    )
    assert told.endswith("; or, to go on without that sink, stop the job and start it without it")
    assert job.said[-1].endswith("; nothing is committed until then")


@pytest.mark.parametrize("asked", ["stopping", "draining", "exhausted"])
def test_with_at_least_once_a_run_that_is_to_end_does_not_wait_for_a_person(leading: Any, asked: str) -> None:
    """Nothing is lost: what is not committed is read again by the next start, and shown then."""
    strict, other, alive = Strict(dedupes=False), Strict(dedupes=False), Strict()
    until = Until.EXHAUSTED if asked == "exhausted" else Until.STOPPED
    job = leading(Guarantee.AT_LEAST_ONCE, until, strict=strict, other=other, alive=alive)
    commit_early(job, 1)
    strict.refuses.set()
    other.wait.clear()
    for epoch in (2, 3):
        job.work.submit([outcome(epoch)])
    refused(job, "strict")
    if asked != "exhausted":
        getattr(job.context.wishes, asked).set()
    assert (job.work.is_cut_short, job.work.settled) == (False, False), "others have not shown all yet"
    other.wait.set()
    job.work.record_published()
    job.work.close(wait=True)
    stored = Chain(job.context.checkpoint.storage).load()
    assert (stored.last_epoch, other.epochs, alive.epochs, strict.epochs) == (1, [1, 2], [1], [1])
    assert (job.work.unpublished, job.work.uncommitted) == ({"strict": 1}, 2)
    assert list(job.work.refused) == (["strict"] if asked == "exhausted" else [])
    strict.refuses.clear()
    alive._through = 1
    again = leading(Guarantee.AT_LEAST_ONCE, until, strict=strict, other=other, alive=alive)
    again.work.publish_recovered()
    for epoch in (2, 3):
        again.work.submit([outcome(epoch)])
    again.work.record_published()
    again.work.close(wait=True)
    assert (again.work.view.last_epoch, again.work.uncommitted, again.work.unpublished) == (3, 0, {})
    assert (strict.epochs, other.epochs, alive.epochs) == ([1, 2, 3], [1, 2, 2, 3], [1, 2, 3])


def commit_early(job: Leading, epoch: int) -> None:
    job.work.submit([outcome(epoch)])
    wait_until(lambda: job.work.unpublished == {} and job.work.view.last_epoch == epoch, "it is shown")


@pytest.mark.parametrize("asked", ["draining", "exhausted"])
def test_a_run_that_is_to_end_ends_when_the_queue_of_a_sink_that_refuses_is_full(
    leading: Any, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Once all others have shown everything, and only where it is to end."""
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 2)
    strict, slow = Strict(), Strict()
    until = Until.EXHAUSTED if asked == "exhausted" else Until.STOPPED
    job = leading(Guarantee.EXACTLY_ONCE, until, strict=strict, slow=slow)
    strict.refuses.set()
    slow.wait.clear()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    if asked == "draining":
        job.context.wishes.draining.set()
    assert not job.work.ends_without_room(), "there is room"
    job.work.submit([outcome(2)])
    job.work.check(0)
    assert (job.work.room, job.work.ends_without_room()) == (0.0, False)
    slow.wait.set()
    wait_until(lambda: job.work.unpublished == {"strict": 2}, "the other has shown all")
    assert job.work.ends_without_room()
    job.work.record_published()
    job.work.close(wait=True)
    assert (job.work.unpublished, job.work.uncommitted, slow.epochs) == ({"strict": 2}, 0, [1, 2])
    assert list(job.work.refused) == (["strict"] if asked == "exhausted" else [])
    assert Chain(job.context.checkpoint.storage).load().published_through == {"strict": 0, "slow": 2}


def test_a_run_that_is_not_to_end_waits_for_room_for_as_long_as_a_person_takes(
    leading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 1)
    strict = Strict()
    job = leading(strict=strict)
    strict.refuses.set()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    assert (job.work.room, job.work.ends_without_room(), job.work.is_cut_short) == (0.0, False, False)


def test_a_part_whose_end_was_cut_short_has_not_come_to_its_end(
    leading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads its channels would take what is there for all."""
    monkeypatch.setattr(sink_queues, "LIMIT_EPOCHS", 1)
    strict = Strict()
    job = leading(strict=strict)
    job.work._context = dataclasses.replace(job.context, root=job.context.checkpoint.storage)
    strict.refuses.set()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    job.context.wishes.draining.set()
    assert job.work.ends_without_room()
    job.work.record_published(ended=True)
    job.work.close(wait=True)
    assert not Chain(job.context.checkpoint.storage).load().ended


def test_a_server_that_is_waited_for_is_tried_at_once_when_a_person_says_so(
    leading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "FIRST_SECONDS", 3_600.0)
    monkeypatch.setattr(outages, "MOST_SECONDS", 3_600.0)
    strict = Strict()
    job = leading(strict=strict)
    strict.away.set()
    job.work.submit([outcome(1)])
    wait_until(lambda: job.sinks["strict"]["unavailable"] is not None, "it is waited for")
    strict.away.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == [1], "it is tried")


def test_a_server_that_goes_away_while_a_sink_refuses_is_waited_for_like_any(leading: Any) -> None:
    strict = Strict()
    job = leading(strict=strict)
    strict.refuses.set()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    strict.away.set()
    job.context.wishes.retry("strict")
    wait_until(lambda: job.sinks["strict"]["unavailable"] is not None, "it is waited for")
    assert job.sinks["strict"]["refused"] is None
    strict.away.clear()
    assert refused(job, "strict")["tries"] == 1, "it is there, and refuses again"


def test_what_another_process_has_shown_meanwhile_is_not_refused_any_more(leading: Any) -> None:
    strict = Strict()
    job = leading(strict=strict)
    strict.refuses.set()
    job.work.submit([outcome(1)])
    refused(job, "strict")
    job.publishing.learn({"strict": 1}, {"strict": 1})
    job.work.record_published()
    job.work.close(wait=True)
    wait_until(lambda: job.sinks["strict"]["refused"] is None, "it is said")
    assert strict.tries == 1
