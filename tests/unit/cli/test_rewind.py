"""`holdfast rewind`: it says what it means, asks, and goes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from holdfast.admin import brief_term
from holdfast.admin.rewind import Outlook
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.cli import options
from holdfast.cli import rewind as rewind_command
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.runtime.control.request_server import Control
from holdfast.storage.local_directory import LocalStorage
from tests.unit.admin.rewind_kit import grown
from tests.unit.cli.shell import call, text
from tests.unit.inspect.stored import MadeCheckpoint
from tests.unit.runtime.control.control_kit import FakeJob


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeCheckpoint:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)
    return grown(tmp_path)


def rewind(url: str, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["rewind", "--checkpoint", url, *arguments], input=answer)


def newest(made: MadeCheckpoint) -> int:
    return Chain(made.storage).load().number


def test_what_it_means_is_said_and_nothing_is_done_without_an_answer(made: MadeCheckpoint) -> None:
    done = rewind(made.url, "--to", "4")
    assert done.exit_code == 2
    for told in (
        "job 'job' goes from commit 7 (epoch 6) to commit 4 (epoch 4, 1970-01-01 00:00:00 UTC)",
        "2 epochs (5 to 6) will be read again, with the rows that they had",
        "sink 'out' has shown epochs up to 6, and does not show them again",
    ):
        assert told in done.stdout
    (line,) = done.stderr.splitlines()
    assert "nothing was written: there is no terminal to ask at" in line
    assert newest(made) == 7


@pytest.mark.parametrize(("answer", "code", "after"), [("n\n", 1, 7), ("\n", 1, 7), ("y\n", 0, 8)])
def test_a_person_at_a_terminal_is_asked(
    made: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, after: int
) -> None:
    monkeypatch.setattr(options, "at_a_terminal", lambda: True)
    done = rewind(made.url, "--to", "4", answer=answer)
    assert done.exit_code == code, done.stderr
    assert "go there? [y/N]" in done.stderr
    assert ("nothing was written" in done.stderr) == (code == 1)
    assert newest(made) == after


def test_it_says_how_to_start_and_how_to_take_it_back(made: MadeCheckpoint) -> None:
    done = rewind(made.url, "--to", "4", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "commit 8 goes to commit 4; start the job again with `holdfast run`" in done.stdout
    back = f"holdfast rewind --checkpoint {made.url} --to 7"
    assert f"`{back}`" in done.stdout
    done = CliRunner().invoke(app, [*back.split()[1:], "--yes"])
    assert done.exit_code == 0, done.stderr
    assert "no epoch has to be read again" in done.stdout
    assert newest(made) == 9


def test_a_program_is_told_in_one_object(made: MadeCheckpoint) -> None:
    done = rewind(made.url, "--to", "4", "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    assert "goes from commit 7" in done.stderr
    told = json.loads(done.stdout)
    assert (told["from_commit"], told["from_epoch"], told["to_commit"], told["to_epoch"]) == (7, 6, 4, 4)
    assert told["commit"] == 8
    assert (told["replayed"], told["replayed_through"], told["sinks"]) == (2, 6, {"out": 6})
    again = json.loads(rewind(made.url, "--to", "4", "--json").stdout)
    assert (again["commit"], again["holds"]) == (None, True)


def test_what_does_not_go_back_and_what_has_to_fit_is_said() -> None:
    found = Outlook(
        from_commit=9, from_epoch=None, to_commit=4, to_epoch=3, time_ms=0, replayed_through=3, sinks={},
        waiting={"out": 5}, channels={"to-b": 3}, uncoordinated=("carts",),
        other_schemas=("sums", "totals"), holds=False,
    )  # fmt: skip
    head, *said = rewind_command.described("part 'orders'", found, "ck/")
    assert head.startswith("part 'orders' goes from commit 9 (damaged) to commit 4 (epoch 3, ")
    assert "  channel 'to-b' holds epochs up to 3, and is not given them again" in said
    assert "  rows up to epoch 5 wait for sink 'out', which shows them as they were committed" in said
    assert any("the keys of operator 'carts' are in no commit" in line for line in said)
    (fits,) = [line for line in said if "another schema" in line]
    assert "operator 'sums', 'totals'" in fits
    assert "`holdfast check APP --checkpoint ck/`" in fits


def test_a_commit_that_holds_already_needs_no_answer(made: MadeCheckpoint) -> None:
    done = rewind(made.url, "--to", "7")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "commit 7 holds already (epoch 6); nothing was written\n"
    assert newest(made) == 7


def test_a_job_that_runs_is_left_alone(made: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 20.0)
    with Control(made.storage, 1, FakeJob(made.storage), SystemClock(), lambda text: None, grace_seconds=1):
        done = rewind(made.url, "--to", "4", "--yes")
    assert done.exit_code == 4
    assert f"the job is running; stop it (`holdfast stop --checkpoint {made.url}`)" in done.stderr
    assert newest(made) == 7


@pytest.mark.parametrize(
    ("to", "code", "told"),
    [
        ("99", 4, "there is no commit 99"),
        ("0", 4, "there is no commit 0"),
        ("last", 2, "Invalid value for '--to'"),
    ],
)
def test_what_cannot_be_gone_back_to_is_refused_in_one_line(
    made: MadeCheckpoint, to: str, code: int, told: str
) -> None:
    done = rewind(made.url, "--to", to, "--yes")
    assert done.exit_code == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert newest(made) == 7


def test_places_without_a_checkpoint_are_left_as_they_are(made: MadeCheckpoint, tmp_path: Path) -> None:
    done = rewind(str(tmp_path / "other"), "--to", "1", "--yes")
    assert done.exit_code == 4
    assert "there is no checkpoint" in done.stderr
    assert not (tmp_path / "other").exists()
    place = LocalStorage(tmp_path / "savepoint")
    opened = open_checkpoint(made.storage, "job", made.key_groups, SystemClock(), identity="i")
    take_savepoint(opened, None, place, id="s", stopped=False, clock=SystemClock(), holder="r")
    before = place.list("")
    done = rewind(place.url, "--to", "1", "--yes")
    assert done.exit_code == 4
    assert "holds a savepoint, not a checkpoint" in done.stderr
    assert place.list("") == before


def test_the_list_of_commits_says_what_each_goes_back_to(made: MadeCheckpoint) -> None:
    rewind(made.url, "--to", "4", "--yes")
    rows = call("checkpoints", "list", "--checkpoint", made.url)
    assert [(row["commit"], row["last_epoch"], row["retained"]) for row in rows[3:]] == [
        (4, 4, True), (5, 5, True), (6, 6, True), (7, 6, True), (8, 4, True),
    ]  # fmt: skip
    told = text("checkpoints", "list", "--checkpoint", made.url)
    assert "none (6)" in told
    assert "4 again" in told
    assert "yes, commit 4 again, manifest" in told


def test_which_commits_are_kept_is_seen_in_a_narrow_terminal(made: MadeCheckpoint) -> None:
    rewind(made.url, "--to", "4", "--yes")
    done = CliRunner().invoke(app, ["checkpoints", "list", "--checkpoint", made.url], env={"COLUMNS": "80"})
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[-1] for line in lines if line[:2] == ["7", "none"]] == ["yes"]
    assert [line[2] for line in lines if line[:2] == ["8", "4"]] == ["again"]
