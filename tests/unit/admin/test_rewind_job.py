"""A whole job in parts goes back to a barrier, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from holdfast.admin import brief_term
from holdfast.admin.rewind_job import outlook_of_job, retained_barriers, rewind_job
from holdfast.checkpoint.chain.barriers import begin_barrier, end_barrier
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.layout import keep_layout, read_layout
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.terms import claim
from holdfast.cli.main import app
from holdfast.errors import RestoreError, RetryableError
from holdfast.storage.urls import open_storage
from holdfast.testing.clocks import ManualClock
from tests.unit.cli.shell import call, refusal, text
from tests.unit.runtime.parts.channel_kit import CHANNEL, lead, leave, plan_of
from tests.unit.runtime.parts.test_job_savepoint import TwoParts


@pytest.fixture
def job(tmp_path: Path) -> TwoParts:
    """Barrier 1 went through both parts, which have gone on since."""
    made = TwoParts(tmp_path)
    root = open_storage(made.root)
    begin_barrier(root, "test", 0, 1_000)
    made.producer.say(barrier=1)
    while made.consumer.take() is not None:
        made.consumer.commit()
    made.consumer.say(1)
    commits = {"main": made.producer.view.number, "scoring": made.consumer.view.number}
    end_barrier(root, 1, "complete", 5, commits)
    Plans(made.producer.storage).write(plan_of(3))
    made.producer.commit([b"later"])
    made.consumer.take()
    made.consumer.commit()
    for end in (made.producer, made.consumer):
        lead(end.storage)
        leave(end.storage)
    return made


def views(job: TwoParts) -> list[tuple[int, object]]:
    main, scoring = (History(end.storage).load() for end in (job.producer, job.consumer))
    return [(main.last_epoch, main.positions["clicks"]), (scoring.last_epoch, scoring.positions[CHANNEL])]


def test_all_parts_go_back_to_the_commits_that_carry_the_barrier(job: TwoParts) -> None:
    assert views(job) == [(3, 3), (2, [3, 0])]
    assert [each.number for each in retained_barriers(job.root)] == [1]
    done = rewind_job(job.root, 1, ManualClock())
    assert {name: each.commit is not None for name, each in done.items()} == {"main": True, "scoring": True}
    assert views(job) == [(2, 2), (1, [2, 0])]
    # What was interrupted may be called again.
    assert {each.commit for each in rewind_job(job.root, 1, ManualClock()).values()} == {None}


def test_what_was_sent_is_read_again_after_it(job: TwoParts) -> None:
    rewind_job(job.root, 1, ManualClock())
    job.consumer.open()
    part = job.consumer.take()
    assert part is not None
    assert (part.start, part.end, part.rows) == ([2, 0], [3, 0], len(b"later"))


def test_a_barrier_that_did_not_end_or_is_not_retained_is_refused(job: TwoParts) -> None:
    for wanted in (2, 999, 0, -1):
        told = rf"there is no barrier {wanted} in .*; choose one of 1, the newest are 1 \(\d{{4}}-.* UTC\)"
        with pytest.raises(RestoreError, match=told):
            outlook_of_job(job.root, wanted)
    begin_barrier(open_storage(job.root), "test", 0, 60_000)
    with pytest.raises(RestoreError, match=r"barrier 2 of .* cannot be gone back to: it has not ended"):
        outlook_of_job(job.root, 2)
    for _ in range(4):
        job.producer.commit([b"x"])
    with pytest.raises(
        RestoreError, match=r"not every part retains its commit; there is none to go back to: .*--barrier"
    ):
        rewind_job(job.root, 1, ManualClock())


def test_a_barrier_of_before_the_job_had_a_part_is_refused(job: TwoParts) -> None:
    root = open_storage(job.root)
    layout = read_layout(root)
    assert layout is not None
    keep_layout(root, replace(layout, parts=(*layout.parts, "late")), False)
    assert retained_barriers(job.root) == []
    told = r"barrier 1 of .* cannot be gone back to: it did not go through part .late., which the job has"
    with pytest.raises(RestoreError, match=told):
        outlook_of_job(job.root, 1)


def test_no_part_goes_back_while_one_may_run_or_is_damaged(job: TwoParts) -> None:
    before = views(job)
    claim(job.consumer.storage, "run", "host", 1, 0)
    with pytest.raises(RetryableError, match="neither answers nor"):
        rewind_job(job.root, 1, ManualClock())
    assert views(job) == before


def test_the_command_goes_back_with_the_whole_job(job: TwoParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.1)
    given = ["rewind", "--checkpoint", job.root, "--to", "1", "--yes", "--json"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["barrier"] == 1
    assert {name: part["to_epoch"] for name, part in told["parts"].items()} == {"main": 2, "scoring": 1}
    assert views(job) == [(2, 2), (1, [2, 0])]


def test_what_can_be_gone_back_to_is_listed(job: TwoParts) -> None:
    (one,) = call("rewind", "--list", "--checkpoint", job.root)
    assert (one["number"], {*one["commits"]}) == (1, {"main", "scoring"})
    commits = f"main {one['commits']['main']}, scoring {one['commits']['scoring']}"
    assert commits in text("rewind", "--list", "--checkpoint", job.root)
    found = call("rewind", "--list", "--checkpoint", job.producer.storage.url)
    numbers = [each["number"] for each in found]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == 1
    assert found[0]["epoch"] == 3
    told = refusal("rewind", "--checkpoint", job.root, code=2)
    assert "--to N, or see what there is with --list" in told
