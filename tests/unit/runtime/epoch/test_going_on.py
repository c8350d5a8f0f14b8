"""Where a job goes on (a node takes over, a run tries again) a sink that refuses it stops alone; a start is
refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.errors import DefinitionError, MachineError, RestoreError, SinkWentBack, Unavailable
from holdfast.runtime.epoch import outages
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch import test_committer
from tests.unit.runtime.epoch.test_committer import Shown, outcome
from tests.unit.runtime.epoch.test_refusing_sinks import refused
from tests.unit.runtime.epoch.test_sink_queues import Leading, commit

NO_RIGHT = "the table of rejects cannot be made; grant it"
WENT_BACK = "sink 'strict' went back: bring back a newer copy"


class Strict(Shown):
    """A sink with a mark, at which a test lets fail what it names: `check`, `mark`, `begin` or `publish`."""

    def __init__(self, dedupes: bool = True) -> None:
        super().__init__(dedupes=dedupes)
        self.fails: dict[str, Exception] = {}
        self.did: list[str] = []

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    def check(self) -> None:
        self._do("check")

    def mark(self) -> Mark | None:
        self._do("mark")
        return Mark(max(self.epochs, default=0))

    def begin(self, through: int) -> None:
        self._do("begin")

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self._do("publish")
        super().publish(epoch, parts)


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    def sink(shown: Shown) -> Any:
        check = getattr(shown, "check", lambda: None)
        return SimpleNamespace(exactly_once=shown.dedupes, publisher=lambda job, uid: shown, check=check)

    monkeypatch.setattr(test_committer, "_Sink", sink)
    monkeypatch.setattr(outages, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.02)


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[Callable[..., Leading]]:
    """A leader of a job whose sinks have taken it before, as far as a loop takes it before its first plan."""
    made: list[Leading] = []

    def make(asked: bool = False, **sinks: Any) -> Leading:
        made.append(Leading(tmp_path, goes_on=True, asked=asked, **sinks))
        made[-1].publishing.begin()
        made[-1].work.publish_recovered()
        return made[-1]

    yield make
    for each in made:
        each.work.close(wait=False)


def told_how(job: Leading) -> int:
    """How often it was said how to have the sink tried again."""
    command = f"`holdfast sinks retry strict --checkpoint {job.context.checkpoint.storage.url}`"
    return sum(text.startswith("REFUSED: ") and command in text for text in job.said)


def looked(job: Leading) -> bool:
    """What the leading thread does between two epochs; raises what has ended the run."""
    job.work.check(0)
    return False


@pytest.mark.parametrize("what", ["check", "begin"])
def test_a_sink_that_refuses_the_job_stops_alone_and_goes_on_when_a_person_says_so(
    going_on: Any, what: str
) -> None:
    strict, alive = Strict(), Strict()
    strict.fails[what] = DefinitionError(NO_RIGHT)
    job = going_on(strict=strict, alive=alive)
    told = refused(job, "strict")
    assert told["reason"].startswith(
        f"sink 'strict' cannot begin: {NO_RIGHT}; once that is mended, have the "
    )
    assert told_how(job) == 1
    for epoch in range(1, 6):
        job.work.submit([outcome(epoch)])
    wait_until(lambda: alive.epochs == [1, 2, 3, 4, 5], "the other sink shows all")
    job.work.check(0)
    assert (strict.epochs, job.sinks["strict"]["epochs"], told["tries"]) == ([], 5, 1)
    job.context.wishes.retry("strict")
    wait_until(lambda: refused(job, "strict")["tries"] == 2, "it is tried once more")
    strict.fails.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == [1, 2, 3, 4, 5], "it shows all, in order")
    job.work.record_published()
    job.work.close(wait=True)
    assert job.sinks["strict"]["refused"] is None
    assert strict.did.count(what) == 3, "nobody tried it without a word"
    assert strict.did.count("begin") == (3 if what == "begin" else 1)


def test_a_start_is_refused_and_the_sink_is_named(tmp_path: Path) -> None:
    strict, other = Strict(), Strict()
    strict.fails["begin"] = DefinitionError(NO_RIGHT)
    job = Leading(tmp_path, strict=strict, other=other)
    with pytest.raises(DefinitionError, match=f"^sink 'strict' cannot begin: {NO_RIGHT}$"):
        job.publishing.begin()
    job.work.close(wait=False)
    assert "check" not in strict.did, "a start has checked it before"


def test_a_start_on_which_a_sink_went_back_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    strict, other = Strict(), Strict()
    strict.fails["mark"] = SinkWentBack(WENT_BACK)
    with pytest.raises(SinkWentBack, match="went back"):
        Leading(tmp_path, strict=strict, other=other)
    assert "begin" not in strict.did + other.did


@pytest.mark.parametrize("what", ["mark", "begin", "publish"])
def test_a_sink_that_went_back_stops_alone_and_goes_on_when_it_is_back(going_on: Any, what: str) -> None:
    strict, alive = Strict(), Strict()
    strict.fails[what] = SinkWentBack(WENT_BACK)
    job = going_on(strict=strict, alive=alive)
    job.work.submit([outcome(1)])
    assert refused(job, "strict")["reason"] == WENT_BACK
    assert told_how(job) == 1
    job.work.submit([outcome(2)])
    wait_until(lambda: alive.epochs == [1, 2], "the other sink shows all")
    job.work.check(0)
    strict.fails.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == [1, 2], "it shows all")


def test_what_a_sink_shows_by_then_is_not_shown_again(going_on: Any) -> None:
    """It came back from a newer copy."""
    first = Strict()
    before = going_on(strict=first)
    commit(before, 1, 2)
    before.work.submit([outcome(3)])
    before.work.check(0)
    wait_until(lambda: first.epochs == [1, 2, 3], "it shows what no commit knows to be shown")
    before.work.close(wait=False)
    strict = Strict()
    strict.fails["mark"] = SinkWentBack(WENT_BACK)
    job = going_on(strict=strict)
    refused(job, "strict")
    job.work.submit([outcome(4)])
    job.work.check(0)
    strict.fails.clear()
    strict.epochs = [1, 2, 3]
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == [1, 2, 3, 4], "it goes on")


def test_a_sink_that_comes_back_with_what_no_commit_knows_is_not_gone_on_with(going_on: Any) -> None:
    """The checkpoint lost its newest commits: those epochs were planned again, without its word."""
    strict = Strict()
    strict.fails["mark"] = SinkWentBack(WENT_BACK)
    job = going_on(strict=strict)
    refused(job, "strict")
    for epoch in (1, 2, 3):
        job.work.submit([outcome(epoch)])
    job.work.check(0)
    strict.fails.clear()
    strict.epochs = [1, 2]
    job.context.wishes.retry("strict")
    with pytest.raises(RestoreError, match="shows epochs up to 2, and this checkpoint ended with epoch 0"):
        wait_until(lambda: looked(job), "the run ends")
    assert strict.epochs == [1, 2]


@pytest.mark.parametrize(
    "refusal", [DefinitionError("the marks may not be read"), MachineError("no client"), ValueError("odd")]
)
def test_a_sink_that_does_not_say_what_it_shows_is_refused_all_the_same(
    going_on: Any, refusal: Exception
) -> None:
    """What is to be planned depends on it."""
    strict = Strict()
    strict.fails["mark"] = refusal
    with pytest.raises(type(refusal)):
        going_on(strict=strict)


def test_a_sink_that_was_asked_in_this_run_stops_alone_also_where_it_does_not_say_what_it_shows(
    going_on: Any,
) -> None:
    """What it shows the commits know by then."""
    strict, alive = Strict(), Strict()
    strict.fails["mark"] = DefinitionError("the marks may not be read")
    job = going_on(asked=True, strict=strict, alive=alive)
    why = refused(job, "strict")["reason"]
    assert why.startswith("sink 'strict' cannot begin: the marks may not be read; once that is mended")
    job.work.submit([outcome(1)])
    wait_until(lambda: alive.epochs == [1], "the other sink shows it")
    strict.fails.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: strict.epochs == [1], "it goes on")


def test_a_sink_by_which_nothing_is_planned_is_opened_later(going_on: Any) -> None:
    strict, alive = Strict(dedupes=False), Strict()
    strict.fails["mark"] = DefinitionError(NO_RIGHT)
    job = going_on(strict=strict, alive=alive)
    refused(job, "strict")
    job.work.submit([outcome(1)])
    wait_until(lambda: alive.epochs == [1], "the other sink shows it")


def test_a_run_at_its_end_does_not_wait_for_a_sink_that_nothing_waits_for(going_on: Any) -> None:
    strict, alive = Strict(), Strict()
    before = going_on(strict=strict, alive=alive)
    commit(before, 1)
    before.work.close(wait=True)
    strict.fails["begin"] = DefinitionError(NO_RIGHT)
    job = going_on(strict=strict, alive=alive)
    refused(job, "strict")
    assert job.sinks["strict"]["epochs"] == 0
    job.work.record_published()
    job.work.close(wait=True)
    assert "sink 'strict' cannot begin" in job.work.refused["strict"]


def test_a_sink_that_is_away_is_waited_for_by_its_own_thread(going_on: Any) -> None:
    strict, alive = Strict(), Strict()
    strict.fails["begin"] = Unavailable("nobody listens")
    job = going_on(strict=strict, alive=alive)
    job.work.submit([outcome(1)])
    wait_until(lambda: alive.epochs == [1], "the other sink shows it")
    wait_until(lambda: job.sinks["strict"]["unavailable"] is not None, "it is waited for")
    strict.fails.clear()
    wait_until(lambda: strict.epochs == [1], "it is there again")


def test_what_a_sink_may_have_to_show_again_is_kept_until_it_takes_the_job(going_on: Any) -> None:
    strict = Strict()
    strict.fails["begin"] = DefinitionError(NO_RIGHT)
    job = going_on(strict=strict)
    refused(job, "strict")
    for epoch in range(1, 31):
        job.work.submit([outcome(epoch)])
    job.work.check(0)
    assert job.work.view.retained_from == 1
    strict.fails.clear()
    job.context.wishes.retry("strict")
    wait_until(lambda: len(strict.epochs) == 30, "it has shown all")
    job.work.submit([outcome(31)])
    job.work.check(0)
    assert job.work.view.retained_from > 1


def test_a_member_of_a_set_is_not_done_with_a_sink_that_it_could_not_bind(going_on: Any) -> None:
    """Another member has shown the epoch: this one has still to be let in."""
    strict = Strict()
    strict.fails["begin"] = DefinitionError(NO_RIGHT)
    job = going_on(strict=strict)
    job.work.submit([outcome(1)])
    job.work.check(0)
    refused(job, "strict")
    strict.epochs = [1]
    job.publishing.learn({"strict": 1}, {"strict": 1})
    job.context.wishes.retry("strict")
    wait_until(lambda: refused(job, "strict")["tries"] == 2, "it is tried when a person says so")
    assert not job.publishing.has_shown("strict", 1)
