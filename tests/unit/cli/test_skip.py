"""`holdfast skip`: it shows, asks, and gives up no more than was said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.terms import claim
from holdfast.cli import options
from holdfast.cli import skip as skip_command
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.ids import EpochId
from holdfast.runtime.control.request_server import Control
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.chain.test_skip import planned
from tests.unit.runtime.control.control_kit import FakeJob


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStorage:
    monkeypatch.setattr(skip_command, "ANSWER_SECONDS", 0.1)
    storage = LocalStorage(tmp_path / "ck")
    open_checkpoint(storage, "orders", 4, SystemClock(), identity="i")
    planned(storage)
    return storage


def skip(storage: LocalStorage, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["skip", "--checkpoint", storage.url, *arguments], input=answer)


def attempts(storage: LocalStorage) -> int:
    return Plans(storage).next_attempt(EpochId(1)) - 1


def test_files_and_rows_are_named_and_nothing_is_done_without_an_answer(storage: LocalStorage) -> None:
    done = skip(storage)
    assert done.exit_code == 2
    for text in ("epoch 1 of job 'orders' would not read", "source 'files', all of it: 3 files", "9 rows"):
        assert text in done.stdout
    for name in ("a.json (10 bytes)", "b.json (20 bytes)", "c.json (30 bytes)"):
        assert name in done.stdout
    assert "it still reads: nothing" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "no terminal to ask at; look at what would be done, then add --yes" in line
    assert attempts(storage) == 1


@pytest.mark.parametrize(("answer", "code", "written"), [("n\n", 1, 1), ("\n", 1, 1), ("y\n", 0, 2)])
def test_a_person_at_a_terminal_is_asked(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, written: int
) -> None:
    monkeypatch.setattr(options, "at_a_terminal", lambda: True)
    done = skip(storage, "--source", "ids", answer=answer)
    assert done.exit_code == code, done.stderr
    assert "give this up? [y/N]" in done.stderr
    assert ("nothing was given up" in done.stderr) == (code == 1)
    assert attempts(storage) == written


def test_a_script_says_yes(storage: LocalStorage) -> None:
    done = skip(storage, "--file", "a.json", "--file", "c.json", "--yes", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["epoch"], told["attempt"]) == (1, 2)
    (part,) = told["given_up"]
    assert [file["name"] for file in part["files"]] == ["a.json", "c.json"]
    done = skip(storage, "--yes", "--source", "files")
    assert "b.json" in done.stdout
    assert "a.json" not in done.stdout
    assert "it still reads: ids" in done.stdout


def test_a_job_that_runs_is_left_alone(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skip_command, "ANSWER_SECONDS", 20.0)
    term = claim(storage, "r", "h", 1, 0)
    with Control(storage, term, FakeJob(storage), SystemClock(), lambda text: None, grace_seconds=1):
        done = skip(storage, "--yes")
    assert done.exit_code == 4
    assert f"end it first: `holdfast stop --checkpoint {storage.url}`" in done.stderr
    assert attempts(storage) == 1


def test_a_place_without_a_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    done = skip(LocalStorage(tmp_path / "other"), "--yes")
    assert done.exit_code == 4
    assert "there is no checkpoint" in done.stderr
    assert not (tmp_path / "other").exists()
