"""The commands that talk to a running job: against real storage, and a leader that is no Spark job."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from holdfast.admin import status as admin_status
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.terms import EndedRecord, claim, record_ending
from holdfast.checkpoint.log.incidents import record_failure
from holdfast.checkpoint.log.requests import Requests, State, read_asked
from holdfast.checkpoint.store.log_records import FailureRecord
from holdfast.cli import leader_requests, main
from holdfast.cli import status as status_command
from holdfast.clock import SystemClock
from holdfast.errors import DefinitionError, RetryableError, StorageError
from holdfast.runtime.control.request_server import Control
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.kept import draft
from tests.unit.runtime.control.control_kit import FakeJob


class Place:
    """A checkpoint of three commits, and the job that a leader would run on it."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self.storage = LocalStorage(path)
        self.job = FakeJob(self.storage)
        chain = open_checkpoint(self.storage, "orders", 4, SystemClock(), identity="i").chain
        view = chain.load()
        for _ in range(3):
            view = chain.commit(view, draft(view)).view
        self.term = claim(self.storage, "run-1", "node-a", 4711, SystemClock().now_ms())

    def requests(self) -> list[str]:
        return [entry.name for entry in self.storage.list("requests/")]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ck")


@pytest.fixture
def led(place: Place) -> Iterator[Place]:
    with Control(place.storage, place.term, place.job, SystemClock(), lambda text: None, grace_seconds=1):
        yield place


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a leader that is not there."""
    monkeypatch.setattr(leader_requests, "TAKEN_SECONDS", 0.3)
    monkeypatch.setattr(status_command, "ANSWER_SECONDS", 0.3)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, list(arguments), env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def test_rescale_tells_the_leader_and_waits_for_its_answer(led: Place) -> None:
    code, out, _ = run("rescale", "--parallelism", "8", "--checkpoint", led.url)
    assert (code, out) == (0, "rescale: done\n")
    assert led.job.calls == [("rescale", 8)]


def test_a_sink_is_tried_again_by_the_leader_and_it_is_said_what_came_of_it(led: Place) -> None:
    led.job.given = 42
    code, out, _ = run("sinks", "retry", "out", "--checkpoint", led.url)
    assert (code, out) == (0, "retry: done (epoch 42)\n")
    led.job.refusal = RetryableError("it was tried, and refuses again: no such table; make it")
    code, out, err = run("sinks", "retry", "out", "--checkpoint", led.url)
    assert (code, out) == (1, "")
    told = "error: retry failed: it was tried, and refuses again: no such table; make it"
    assert err.splitlines()[-1] == told
    assert led.job.calls == [("retry", "out")] * 2


def test_a_sink_that_shows_for_long_keeps_no_other_request_waiting(
    led: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "ANSWER_SECONDS", 10.0)
    led.job.gate.clear()
    try:
        code, _, err = run("sinks", "retry", "out", "--checkpoint", led.url, "--timeout", "2s")
        assert (code, "retry is still running after 2s" in err) == (75, True)
        assert json.loads(run("status", "--checkpoint", led.url, "--json")[1])["progress"] is not None
    finally:
        led.job.gate.set()


def test_a_savepoint_under_a_relative_path_is_taken_where_the_asker_stands(
    led: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    led.job.given = {"id": "sp-1", "commit": 3, "written_by": "holdfast"}
    code, out, _ = run("savepoint", "sp", "--format", "canonical", "--checkpoint", "ck")
    assert (code, out) == (0, f"savepoint: done (id sp-1, commit 3, at {tmp_path}/sp)\n")
    assert led.job.calls == [("savepoint", f"{tmp_path}/sp", "canonical")]


def test_a_savepoint_beside_sinks_that_are_behind_says_so(led: Place, tmp_path: Path) -> None:
    led.job.given = {"id": "sp-1", "waiting": "7 epochs for sink 'out' are still to be shown"}
    code, out, _ = run("savepoint", f"{tmp_path}/sp", "--checkpoint", led.url)
    more = "7 epochs for sink 'out' are still to be shown"
    assert (code, out) == (0, f"savepoint: done (id sp-1, at {tmp_path}/sp); {more}\n")


def test_the_answer_for_programs_is_one_object(led: Place) -> None:
    led.job.given = {"id": "sp-1"}
    code, out, _ = run("savepoint", os.path.join(led.url, "../sp"), "--checkpoint", led.url, "--json")
    told = json.loads(out)
    assert (code, told["state"], told["verb"], told["result"]) == (0, "done", "savepoint", {"id": "sp-1"})
    assert "holdfast savepoint" in told["asked_by"]


def test_what_the_leader_refuses_is_one_line_and_exit_code_2(led: Place) -> None:
    led.job.refusal = DefinitionError("parallelism=9 is out of range; choose a number from 1 to 4")
    code, out, err = run("rescale", "--parallelism", "9", "--checkpoint", led.url)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "error: rescale was refused: parallelism=9 is out of range; choose a number from 1 to 4"
    )


def test_what_the_leader_fails_at_is_exit_code_1(led: Place) -> None:
    led.job.refusal = StorageError("the disk is full; make room")
    code, _, err = run("savepoint", "/tmp/sp", "--checkpoint", led.url)
    assert code == 1
    assert err.splitlines()[-1] == "error: savepoint failed: the disk is full; make room"


@pytest.mark.usefixtures("impatient")
def test_with_no_leader_the_request_is_taken_back(place: Place) -> None:
    code, _, err = run("stop", "--checkpoint", place.url)
    assert code == 75
    line = err.splitlines()[-1]
    assert "stop was not done: nobody took it within 0.3 s, so it was taken back" in line
    assert "the last leader was term 1, node-a, process 4711" in line
    (name,) = place.requests()
    assert Requests(place.storage, term=2).claim(name.removeprefix("requests/"), 0) is None


def test_what_is_still_running_goes_on_and_can_be_followed(led: Place) -> None:
    led.job.gate.clear()
    try:
        code, _, err = run("savepoint", "/tmp/sp", "--checkpoint", led.url, "--timeout", "3s")
        assert code == 75
        assert "holdfast: savepoint: running by the leader of term 1" in err
        assert "savepoint is still running after 3s" in err
        (name,) = led.requests()
        id = name.removeprefix("requests/")
        assert f"holdfast request {id} --checkpoint {led.url}" in err
        assert run("request", id, "--checkpoint", led.url)[:2] == (0, "savepoint: running (at /tmp/sp)\n")
    finally:
        led.job.gate.set()


@pytest.mark.usefixtures("impatient")
def test_no_wait_prints_the_id_and_request_tells_what_became_of_it(place: Place) -> None:
    code, out, _ = run("stop", "--drain", "--checkpoint", place.url, "--no-wait")
    id = out.strip()
    assert code == 0
    assert run("request", id, "--checkpoint", place.url)[1] == "stop: waiting\n"
    Requests(place.storage, 1).end(id, State.DONE, 0, result={"epoch": 7})
    assert run("request", id, "--checkpoint", place.url)[1] == "stop: done (epoch 7)\n"
    told = json.loads(run("request", id, "--checkpoint", place.url, "--json")[1])
    assert (told["state"], told["arguments"]["drain"]) == ("done", True)
    assert json.loads(run("stop", "--checkpoint", place.url, "--no-wait", "--json")[1]).keys() == {"request"}


def test_stop_ends_when_the_run_has_ended(place: Place) -> None:
    """The leader's run ends as soon as it is told to stop."""

    class Stopping(FakeJob):
        def stop(self, savepoint: str | None = None, drain: bool = False) -> None:
            super().stop(savepoint, drain)
            ending.set()

    ending = threading.Event()
    job = Stopping(place.storage)

    def lead() -> None:
        with Control(place.storage, place.term, job, SystemClock(), lambda text: None):
            ending.wait(20)

    leader = threading.Thread(target=lead)
    leader.start()
    code, out, _ = run("stop", "--checkpoint", place.url)
    leader.join()
    assert (code, out) == (0, "stop: done\n")


