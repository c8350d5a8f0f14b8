"""The command line: `holdfast`, put together from the modules that hold its commands.

Always true: what goes wrong is one line on standard error, `error: ...`, and an exit code that says what to
do about it (docs/how-to/run.md). Tracebacks only with --verbose or HOLDFAST_DEBUG=1.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.channels import channels
from holdfast.cli.chaos import chaos
from holdfast.cli.check import check
from holdfast.cli.checkpoints import checkpoints
from holdfast.cli.control import request, rescale, savepoint, stop
from holdfast.cli.guarantees import guarantees
from holdfast.cli.jvm_archive import jvm_archive
from holdfast.cli.node import handover, node, zookeeper
from holdfast.cli.options import Verbose, one_line_errors
from holdfast.cli.plan import plan
from holdfast.cli.rewind import rewind
from holdfast.cli.run import run
from holdfast.cli.savepoints import savepoints
from holdfast.cli.sinks import sinks
from holdfast.cli.skip import skip
from holdfast.cli.state import state
from holdfast.cli.status import status

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In the usual mode, rich takes the "[default: ...]" of a help text for markup, and hides it.
    rich_markup_mode="markdown",
    help="Fault-tolerant stateful stream processing for PySpark.",
)
for command in (
    run, check, plan, chaos, status, stop, savepoint, rescale, request, skip, rewind, node, handover,
    zookeeper, guarantees, jvm_archive,
):  # fmt: skip
    app.command()(command)
for group in (savepoints, checkpoints, state, sinks, channels):
    app.add_typer(group)


def main() -> None:
    """The entry point of `holdfast`."""
    app()


@app.command()
def demo(
    seed: Annotated[int | None, typer.Option(help="Repeat the kills of an earlier demo.")] = None,
    kills: Annotated[int, typer.Option(min=0, max=20)] = 4,
    events: Annotated[int, typer.Option(min=1, max=100_000_000)] = 1_000_000,
    directory: Annotated[
        Path | None, typer.Option(help="An empty directory. [default: a temporary one]")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Kill a running job with kill -9 again and again, then prove that nothing was lost or doubled."""
    from holdfast.cli.demo.command import play

    with one_line_errors(verbose):
        play(Console(), seed=seed, kills=kills, events=events, directory=directory)


@app.command()
def version() -> None:
    """Say which versions are installed."""
    python = ".".join(map(str, sys.version_info[:3]))
    print(
        f"holdfast {installed_version('holdfast')} (PySpark {installed_version('pyspark')}, Python {python})"
    )
