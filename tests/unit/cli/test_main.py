"""The commands, as far as they need no Spark: exit codes and what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import main, options
from holdfast.errors import UNEXPECTED, DefinitionError, FencedOut, UserCodeError

APP = """
import holdfast as hf
job = hf.Job("j")
numbers = job.source(hf.MemorySource([1]), uid="numbers")
numbers.sink(hf.FileSink("out", format="json"), uid="files")
numbers.sink(hf.ConsoleSink(), uid="console")
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text(APP)
    return str(tmp_path / "app.py")


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_help_shows_the_defaults_that_it_describes() -> None:
    commands = typer.main.get_command(main.app)
    assert isinstance(commands, typer.core.TyperGroup)
    described = 0
    for name in ("run", "chaos", "node", "skip", "rewind"):
        text = " ".join(run(name, "--help")[1].replace("│", " ").split())
        for option in commands.commands[name].params:
            _, mark, default = (getattr(option, "help", None) or "").partition("[default: ")
            assert mark + default in text, (name, option.name)
            described += bool(mark)
    assert described > 10


def test_guarantees_names_the_weak_part(app: str) -> None:
    code, out, _ = run("guarantees", app)
    assert code == 0
    assert "`run` would refuse exactly-once, because of console (at-least-once)" in out
    assert "numbers: it can replay every planned slice" in out.splitlines(), "in a line, not in a narrow cell"


def test_guarantees_says_when_all_parts_give_what_was_asked(app: str) -> None:
    _, out, _ = run("guarantees", app, "--guarantee", "at-least-once")
    assert "end to end: at-least-once" in out


def test_guarantees_for_programs_is_a_line_for_each_part(app: str) -> None:
    _, out, _ = run("guarantees", app, "--json")
    parts = [json.loads(line) for line in out.splitlines()]
    assert [(part["kind"], part["uid"], part["gives"]) for part in parts] == [
        ("source", "numbers", "exactly-once"),
        ("sink", "files", "exactly-once"),
        ("sink", "console", "at-least-once"),
    ]
    assert "part" not in parts[0]


def test_guarantees_of_a_job_in_parts_names_the_part_of_each(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import holdfast as hf\n"
        "job = hf.Job('parted')\n"
        "rows = job.source(hf.MemorySource([], schema='n long'), uid='rows')\n"
        "rows.into(job.part('after'), uid='in').sink(hf.MemorySink(), uid='out')\n"
    )
    _, out, _ = run("guarantees", str(tmp_path / "app.py"), "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["part"], one["kind"], one["uid"]) for one in found] == [
        ("main", "source", "rows"),
        ("after", "sink", "out"),
    ]


def test_run_refuses_a_guarantee_that_a_sink_cannot_give_before_spark_starts(
    app: str, tmp_path: Path
) -> None:
    code, _, err = run("run", app, "--checkpoint", str(tmp_path / "ck"))
    assert code == DefinitionError.exit_code == 2
    assert err.count("error: ") == 1
    assert "ConsoleSink gives at-least-once" in err
    assert "Traceback" not in err


def test_every_mistake_of_a_job_is_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        APP + "numbers.sink(hf.ConsoleSink())\nnumbers.key_by('x').aggregate()\n"
    )
    code, _, err = run("guarantees", str(tmp_path / "bad.py"))
    assert code == 2
    lines = [line for line in err.splitlines() if line]
    assert len(lines) >= 3
    assert all(line.startswith("error: bad.py:") for line in lines)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FencedOut(1, 2, "claimed by host b"), 77),
        (UserCodeError("totals", 3, "a", "row", "ValueError"), 3),
        (ValueError("boom"), UNEXPECTED),
    ],
)
def test_an_error_decides_the_exit_code(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("holdfast.runtime.job.Job.start", fail)
    got, _, err = run("run", app, "--checkpoint", str(tmp_path / "ck"))
    assert got == code
    assert err.splitlines() == [f"error: {line}" for line in options.explained(error)]


def test_verbose_shows_the_traceback(app: str, tmp_path: Path) -> None:
    _, _, err = run("run", app, "--checkpoint", str(tmp_path / "ck"), "--verbose")
    assert "Traceback" in err


def test_debug_in_the_environment_shows_the_traceback(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    _, _, err = run("run", app, "--checkpoint", str(tmp_path / "ck"))
    assert "Traceback" in err


def test_an_unexpected_error_is_still_one_line() -> None:
    assert options.explained(ValueError("a\nb")) == [
        "unexpected ValueError: a; run again with --verbose for the traceback"
    ]


def test_version_names_what_is_installed() -> None:
    code, out, _ = run("version")
    assert code == 0
    assert out.startswith("holdfast 0.")
    assert "PySpark 4." in out


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(app: str, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "holdfast", "guarantees", app, *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, options.one_line_errors(verbose=False):
        raise BrokenPipeError("the server hung up")
    assert ended.value.exit_code == UNEXPECTED
    assert "unexpected BrokenPipeError: the server hung up" in capsys.readouterr().err
