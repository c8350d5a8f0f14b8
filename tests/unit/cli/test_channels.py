"""`holdfast channels`: what the channels of a part hold, and how the rows of a former one are given up."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.admin import brief_term
from holdfast.admin import remove_channel as module
from holdfast.checkpoint.chain.checkpoint import job_url, open_checkpoint, place_of_part
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.cli import options
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.storage.local_directory import LocalStorage
from tests.unit.cli.parts_kit import APP as PARTS_APP
from tests.unit.cli.parts_kit import CHANNEL, Parts
from tests.unit.cli.shell import call, refusal, text

OTHER = "orders-in"


@pytest.fixture(autouse=True)
def no_leader_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """Both parts have ended. The job that was started last has another channel in place of the first; what
    `scoring` has not read are epoch 3, half of epoch 2, and epoch 4, which went into both."""
    made = Parts(tmp_path / "ck")
    made.send(4, CHANNEL, OTHER)
    made.end()
    layout = LayoutRecord(job="fraud", parts=("main", "scoring"), channels={OTHER: ("main", "scoring")})
    keep_layout(made.root, layout, allow_dropped_state=False)
    return made


def removing(parts: Parts, *more: str) -> tuple[str, ...]:
    return ("channels", "remove", CHANNEL, "--checkpoint", parts.main.url, *more)


def test_list_tells_what_is_held_and_what_was_not_read(parts: Parts) -> None:
    former, other = call("channels", "list", "--checkpoint", parts.main.url)
    assert former == {
        "channel": CHANNEL, "reader": "scoring", "through": 4, "released": 0, "rows": 40, "unread": 25,
        "lost": None,
    }  # fmt: skip
    assert (other["channel"], other["rows"], other["unread"]) == (OTHER, 10, 10)
    assert "no channel leaves fraud.scoring" in text("channels", "list", "--checkpoint", parts.scoring.url)


def test_before_the_first_commit_there_is_nothing_to_list(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ck/parts/main")
    open_checkpoint(storage, "fraud.main", 4, SystemClock(), identity="main")
    told = text("channels", "list", "--checkpoint", storage.url)
    assert told.strip() == (
        "fraud.main has committed nothing yet, so that its channels hold nothing; look again later"
    )


def test_epochs_that_are_lost_are_told_with_who_asked_for_them_and_since_when(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "ck")
    parts.ask(3)
    commit = Chain(parts.scoring).load().number
    (held,) = call("channels", "list", "--checkpoint", parts.main.url)
    asked = {"epochs": [3], "commit": commit, "asked_ms": 1, "answered": False}
    assert held["lost"] == asked
    (found,) = call("status", "--checkpoint", parts.root.url)
    assert found["channels"][0]["lost"] == asked
    told = " ".join(text("status", "--checkpoint", parts.root.url).replace("│", " ").split())
    for words in ("LOST:", "epoch 3", f"commit {commit}", "of scoring"):
        assert words in told
    parts.answer(3, commit)
    (held,) = call("channels", "list", "--checkpoint", parts.main.url)
    assert held["lost"] == {**asked, "answered": True}
    told = " ".join(text("channels", "list", "--checkpoint", parts.main.url).replace("│", " ").split())
    assert "being computed again" in told
    parts.send(3)
    (held,) = call("channels", "list", "--checkpoint", parts.main.url)
    assert held["lost"] is None


def test_a_removed_channel_is_gone_and_the_others_stay_as_they_were(parts: Parts) -> None:
    before = Chain(parts.main).load()
    told = text(*removing(parts, "--yes"))
    assert told == f"channel {CHANNEL!r} is removed; 25 rows that were not read: given up\n"
    after = Chain(parts.main).load()
    assert (after.number, after.last_epoch, after.positions) == (5, 4, before.positions)
    assert after.channels == {OTHER: before.channels[OTHER]}
    assert list(after.channels[OTHER].files) == list(before.channels[OTHER].files)
    ended = newest_ending(parts.main)
    assert ended is not None
    assert (ended.term, ended.ending) == (2, "stopped"), "how the run before has ended stays known"


READ_BY_A_PART = f"25 rows of channel {CHANNEL!r} that part 'scoring' has not read will be lost; go on? [y/N]"
READ_BY_OTHERS = (
    "channel 'door' is read by jobs or queries that are not known here, nor how far they have come: its 10 "
    "rows will be lost; go on? [y/N]"
)


@pytest.mark.parametrize(
    ("channel", "question"), [(CHANNEL, READ_BY_A_PART), ("door", READ_BY_OTHERS)], ids=["part", "door"]
)
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_a_person_at_a_terminal_is_asked_about_rows_that_may_be_unread(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, channel: str, question: str, answer: str, code: int
) -> None:
    if channel == "door":
        parts.send(5, CHANNEL, OTHER, "door")
    monkeypatch.setattr(options, "at_a_terminal", lambda: True)
    asked = ["channels", "remove", channel, "--checkpoint", parts.main.url]
    done = CliRunner().invoke(app, asked, input=answer)
    assert done.exit_code == code, done.stderr
    assert question in done.stderr
    assert ("nothing was given up" in done.stderr) == (code == 1)
    assert (channel in Chain(parts.main).load().channels) == (code == 1)


def test_of_a_door_it_is_not_known_what_was_read(parts: Parts) -> None:
    parts.send(5, CHANNEL, OTHER, "door")
    found = call("channels", "list", "--checkpoint", parts.main.url)
    (held,) = [each for each in found if not each["reader"]]
    assert (held["channel"], held["rows"], held["unread"]) == ("door", 10, 10)
    assert "not known" in text("channels", "list", "--checkpoint", parts.main.url)
    told = text("channels", "remove", "door", "--yes", "--checkpoint", parts.main.url)
    assert told == "channel 'door' is removed; 10 rows that may not have been read: given up\n"


def test_no_commit_is_given_up_that_the_job_keeps(parts: Parts) -> None:
    for epoch in range(5, 16):
        parts.send(epoch, CHANNEL, OTHER)
    text(*removing(parts, "--yes"))
    after = Chain(parts.main).load()
    assert (after.number, after.retained_from) == (16, 6)


def test_what_was_not_read_is_written_where_the_user_wants_it_and_nothing_else(
    parts: Parts, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    (told,) = call(*removing(parts, "--yes", "--to", str(aside)))
    assert (told["rows"], told["epochs"], told["place"]) == (25, [2, 3, 4], str(aside))
    expected = [200 + 10 + i for i in range(5)]
    expected += [epoch * 100 + part * 10 + i for epoch in (3, 4) for part in (0, 1) for i in range(5)]
    assert pq.read_table(aside).column("n").to_pylist() == expected


def test_interrupted_before_the_commit_nothing_is_given_up_and_it_is_done_again(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = removing(parts, "--yes", "--to", str(tmp_path / "aside"))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit", lambda *given: exec("raise KeyboardInterrupt"))
        CliRunner().invoke(app, arguments)
    assert CHANNEL in Chain(parts.main).load().channels
    text(*arguments)
    assert pq.read_table(tmp_path / "aside").num_rows == 25


@pytest.mark.parametrize(
    "command", [["channels", "remove", CHANNEL, "--yes"], ["checkpoints", "prune", "--keep", "2"]]
)
def test_that_a_part_has_come_to_its_end_stays_known(parts: Parts, command: list[str]) -> None:
    parts.send(5, CHANNEL, OTHER, ended=True)
    text(*command, "--checkpoint", parts.main.url)
    after = Chain(parts.main).load()
    assert after.number > 5
    assert after.ended, "the part after it is told of no further rows"


def test_a_channel_that_the_job_still_has_is_left_alone(parts: Parts) -> None:
    keep_layout(parts.root, parts.layout, allow_dropped_state=False)
    told = refusal(*removing(parts, "--yes"), code=4)
    assert "job 'fraud' still has channel 'clicks-in', to part 'scoring'" in told
    assert CHANNEL in Chain(parts.main).load().channels


OTHER_APP = PARTS_APP.replace(CHANNEL, OTHER)


@pytest.mark.parametrize(
    ("text_of_job", "told"),
    [
        (PARTS_APP, "still has channel 'clicks-in', to part 'scoring', which reads its rows; take it out"),
        (OTHER_APP.replace("fraud", "another"), "belongs to job 'fraud', not to 'another'"),
    ],
)
def test_what_the_job_declares_decides_before_it_was_started_so(
    parts: Parts, tmp_path: Path, text_of_job: str, told: str
) -> None:
    """A start that would leave rows behind is refused, and changes nothing: it has not been started so."""
    keep_layout(parts.root, parts.layout, allow_dropped_state=False)
    file = tmp_path / "app.py"
    assert "--app FILE" in refusal(*removing(parts, "--yes"), code=4)
    file.write_text(text_of_job)
    assert told in refusal(*removing(parts, "--yes", "--app", str(file)), code=4)
    assert CHANNEL in Chain(parts.main).load().channels
    file.write_text(OTHER_APP)
    assert "25 rows that were not read: given up" in text(*removing(parts, "--yes", "--app", str(file)))
    assert CHANNEL not in Chain(parts.main).load().channels


def test_nothing_is_removed_beside_a_running_part(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "status_of_leader", lambda *given, **more: {"phase": "running"})
    assert "the part is running; stop it" in refusal(*removing(parts, "--yes"), code=4)
    assert CHANNEL in Chain(parts.main).load().channels


def test_a_leader_that_is_silent_is_left_alone_unless_it_is_known_to_be_gone(parts: Parts) -> None:
    parts.main.delete([names.ended(1)])
    assert "--not-running" in refusal(*removing(parts, "--yes"), code=75)
    assert CHANNEL in Chain(parts.main).load().channels
    text(*removing(parts, "--yes", "--not-running"))
    assert CHANNEL not in Chain(parts.main).load().channels


@pytest.mark.parametrize(
    ("uid", "yes", "code", "told"),
    [
        ("typo", True, 4, "no channel 'typo' leaves the part in"),
        (CHANNEL, False, 2, "nothing was given up: there is no terminal to ask at"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    parts: Parts, tmp_path: Path, uid: str, yes: bool, code: int, told: str
) -> None:
    to, before = tmp_path / "aside", parts.main.list("")
    asked = ["channels", "remove", uid, "--checkpoint", parts.main.url, "--to", str(to)]
    assert told in refusal(*asked, *(["--yes"] if yes else []), code=code)
    assert not to.exists()
    assert parts.main.list("") == before


@pytest.mark.parametrize(
    "root", ["/x/ck", "file:///x/ck?fsync=off", "s3://bucket/ck?region=here", "/x/parts/ck", "/x/?/ck"]
)
def test_the_place_of_a_job_is_found_from_that_of_a_part(root: str) -> None:
    assert job_url(place_of_part(root, "main")) == root
    assert job_url("/x/ck") is None
    assert job_url("/x/parts/ck/commits/1") is None
