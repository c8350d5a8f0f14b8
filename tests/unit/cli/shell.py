"""Commands as a shell sees them: what they print, and their exit codes."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from holdfast.cli.main import app


def call(*arguments: str, code: int = 0) -> list[Any]:
    """Run a command with --json; gives the objects that it printed."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == code, done.output + (done.stderr or "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def text(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output + (done.stderr or "")
    return done.stdout


def refusal(*arguments: str, code: int) -> str:
    """Run a command that is refused; gives its one line."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output + (done.stderr or "")
    (line,) = done.stderr.splitlines()
    return line
