"""`holdfast chaos`, as far as it refuses: before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import main

APP = """
import holdfast as hf
job = hf.Job("j")
numbers = job.source(hf.GeneratorSource({{"n": "id"}}, schema="n long"{total}), uid="numbers")
numbers.sink(hf.{sink}, uid="out")
"""
BOUNDED, FILES = ", total=5", "FileSink('out', format='json')"


def refused(tmp_path: Path, *options: str, total: str = BOUNDED, sink: str = FILES) -> str:
    (tmp_path / "app.py").write_text(APP.format(total=total, sink=sink))
    out = ("--out", str(tmp_path / "out")) if "--out" not in options else ()
    done = CliRunner().invoke(main.app, ["chaos", str(tmp_path / "app.py"), *options, *out])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert not (tmp_path / "out" / "reference").exists()
    return done.stderr


def test_a_source_without_an_end_is_refused(tmp_path: Path) -> None:
    assert "source 'numbers' has no end" in refused(tmp_path, total="")


def test_a_guarantee_that_the_job_does_not_give_is_refused(tmp_path: Path) -> None:
    assert "ConsoleSink gives at-least-once" in refused(tmp_path, sink="ConsoleSink()")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--kinds", "kill-driver,earthquake"), "'earthquake' is not a valid Kind"),
        (("--kinds", "kill-executor"), "add --cluster 2"),
        (("--steps", "task-applied"), "the driver has no step 'task-applied'"),
        (("--check", "no_such_module:f"), "there is no 'no_such_module:f' to check by"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    assert reason in refused(tmp_path, *options)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    assert "is not empty" in refused(tmp_path, "--out", str(tmp_path))
