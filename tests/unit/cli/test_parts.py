"""Commands for a job in parts: what is told of all its parts, what goes to each, and what has to name one."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from holdfast.admin.parts import channels_plainly
from holdfast.checkpoint.chain.barriers import begin_barrier, end_barrier
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.cli import parts_requests
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, RetryableError, StorageError
from holdfast.graph.parts import reading_order
from holdfast.runtime.control.request_server import Control
from holdfast.runtime.parts.job_savepoint import JobSavepoint
from holdfast.storage.local_directory import LocalStorage
from tests.unit.cli.parts_kit import APP, CHANNEL, Parts
from tests.unit.cli.shell import call, refusal, text
from tests.unit.runtime.control.control_kit import FakeJob


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "ck")


class Leading(FakeJob):
    """A leader that is no Spark job: it ends when it is told to stop, and that answers the request."""

    def __init__(self, part: str, parts: Parts, story: list[str]) -> None:
        super().__init__(getattr(parts, part))
        self.part, self.parts, self.story, self.stopping = part, parts, story, threading.Event()
        self.thread = threading.Thread(target=self._lead)

    def stop(self, savepoint: str | None = None, drain: bool = False) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.story.append(f"{self.part} stops{', draining' if drain else ''}")
        self.stopping.set()

    def _lead(self) -> None:
        with Control(self.storage, 1, self, SystemClock(), lambda text: None, grace_seconds=1):
            self.stopping.wait()
            self.story.append(f"{self.part} ends")
            self.parts.end(getattr(self.parts, self.part))


@dataclass
class Led:
    """A leader of each part; `story`: when each was told to stop, and ended."""

    parts: Parts
    main: Leading
    scoring: Leading
    story: list[str]


@pytest.fixture
def led(parts: Parts) -> Iterator[Led]:
    story: list[str] = []
    leaders = Leading("main", parts, story), Leading("scoring", parts, story)
    for leader in leaders:
        leader.thread.start()
    yield Led(parts, *leaders, story)
    for leader in leaders:
        leader.stopping.set()
        leader.thread.join()


def test_status_tells_every_part_and_what_waits_between_them(parts: Parts) -> None:
    parts.end()
    (told,) = call("status", "--checkpoint", parts.root.url)
    assert told["job"] == "fraud"
    assert list(told["parts"]) == ["main", "scoring"], "each after those that it reads from"
    assert [part["checkpoint"]["last_epoch"] for part in told["parts"].values()] == [3, 1]
    (channel,) = told["channels"]
    sizes = [file.extent.length for file in Chain(parts.main).load().channels[CHANNEL].files]
    assert channel == {
        "channel": CHANNEL, "from": "main", "to": "scoring", "epochs": 2, "rows": 15,
        "bytes": sum(sizes[3:]), "kept_bytes": sum(sizes[:3]), "full": False,
        "sent_through": 3, "read_through": 1, "released": 0, "lost": None,
    }  # fmt: skip


def test_status_for_people_has_a_paragraph_for_each_part_and_a_table_of_channels(parts: Parts) -> None:
    parts.end()
    parts.limit(1 << 30, 2)
    told = text("status", "--checkpoint", parts.root.url)
    assert "fraud, in 2 parts" in told
    assert told.index("part main") < told.index("part scoring") < told.index("channels")
    (line,) = [line for line in told.splitlines() if CHANNEL in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[:5] == [CHANNEL, "main", "scoring", "15", "2"]
    assert "FULL" in line


def test_status_tells_of_a_part_that_has_not_begun_and_of_leaders_that_answer(led: Led) -> None:
    layout = replace(led.parts.layout, parts=("scoring", "main", "alerts"))
    keep_layout(led.parts.root, layout, allow_dropped_state=False)
    (told,) = call("status", "--checkpoint", led.parts.root.url)
    assert told["parts"]["alerts"] is None
    assert told["parts"]["main"]["progress"]["job"] == "orders"
    assert "it has not begun" in text("status", "--checkpoint", led.parts.root.url)


def test_what_cannot_be_counted_is_told_as_damage_and_not_as_nothing(parts: Parts) -> None:
    parts.end()
    for number in (1, 2, 3):
        parts.main.put(names.commit(number), b"not a record")
    (told,) = call("status", "--checkpoint", parts.root.url)
    (channel,) = told["channels"]
    assert "commits/000000000003" in channel["problem"]
    assert "DAMAGED" in text("status", "--checkpoint", parts.root.url)


def test_a_channel_that_the_job_has_no_more_is_told_as_long_as_it_holds_rows(parts: Parts) -> None:
    parts.end()
    keep_layout(parts.root, LayoutRecord(job="fraud", parts=("main", "scoring")), allow_dropped_state=False)
    (told,) = call("status", "--checkpoint", parts.root.url)
    assert [(each["channel"], each["to"], each["rows"]) for each in told["channels"]] == [(CHANNEL, None, 30)]
    assert f"holdfast channels remove {CHANNEL}" in text("status", "--checkpoint", parts.root.url)


def test_status_tells_of_the_barrier_that_is_under_way_and_of_what_became_of_the_newest(parts: Parts) -> None:
    parts.end()

    def told() -> Any:
        return call("status", "--checkpoint", parts.root.url)[0]["barrier"]

    assert told() is None
    begin_barrier(parts.root, "holdfast savepoint of ann", 1_000, 120_000)
    parts.carry(1)
    assert told() == {
        "barrier": 1, "by": "holdfast savepoint of ann", "begun_ms": 1_000, "ends_runs": False,
        "state": "under way", "not_come_to": ["scoring"], "ended_ms": None, "reason": "",
    }  # fmt: skip
    line = "barrier 1: under way for ... by holdfast savepoint of ann; not come to by part scoring"
    assert line in aged(text("status", "--checkpoint", parts.root.url))
    end_barrier(parts.root, 1, "aborted", 5_000, reason="it did not come through scoring")
    assert told() | {"by": ""} == {
        "barrier": 1, "by": "", "begun_ms": 1_000, "ends_runs": False,
        "state": "aborted", "not_come_to": [], "ended_ms": 5_000,
        "reason": "it did not come through scoring",
    }  # fmt: skip
    line = "barrier 1: aborted ... ago: it did not come through scoring"
    assert line in aged(text("status", "--checkpoint", parts.root.url))
    begin_barrier(parts.root, "the leader of part 'main'", 6_000, 120_000)
    end_barrier(parts.root, 2, "complete", 7_000, {"main": 4, "scoring": 3})
    assert "barrier 2: complete ... ago" in aged(text("status", "--checkpoint", parts.root.url))
    begin_barrier(parts.root, "the leader of part 'main'", 8_000, 120_000)
    parts.root.put(names.barrier(3), b"not a record")
    assert "barriers/000000000003/begun" in told()["problem"]
    assert "barrier 3: DAMAGED" in text("status", "--checkpoint", parts.root.url)


def aged(told: str) -> str:
    """With dots in the place of what is some time ago."""
    told = re.sub(r"(under way for) .*?, by", r"\1 ... by", told)
    return re.sub(r"(aborted|complete) .*? ago", r"\1 ... ago", told)


def test_whether_a_channel_is_full_is_not_known_where_its_limits_are_not(parts: Parts) -> None:
    layout = replace(parts.layout, limits={})
    view = Chain(parts.main).load()
    (told,) = channels_plainly(layout, {"main": view, "scoring": EMPTY}, {})
    assert told["full"] is None
    assert (told["rows"], told["kept_bytes"]) == (30, 0), "a part that has not begun has read nothing"


def test_rescale_goes_to_every_part(led: Led) -> None:
    told = call("rescale", "--parallelism", "2", "--checkpoint", led.parts.root.url)
    assert [(each["part"], each["state"]) for each in told] == [("main", "done"), ("scoring", "done")]
    assert led.main.calls == led.scoring.calls == [("rescale", 2)]


def test_drain_asks_a_part_when_those_before_it_have_ended(led: Led) -> None:
    told = text("stop", "--drain", "--checkpoint", led.parts.root.url)
    assert told.splitlines() == ["main: stop: done", "scoring: stop: done"]
    assert led.story == ["main stops, draining", "main ends", "scoring stops, draining", "scoring ends"]


def test_stop_tells_the_parts_that_run_and_passes_over_those_that_have_ended(led: Led) -> None:
    led.parts.end(led.parts.main)
    assert text("stop", "--checkpoint", led.parts.root.url) == "scoring: stop: done\n"
    assert led.story == ["scoring stops", "scoring ends"]


def test_where_a_part_cannot_be_drained_the_later_ones_go_on(led: Led) -> None:
    led.main.refusal = StorageError("the disk is full; make room")
    done = CliRunner().invoke(app, ["stop", "--drain", "--checkpoint", led.parts.root.url])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-2:] == [
        "error: part 'main': stop failed: the disk is full; make room",
        "error: not asked, and still running: scoring; see to that part, then ask again",
    ]
    assert led.story == []


def test_every_part_is_asked_though_one_fails(led: Led) -> None:
    led.main.refusal = StorageError("the disk is full; make room")
    done = CliRunner().invoke(app, ["stop", "--checkpoint", led.parts.root.url])
    assert done.exit_code == 1
    assert done.stdout == "scoring: stop: done\n"
    assert "part 'main': stop failed" in done.stderr


def test_no_wait_gives_a_request_for_each_part(parts: Parts) -> None:
    told = call("stop", "--no-wait", "--checkpoint", parts.root.url)
    assert [each["part"] for each in told] == ["main", "scoring"]
    for each, storage in zip(told, (parts.main, parts.scoring), strict=True):
        assert storage.size(names.request(each["request"])) is not None


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--drain", "--no-wait"], 2, "leave out --no-wait"),
        (["--savepoint", "sp", "--drain"], 2, "leave out --drain and --no-wait"),
        (["--savepoint", "sp", "--no-wait"], 2, "leave out --drain and --no-wait"),
        (["--savepoint", "sp"], 75, "part 'main' does not run, and a barrier goes through all parts"),
        (["--drain"], 75, "none of the parts main, scoring runs"),
    ],
)
def test_a_stop_that_cannot_be_meant_asks_nothing(
    parts: Parts, more: list[str], code: int, told: str
) -> None:
    parts.end()
    before = parts.root.list("")
    assert told in refusal("stop", "--checkpoint", parts.root.url, *more, code=code)
    assert parts.root.list("") == before


def test_a_savepoint_is_taken_of_all_parts(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def take(
        root: str, url: str, clock: object, by: str, seconds: float, stop_rest: object, say: object
    ) -> JobSavepoint:
        assert stop_rest is None
        asked.append((root, url, seconds))
        return JobSavepoint(
            url=url, job="fraud", barrier=7, commits={"main": 3, "scoring": 1}, waiting="2 epochs"
        )

    monkeypatch.setattr(parts_requests, "take_job_savepoint", take)
    monkeypatch.chdir(tmp_path)
    told = text("savepoint", "sp", "--timeout", "30s", "--checkpoint", parts.root.url)
    assert told == f"savepoint: done (barrier 7, commits main 3, scoring 1, at {tmp_path}/sp); 2 epochs\n"
    assert asked == [(parts.root.url, f"{tmp_path}/sp", 30.0)]


@pytest.fixture
def barrier(led: Led, monkeypatch: pytest.MonkeyPatch) -> Callable[[HoldfastError | None], None]:
    """Ends `main` and then stops the rest, or fails after that."""

    def played(failure: HoldfastError | None) -> None:
        def take(
            root: str,
            url: str,
            clock: object,
            by: str,
            seconds: float,
            stop_rest: Callable[[], None],
            say: object,
        ) -> JobSavepoint:
            led.main.stopping.set()
            led.main.thread.join()
            stop_rest()
            if failure is not None:
                raise failure
            return JobSavepoint(url=url, job="fraud", barrier=7, commits={"main": 3, "scoring": 1})

        monkeypatch.setattr(parts_requests, "take_job_savepoint", take)

    return played


STOPPING = ("stop", "--savepoint", "/sp", "--checkpoint")


def test_a_job_stops_with_a_savepoint_and_with_it_the_parts_that_its_barrier_has_not_ended(
    led: Led, barrier: Callable[[HoldfastError | None], None]
) -> None:
    barrier(None)
    told = text(*STOPPING, led.parts.root.url)
    assert told == "stop: done (barrier 7, commits main 3, scoring 1, at /sp)\n"
    assert led.story == ["main ends", "scoring stops", "scoring ends"]


def test_a_job_whose_savepoint_fails_is_stopped_without_it_and_that_is_told(
    led: Led, barrier: Callable[[HoldfastError | None], None]
) -> None:
    barrier(RetryableError("barrier 7 did not come through; try again"))
    done = CliRunner().invoke(app, [*STOPPING, led.parts.root.url])
    assert done.exit_code == 75
    assert done.stderr.splitlines()[-2:] == [
        "holdfast: stopped without a savepoint: main, scoring",
        "error: barrier 7 did not come through; try again",
    ]
    assert led.story == ["main ends", "scoring stops", "scoring ends"]


def test_a_job_whose_savepoint_cannot_begin_goes_on(led: Led) -> None:
    begin_barrier(led.parts.root, "another", SystemClock().now_ms(), 100_000)
    url = led.parts.root.url
    stop = ["stop", "--savepoint", f"{url}-sp", "--checkpoint", url, "--timeout", "1s"]
    done = CliRunner().invoke(app, stop)
    assert done.exit_code == 75
    assert done.stderr.splitlines() == [
        "holdfast: barrier 1 of another is under way; waiting for its end, up to 1 s",
        "error: barrier 1 of another is under way; try again when it has ended",
    ]
    assert led.story == []


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--format", "canonical"], 2, "leave out --format"),
        (["--no-wait"], 2, "leave out --format and --no-wait"),
        ([], 75, "part 'main' does not run, and a barrier goes through all parts"),
    ],
)
def test_a_savepoint_that_cannot_be_taken_leaves_nothing(
    parts: Parts, tmp_path: Path, more: list[str], code: int, told: str
) -> None:
    parts.end()
    before = parts.root.list("")
    line = refusal("savepoint", str(tmp_path / "sp"), "--checkpoint", parts.root.url, *more, code=code)
    assert told in line
    assert not (tmp_path / "sp").exists()
    assert parts.root.list("") == before


def test_the_savepoint_of_a_job_in_parts_is_not_taken_for_its_checkpoint(
    parts: Parts, tmp_path: Path
) -> None:
    for part in ("main", "scoring"):
        parts.root.delete([f"parts/{part}/{names.JOB}"])
        parts.root.put(f"parts/{part}/{names.SAVEPOINT}", b"x")
    assert "holds a savepoint of job 'fraud'" in refusal("status", "--checkpoint", parts.root.url, code=4)
    told = refusal("savepoints", "show", parts.root.url, code=4)
    assert f"name one, such as {parts.root.url}/parts/scoring" in told


@pytest.mark.parametrize(
    "command",
    [
        ["request", "0000000000000-00000000"],
        ["checkpoints", "list"],
        ["checkpoints", "verify"],
        ["checkpoints", "prune", "--keep", "1"],
        ["state", "show", "ROOT"],
        ["state", "export", "ROOT", "--out", "out"],
        ["sinks", "list"],
        ["sinks", "set-aside", "out", "--to", "aside", "--yes"],
        ["skip", "--yes"],
        ["channels", "list"],
        ["channels", "remove", CHANNEL, "--yes"],
    ],
)
def test_a_command_for_one_checkpoint_names_the_parts_and_touches_nothing(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [parts.root.url if each == "ROOT" else each for each in command]
    given += [] if "ROOT" in command else ["--checkpoint", parts.root.url]
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "__pycache__")
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 4, done.output + done.stderr
    (line,) = done.stderr.splitlines()
    assert "is of a job in parts (fraud: scoring, main)" in line
    assert f"{parts.root.url}/parts/scoring" in line
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "__pycache__") == before


def test_check_compares_a_part_with_its_own_checkpoint(parts: Parts, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    done = CliRunner().invoke(app, ["check", str(file), "--checkpoint", parts.main.url, "--json"])
    assert done.exit_code == 0, done.output + done.stderr
    *found, verdict = map(json.loads, done.stdout.splitlines())
    assert verdict["job"] == "fraud.main"
    assert ("source", "clicks", "kept") in [(each["kind"], each["name"], each["what"]) for each in found]
    assert {each["part"] for each in found} == {"main"}


def test_check_compares_a_part_with_its_share_of_a_savepoint(parts: Parts, tmp_path: Path) -> None:
    clock, share = SystemClock(), LocalStorage(tmp_path / "sp/parts/main")
    checkpoint = open_checkpoint(parts.main, "fraud.main", 4, clock, identity="main")
    take_savepoint(checkpoint, None, share, id="i", stopped=False, clock=clock, holder="test")
    file = tmp_path / "app.py"
    file.write_text(APP)
    *_, verdict = call("check", str(file), "--checkpoint", share.url)
    assert (verdict["job"], verdict["can_continue"]) == ("fraud.main", True)
    file.write_text(APP.replace('"fraud"', '"other"'))
    told = refusal("check", str(file), "--checkpoint", share.url, code=4)
    assert "is of 'fraud.main', and the job has parts other.main, other.scoring" in told


def test_check_knows_the_columns_that_come_through_a_channel(parts: Parts, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    keyed = '.key_by("user").aggregate(total=hf.sum("n"), uid="totals").sink('
    file.write_text(APP.replace(".sink(", keyed))
    found = call("check", str(file), "--checkpoint", parts.scoring.url)
    assert ("operator", "totals", "added") in [tuple(each.values())[:3] for each in found]


def test_check_tells_of_rows_in_a_channel_that_the_job_has_no_more(parts: Parts, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.replace("clicks-in", "clicks-over"))
    line = CliRunner().invoke(app, ["check", str(file), "--checkpoint", parts.main.url]).stderr
    assert f"`holdfast channels remove {CHANNEL} --app FILE --checkpoint {parts.main.url}`" in line


def test_check_of_a_job_in_parts_that_was_never_run(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    told = text("check", str(file), "--checkpoint", str(tmp_path / "new"))
    assert "`run` would begin one" in told
    *found, _ = call("check", str(file), "--checkpoint", str(tmp_path / "new"))
    assert {each["part"] for each in found} == {"main", "scoring"}
    wrong = APP.replace("hf.MemorySink()", "hf.ConsoleSink()")
    file.write_text(wrong)
    told = refusal("check", str(file), "--checkpoint", str(tmp_path / "new"), code=4)
    assert "error: part 'scoring': " in told
    assert "sink 'out'" in told
    file.write_text(APP)
    told = CliRunner().invoke(
        app, ["check", str(file), "--checkpoint", str(tmp_path / "new"), "--guarantee", "at-most-once"]
    )
    assert "a job in parts cannot run at-most-once" in told.stderr


def test_check_compares_every_part_of_a_job_with_its_checkpoint(parts: Parts, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    more = 'clicks.into(job.part("third"), uid="to-third").sink(hf.MemorySink(), uid="third-out")\n'
    file.write_text(APP + more)
    before = sorted(path for path in (tmp_path / "ck").rglob("*"))
    *found, verdict = call("check", str(file), "--checkpoint", parts.root.url)
    rows = {(each["part"], each["kind"], each["name"]): each["what"] for each in found}
    assert rows["main", "source", "clicks"] == rows["scoring", "source", CHANNEL] == "kept"
    assert rows["third", "source", "to-third"] == rows["third", "sink", "third-out"] == "added"
    assert verdict["epochs"] == {"main": 3, "scoring": 1, "third": 0}
    assert verdict["can_continue"]
    told = text("check", str(file), "--checkpoint", parts.root.url)
    assert "scoring" in told
    assert "`run` can go on from here" in told
    assert sorted(path for path in (tmp_path / "ck").rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("clicks-in", "clicks-over"), "part 'main': channel 'clicks-in' holds"),
        (('"scoring"', '"judging"'), "leads from 'main' to 'judging' now"),
        (('"fraud"', '"shop"'), "belongs to job 'fraud', not to 'shop'"),
    ],
    ids=["channel", "part", "job"],
)
def test_check_tells_what_the_parts_of_a_job_cannot_become(
    parts: Parts, tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.replace(*change))
    done = CliRunner().invoke(app, ["check", str(file), "--checkpoint", parts.root.url])
    assert done.exit_code == 4, done.output
    assert told in done.stderr


def test_check_of_a_job_that_had_no_parts_says_that_it_needs_another_place(tmp_path: Path) -> None:
    open_checkpoint(LocalStorage(tmp_path / "ck"), "fraud", 4, SystemClock(), identity="i")
    (tmp_path / "app.py").write_text(APP)
    told = refusal("check", str(tmp_path / "app.py"), "--checkpoint", str(tmp_path / "ck"), code=4)
    assert "holds the checkpoint of job 'fraud' without parts" in told


def test_parts_come_after_those_that_they_read_from() -> None:
    assert reading_order({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ("c", "b", "a")
    assert reading_order({}) == ()


def test_a_place_that_is_of_no_job_is_still_told_so(tmp_path: Path) -> None:
    empty = LocalStorage(tmp_path / "empty")
    assert "there is no checkpoint in" in refusal("status", "--checkpoint", empty.url, code=4)
