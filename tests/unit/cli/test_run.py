"""`holdfast run`: what it refuses, and when its process starts again. The run itself is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import run as module
from holdfast.errors import SessionLost
from holdfast.runtime.job import Job
from tests.unit.cli.parts_kit import APP
from tests.unit.cli.shell import refusal


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text(APP)
    return str(tmp_path / "app.py")


class Lost:
    """A run whose Spark has ended."""

    def __init__(self, told_to_stop: bool) -> None:
        self.told_to_stop = told_to_stop

    def stop(self) -> None:
        pytest.fail("no signal was sent")

    def wait(self) -> None:
        raise SessionLost("the Spark session ended and cannot be had again in this process; start it again")


@pytest.mark.parametrize("told", [True, False])
def test_the_process_starts_again_when_spark_is_gone_unless_it_was_told_to_stop(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    begun: list[list[str]] = []

    def begin(program: str, arguments: list[str]) -> Any:
        begun.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(Job, "start", lambda *given, **options: Lost(told))
    monkeypatch.setattr(module.os, "execv", begin)
    arguments = ("run", file, "--checkpoint", str(tmp_path / "ck"))
    if told:
        said = refusal(*arguments, code=75)
        assert "the run was told to stop, and could not finish what it had in hand: the Spark session" in said
        assert "nothing is lost: the next start goes on from the newest commit" in said
    else:
        assert "this process starts again" in refusal(*arguments, code=0)
    assert len(begun) == (not told)


def test_what_one_process_does_not_survive_is_refused(file: str, tmp_path: Path) -> None:
    arguments = ("run", file, "--checkpoint", "s3://bucket/ck", "--survive", "1")
    assert "one process does not survive its own end; run the job on 2 nodes" in refusal(*arguments, code=2)
