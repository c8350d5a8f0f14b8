"""What commands have in common: options, opening a checkpoint, and errors as one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.checkpoint.chain.checkpoint import read_job
from holdfast.checkpoint.store.records import JobRecord
from holdfast.cli.closed_output import CLOSED_OUTPUT, reader_has_gone, write_no_more
from holdfast.errors import UNEXPECTED, DefinitionError, HoldfastError
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

AppFile = Annotated[Path, typer.Argument(metavar="APP", help="The Python file that declares the job.")]
JobName = Annotated[str | None, typer.Option("--job", help="Which job, if the file declares several.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="Where the job's checkpoint is.")]
CheckpointOrSavepoint = Annotated[
    str, typer.Option("--checkpoint", help="Where the checkpoint or savepoint is.")
]
NotRunning = Annotated[
    bool, typer.Option("--not-running", help="The job was killed, and is known not to run.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
DECLINED = 1
"""Exit code where the answer was no."""


@contextmanager
def one_line_errors(verbose: bool) -> Iterator[None]:
    """What goes wrong inside is told in one line, and becomes an exit code."""
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            write_no_more()
            raise typer.Exit(CLOSED_OUTPUT) from error
        if verbose or os.environ.get("HOLDFAST_DEBUG") == "1":
            traceback.print_exc()
        raise typer.Exit(tell(error)) from error


def tell(error: Exception) -> int:
    """Say on standard error what went wrong; gives the exit code that tells a program."""
    for line in explained(error):
        print(f"error: {line}", file=sys.stderr)
    return error.exit_code if isinstance(error, HoldfastError) else UNEXPECTED


def explained(error: Exception) -> list[str]:
    """An error in words; a line for each mistake if it is about several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, HoldfastError):
        return lines
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return [f"unexpected {what}; run again with --verbose for the traceback"]


def open_checkpoint(url: str) -> tuple[Storage, JobRecord]:
    """The storage of a checkpoint, and whose it is. RestoreError: there is no checkpoint."""
    storage = open_storage(url)
    return storage, read_job(storage)


def confirm(question: str, yes: bool, so_far: str) -> None:
    """Go on only if a person agrees. `yes`: one has, on the command line. `so_far`: what has not been done,
    which is told where the answer is no. DefinitionError: there is no terminal to ask at."""
    if yes:
        return
    if not at_a_terminal():
        raise DefinitionError(
            f"{so_far}: there is no terminal to ask at; look at what would be done, then add --yes"
        )
    if not typer.confirm(question, err=True):
        print(so_far, file=sys.stderr)
        raise typer.Exit(DECLINED)


def at_a_terminal() -> bool:
    return sys.stdin.isatty()
