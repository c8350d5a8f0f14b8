"""`holdfast savepoints`: what is printed, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import main
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.saved import grown, new_checkpoint, take


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, ["savepoints", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one savepoint, `one`, and its job's checkpoint beside it."""
    checkpoint = new_checkpoint(LocalStorage(tmp_path / "checkpoint", fsync=False))
    grown(checkpoint)
    take(checkpoint, LocalStorage(tmp_path / "all" / "one", fsync=False))
    return tmp_path / "all"


def snapshot_in(place: Path) -> Path:
    return next((place / "one" / "snapshots").rglob("*.lmdb"))


def test_list_shows_each_savepoint(place: Path) -> None:
    code, out, _ = run("list", str(place), "--json")
    assert code == 0
    [found] = [json.loads(line) for line in out.splitlines()]
    assert (found["url"], found["job"], found["epoch"], found["problem"]) == (f"{place}/one", "sums", 9, "")
    code, out, _ = run("list", str(place))
    assert code == 0
    assert " one " in out
    assert " sums " in out


def test_list_of_nothing_says_so(tmp_path: Path) -> None:
    code, out, _ = run("list", str(tmp_path))
    assert (code, out.split()[0]) == (0, "no")


def test_show_says_what_a_savepoint_holds(place: Path) -> None:
    code, out, _ = run("show", str(place / "one"))
    assert code == 0
    for part in (
        "sp-1",
        "identity-of-sums",
        "commit 9",
        "4 key groups, 2 shards",
        "totals: count int64",
        "in at 9",
    ):
        assert part in out
    code, out, _ = run("show", str(place / "one"), "--json")
    shown = json.loads(out)
    stored = sum(path.stat().st_size for path in (place / "one").glob("*/**/*") if path.is_file())
    assert (shown["bytes"], shown["positions"], shown["operators"]) == (
        stored,
        {"in": 9},
        ["totals", "reader"],
    )


def test_a_place_without_a_savepoint_is_one_line_and_an_exit_code(place: Path) -> None:
    for command in ("show", "verify", "dispose"):
        code, _, error = run(command, str(place.parent / "checkpoint"))
        assert code == 4
        assert error.startswith("error: ")
        assert "holds a checkpoint, not a savepoint" in error
        assert error.count("\n") == 1


def test_verify_tells_whole_from_damaged(place: Path) -> None:
    code, out, _ = run("verify", str(place / "one"))
    assert (code, out.split(":")[0]) == (0, "whole")
    snapshot = snapshot_in(place)
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"?")
    code, _, error = run("verify", str(place / "one"))
    assert code == 5
    assert f"{snapshot.relative_to(place / 'one')}" in error
    code, out, _ = run("verify", str(place / "one"), "--json")
    assert code == 5
    assert json.loads(out)["whole"] is False


def test_dispose_removes_it(place: Path) -> None:
    code, _, _ = run("dispose", str(place / "one"))
    assert code == 0
    assert not [path for path in place.rglob("*") if path.is_file()]
    code, _, error = run("dispose", str(place / "one"))
    assert code == 4
    assert "there is no savepoint" in error