@pytest.mark.parametrize(
    "command",
    [
        ["rescale", "--parallelism", "0"],
        ["savepoint", "ftp://x/y"],
        ["savepoint", "/tmp/sp", "--format", "zip"],
        ["stop", "--savepoint", "s4://x"],
        ["stop", "--timeout", "soon"],
        ["request", "../job"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(place: Place, command: list[str]) -> None:
    code, _, err = run(*command, "--checkpoint", place.url)
    assert code == 2
    assert err.count("error: ") == 1
    assert place.requests() == []


@pytest.mark.parametrize("command", [["stop"], ["rescale", "--parallelism", "4"], ["status"]], ids=" ".join)
def test_a_place_without_a_checkpoint_is_refused_and_left_as_it_is(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "other").mkdir()
    code, _, err = run(*command, "--checkpoint", str(tmp_path / "other"))
    assert code == 4
    assert "there is no checkpoint" in err
    assert list((tmp_path / "other").iterdir()) == []


def test_status_is_the_leaders_word_when_it_answers(led: Place) -> None:
    led.job.monitor.update(phase="running", epoch=41, committed_epoch=40, rows_per_second=1_234.0, lag_rows=5)
    code, out, _ = run("status", "--checkpoint", led.url)
    assert code == 0
    for text in ("orders (4 key groups)", "term 1, node-a, process 4711", "running", "41 (committed 40)"):
        assert text in out
    assert "1,234" in out
    assert led.requests() == []


@pytest.mark.usefixtures("impatient")
def test_status_without_a_leader_is_what_storage_knows(place: Place) -> None:
    failure = FailureRecord(
        at_ms=SystemClock().now_ms() - 3_000, term=1, run="r", host="h", epoch=3, kind="StorageError",
        cause="c", message="the [disk] is full", decision="restart", delay_ms=1_500,
    )  # fmt: skip
    record_failure(place.storage, failure)
    code, out, _ = run("status", "--checkpoint", place.url)
    assert code == 0
    assert "nobody answered within 0.3 s; the last was term 1, node-a, process 4711" in out
    for text in ("3 (committed, by commit 3)", "the [disk] is full", "restart after 1.5 s", "30"):
        assert text in out
    assert "no process answers, and the last sign of life is" in out
    assert place.requests() == []


@pytest.mark.usefixtures("impatient")
def test_status_shows_long_causes_whole(place: Place) -> None:
    message = (
        "cannot read s3://warehouse/" + "/".join(f"year-2026-part-{n:04d}" for n in range(20)) + ".parquet"
    )
    failure = FailureRecord(
        at_ms=SystemClock().now_ms(), term=1, run="r", host="h", epoch=3, kind="StorageError", cause="c",
        message=message, decision="restart", delay_ms=1_500,
    )  # fmt: skip
    record_failure(place.storage, failure)
    done = CliRunner().invoke(main.app, ["status", "--checkpoint", place.url], env={"COLUMNS": "80"})
    head, told = done.stdout.partition("failures and restarts, newest last")[2].strip().split("\n", 1)
    assert head.endswith(" s ago, term 1, epoch 3: restart after 1.5 s")
    # Most of the width is the cause's, and not a sixth of it.
    assert len(told.splitlines()) <= len(message) // 70 + 1
    assert "".join(told.split()) == message.replace(" ", "")


def ended(place: Place, **changed: Any) -> EndedRecord:
    record = EndedRecord(
        term=place.term, run="run-1", at_ms=1_760_000_000_000, ending="stopped", commit=3, last_epoch=3,
        published=True,
    )  # fmt: skip
    return replace(record, **changed)


def test_status_of_a_job_that_stopped_cleanly_asks_no_leader(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(admin_status, "status_of_leader")
    record_ending(place.storage, ended(place))
    code, out, _ = run("status", "--checkpoint", place.url)
    assert code == 0
    assert "stopped cleanly at 2025-10-09 08:53:20 UTC, everything published" in out
    assert "nobody answered" not in out
    told = json.loads(run("status", "--checkpoint", place.url, "--json")[1])
    assert (told["ended"]["commit"], told["progress"]) == (3, None)


@pytest.mark.usefixtures("impatient")
def test_an_end_is_that_of_its_own_term(place: Place) -> None:
    record_ending(place.storage, ended(place, ending="exhausted", published=False))
    said = run("stop", "--checkpoint", place.url)[2]
    assert "the job does not run, it ended cleanly, the sources had no more, at 2025-10-09" in said
    assert "some sinks show less than is committed" in said
    claim(place.storage, "run-2", "node-b", 4712, 0)
    assert "stopped cleanly" not in run("status", "--checkpoint", place.url)[1]


@pytest.mark.usefixtures("impatient")
def test_status_groups_equal_failures(place: Place) -> None:
    def failed(cause: str, decision: str, at: int, term: int = 1, epoch: int = 7) -> None:
        record = FailureRecord(
            at_ms=SystemClock().now_ms() - at, term=term, run="r", host="h", epoch=epoch, kind="K",
            cause=cause, message=f"{cause} at {at}", decision=decision,
        )  # fmt: skip
        record_failure(place.storage, record)

    for at in (9_000, 8_000, 7_000):
        failed("division by #", "restart", at)
    failed("division by #", "give-up", 6_000, term=2)
    failed("no room", "restart", 5_000)
    failed("division by #", "restart", 4_000)
    out = run("status", "--checkpoint", place.url)[1]
    assert out.count("division by # at") == 2
    said = [line.rstrip() for line in out.splitlines()]
    when = said[said.index("  division by # at 6000") - 1]
    assert re.fullmatch(r"[\d.]+ s to [\d.]+ s ago, 4 times, terms 1 to 2, epoch 7: give-up", when)
    assert len(json.loads(run("status", "--checkpoint", place.url, "--json")[1])["failures"]) == 6


@pytest.mark.usefixtures("impatient")
def test_status_for_programs_is_one_object(place: Place) -> None:
    told = json.loads(run("status", "--checkpoint", place.url, "--json")[1])
    assert told["progress"] is None
    assert told["leader"]["pid"] == 4711
    assert (told["checkpoint"]["commit"], told["checkpoint"]["last_epoch"]) == (3, 3)
    assert told["failures"] == []


@pytest.mark.usefixtures("impatient")
def test_status_tells_of_a_damaged_chain(place: Place) -> None:
    (Path(place.url) / "commits" / "000000000003").write_bytes(b"garbage")
    code, out, _ = run("status", "--checkpoint", place.url)
    assert code == 0
    assert "DAMAGED" in out


@pytest.mark.usefixtures("impatient")
def test_watching_looks_again_until_it_is_interrupted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sleep(self: SystemClock, seconds: float) -> None:
        if seconds == status_command.WATCH_SECONDS:
            looks.append(seconds)
            if len(looks) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    code, out, _ = run("status", "--checkpoint", place.url, "--watch", "--json")
    assert code == 0
    assert [json.loads(line)["job"] for line in out.splitlines()] == ["orders"] * 3


def test_a_newer_leaders_unknown_facts_are_left_out() -> None:
    found = {
        "job": "orders", "key_groups": 4, "now_ms": 10, "failures": [], "ended": None,
        "leader": {"term": 1, "host": "h", "pid": 2, "claimed_ms": 0},
        "progress": {"job": "orders", "phase": "running", "mood": "good"}, "replicas": None, "cluster": None,
    }  # fmt: skip
    assert ("phase", "running") in status_command.lines(found)


def test_where_to_see_the_nodes_that_would_take_a_job_is_told() -> None:
    found = {
        "job": "orders", "key_groups": 4, "now_ms": 10, "failures": [], "ended": None, "replicas": None,
        "leader": {"term": 1, "host": "h", "pid": 2, "claimed_ms": 0}, "progress": {"job": "orders"},
        "cluster": {"cluster": "shop", "zookeeper": "h:2181"}, "checkpoint": {"commit": 0},
    }  # fmt: skip
    told = dict(status_command.lines(found))["survives now"]
    assert told.endswith("`holdfast status --cluster shop --zookeeper h:2181`")
    told = dict(status_command.lines({**found, "cluster": None}))["survives now"]
    assert told.endswith("another goes on from the checkpoint, once it is started")


def test_a_job_that_does_not_answer_survives_nothing_now() -> None:
    found = {
        "job": "orders", "key_groups": 4, "now_ms": 9_000, "failures": [], "ended": None, "replicas": None,
        "leader": {"term": 1, "host": "h", "pid": 2, "claimed_ms": 0}, "progress": None, "heard_ms": 4_000,
        "cluster": {"cluster": "shop", "zookeeper": "h:2181"}, "checkpoint": {"commit": 0},
    }  # fmt: skip
    told = dict(status_command.lines(found))["survives now"]
    assert told.startswith("no process answers, and the last sign of life is 5.0 s old; one that is started")
    assert told.endswith("`holdfast status --cluster shop --zookeeper h:2181`")
    told = dict(status_command.lines({**found, "cluster": None}))["survives now"]
    assert told.endswith("one that is started goes on from the checkpoint")


def test_an_asker_who_gives_up_is_told_how_to_follow(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(leader_requests, "wait_for_end", interrupted)
    code, _, err = run("stop", "--checkpoint", place.url)
    assert code != 0
    (name,) = place.requests()
    assert f"holdfast request {name.removeprefix('requests/')}" in err
    assert read_asked(place.storage, name.removeprefix("requests/")).state is State.WAITING


def test_every_command_and_option_of_the_page_exists() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "control.md").read_text()
    block = page.partition("```\n")[2].partition("```")[0]
    commands = [line.split("#")[0].split() for line in block.splitlines() if line.startswith("holdfast ")]
    assert len(commands) == 6
    for _, command, *rest in commands:
        group = [command, rest[0]] if command == "sinks" else [command]
        code, known, _ = run(*group, "--help")
        assert code == 0
        assert not [word for word in rest if word.startswith("--") and word not in known]
