"""Commands for a part that a set of replicas leads: which members are there, and what is left of the set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.admin.brief_term import look_for_leader
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.chain.votes import cast
from holdfast.checkpoint.store.records import CommitRecord, VoteRecord
from holdfast.cli.status import lines
from holdfast.clock import SystemClock
from holdfast.errors import RetryableError
from holdfast.graph.protection import ActiveReplicas
from holdfast.runtime.control.request_server import Control
from holdfast.runtime.replica import join
from holdfast.storage.local_directory import LocalStorage
from tests.unit.cli.shell import call, refusal, text
from tests.unit.runtime.control.control_kit import FakeJob


class Set:
    """A set over a checkpoint. Its members run no job: they answer."""

    def __init__(self, path: Path, protection: ActiveReplicas, living: ExitStack) -> None:
        self.storage, self.clock, self._living = LocalStorage(path), SystemClock(), living
        open_checkpoint(self.storage, "fraud.scoring", 4, self.clock, identity="scoring")
        self.protection, self.joined = protection, dict[int, Any]()

    def join(self, seat: int, *, lives: bool = True, phase: str = "running", divergences: int = 0) -> None:
        joined = join(self.storage, self.protection, seat, f"process-{seat}", "f", 1, self.clock)
        self.joined[seat] = joined
        if lives:
            job = FakeJob(self.storage)
            job.monitor.update(phase=phase, epoch=9, divergences=divergences, term=joined.set.term)
            self._living.enter_context(
                Control(
                    self.storage, joined.set.term, job, self.clock, lambda text: None, grace_seconds=1,
                    process=joined.member.process, is_gone=lambda process: False,
                )
            )  # fmt: skip

    def commit(self, seat: int) -> CheckpointView:
        chain = Chain(self.storage)
        view, leader = chain.load(), self.joined[seat].set
        epoch = view.last_epoch + 1
        record = CommitRecord(
            term=leader.term, run=leader.run, first_epoch=epoch, last_epoch=epoch, clock_ms=1, parallelism=1,
            attempts={str(epoch): 1}, fingerprint="f", positions={}, seat=seat,
        )  # fmt: skip
        done = chain.commit(view, record)
        assert isinstance(done, Committed)
        return done.view

    def told(self) -> dict[str, Any]:
        (found,) = call("status", "--checkpoint", self.storage.url)
        return dict(found)

    def lines(self) -> dict[str, str]:
        return dict(lines(self.told()))


@pytest.fixture
def living() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(tmp_path: Path, living: ExitStack) -> Set:
    return Set(tmp_path, ActiveReplicas(k=1), living)


def test_every_member_is_asked_and_the_one_that_committed_last_has_the_lead(pair: Set) -> None:
    pair.join(1)
    pair.join(2, divergences=2)
    for seat in (1, 2):
        pair.commit(seat)
    found = pair.told()["replicas"]
    assert (found["lead"], found["running"], found["needed"], found["survives"]) == (2, 2, 1, 1)
    assert [(each["seat"], each["commit"]) for each in found["members"]] == [(1, 1), (2, 2)]
    assert [each["progress"]["divergences"] for each in found["members"]] == [0, 2]
    told = dict(lines(pair.told()))
    assert told["leader"].startswith("a set of 2 replicas, term 1, founded")
    assert told["replica 1"].startswith("running: ")
    assert "commit 1 is its own" in told["replica 1"]
    assert told["replica 2"].startswith("running, has the lead: ")
    assert told["replica 2"].endswith("DIVERGED 2 times")
    assert told["survives now"] == "2 of 2 members run: 1 more end of a member goes unnoticed"
    assert told["phase"] == "running"


def test_what_is_survived_is_counted_by_the_members_that_answer(pair: Set) -> None:
    pair.join(1)
    pair.join(2, lives=False)
    pair.commit(2)
    told = pair.lines()
    assert told["replica 2"].startswith("DOES NOT ANSWER: ")
    assert told["survives now"] == "1 of 2 members run: no more end of a member goes unnoticed"
    assert told["phase"] == "running", "the other one tells"


def test_a_member_that_is_joining_is_there_and_does_not_count(pair: Set) -> None:
    """It is not warm yet: were the other gone, the output would wait for its first epoch."""
    pair.join(1)
    pair.join(2, phase="joining")
    found = pair.told()["replicas"]
    assert (found["running"], found["joining"], found["survives"]) == (1, 1, 0)
    told = pair.lines()
    assert told["replica 2"].startswith("joining: ")
    assert told["survives now"] == "1 of 2 members run, 1 is joining: no more end of a member goes unnoticed"


def test_a_seat_that_no_process_has_taken_is_empty(pair: Set) -> None:
    pair.join(2, phase="restoring")
    told = pair.lines()
    assert told["replica 1"] == "EMPTY: no process has taken this seat yet"
    assert told["survives now"] == "0 of 2 members run, 1 is joining: nothing is committed until 1 runs"


def test_a_set_that_does_not_answer_tells_when_it_was_last_heard_of(pair: Set) -> None:
    pair.join(1, lives=False)
    told = pair.lines()["survives now"]
    assert told.startswith("0 of 2 members run: nothing is committed until 1 runs; the last sign of life is ")


def test_votes_that_are_there_and_those_that_are_wanted_are_told(tmp_path: Path, living: ExitStack) -> None:
    three = Set(tmp_path, ActiveReplicas(k=2, vote=True), living)
    three.join(1)
    three.join(2)
    view = three.commit(1)
    for seat, content in ((1, "aa"), (2, "bb")):
        cast(three.storage, VoteRecord(epoch=2, term=1, seat=seat, commit=view.number + 1, content=content))
    assert three.told()["replicas"]["votes"] == {"epoch": 2, "agreeing": [[1], [2]], "wanted": 2}
    told = three.lines()
    assert told["votes"] == "epoch 2: 1 agree; 2 agree; 2 are wanted"
    assert told["survives now"] == "2 of 3 members run: no more end of a member goes unnoticed"
    assert "with votes" in told["leader"]


def test_when_all_members_have_left_nothing_waits_for_them(pair: Set) -> None:
    pair.join(1, lives=False)
    pair.join(2, lives=False)
    pair.commit(1)
    with pytest.raises(RetryableError, match="neither answers nor said that it ended"):
        look_for_leader(pair.storage, pair.clock, "prune")
    for joined in pair.joined.values():
        joined.leave(pair.storage, pair.clock.now_ms())
    assert not look_for_leader(pair.storage, pair.clock, "prune").answers
    told = pair.lines()
    assert told["leader"].startswith(
        "nobody; the members of a set of 2 replicas, term 1, have left, the last"
    )
    assert told["replica 2"].startswith("EMPTY: ")
    assert "survives now" not in told
    assert "its members have left" in refusal("stop", "--checkpoint", pair.storage.url, code=75)
    assert "have left" in text("status", "--checkpoint", pair.storage.url)


def test_a_member_that_knows_no_commit_says_so(pair: Set) -> None:
    pair.join(1)
    told = pair.lines()["replica 1"]
    assert "has heard of no commit yet" in told
    assert "none yet" not in told
