"""What every command says in the same way: its common options, and errors as one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import HoldfastError

UNEXPECTED = 70
"""EX_SOFTWARE: nobody foresaw this error."""

AppFile = Annotated[Path, typer.Argument(metavar="APP", help="The Python file that declares the job.")]
JobName = Annotated[str | None, typer.Option("--job", help="Which job, if the file declares several.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]


@contextmanager
def one_line_errors(verbose: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if verbose or os.environ.get("HOLDFAST_DEBUG") == "1":
            traceback.print_exc()
        for line in explained(error):
            print(f"error: {line}", file=sys.stderr)
        raise typer.Exit(error.exit_code if isinstance(error, HoldfastError) else UNEXPECTED) from error


def explained(error: Exception) -> list[str]:
    """An error in words; a line for each mistake if it is about several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, HoldfastError):
        return lines
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return [f"unexpected {what}; run again with --verbose for the traceback"]
