"""`holdfast jvm-archive`: make what lets the JVM behind a job start faster."""

from __future__ import annotations

import os

import typer

from holdfast.cli.options import Verbose, one_line_errors
from holdfast.runtime.jvm_archive import make

NICENESS = 19


def jvm_archive(verbose: Verbose = False) -> None:
    """Record Spark's classes for this machine's Java, so that jobs start and recover faster.

    Takes about half a minute, yields to everything else, and has to be done once: a run of more than a minute
    does it by itself. Useful when an image is built. HOLDFAST_JVM_ARCHIVE=off: nothing is recorded or used.
    """
    os.nice(NICENESS)
    with one_line_errors(verbose):
        made = make()
        typer.echo(f"{made} ({made.stat().st_size >> 20} MiB)")
