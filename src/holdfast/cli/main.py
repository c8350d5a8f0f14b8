"""The command line: `holdfast run | guarantees | skip | demo | version`.

Always true: what goes wrong is told in one line on standard error, `error: ...`, and by an exit code that
says what to do about it (docs/how-to/run.md). Tracebacks only with --verbose or HOLDFAST_DEBUG=1.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.displays import Display, JsonLines, LivePanel, PlainLines
from holdfast.cli.guaranteeing import print_guarantees
from holdfast.cli.loading import load_job
from holdfast.cli.telling import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.clock import SystemClock

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fault-tolerant stateful stream processing for PySpark.",
)


def main() -> None:
    """The entry point of `holdfast`."""
    app()


@app.command()
def run(
    file: AppFile,
    checkpoint: Annotated[
        str, typer.Option(help="Where to keep the checkpoint: a directory, s3://, gs://, az://.")
    ],
    guarantee: Annotated[
        str, typer.Option(help="exactly-once, at-least-once or at-most-once.")
    ] = "exactly-once",
    until: Annotated[
        str, typer.Option(help="stopped, or exhausted: end when the sources have no more.")
    ] = "stopped",
    checkpoint_interval: Annotated[
        str | None, typer.Option(help="Least time between commits, such as 5s. [default: every epoch]")
    ] = None,
    epoch_interval: Annotated[
        str | None,
        typer.Option(help="Least time between epochs, such as 500ms. [default: as fast as it goes]"),
    ] = None,
    max_rows_per_epoch: Annotated[int | None, typer.Option(help="[default: found by itself]")] = None,
    parallelism: Annotated[
        int | None, typer.Option(help="How many shards. [default: as before, or one per core]")
    ] = None,
    key_groups: Annotated[int, typer.Option(help="Fixed when the checkpoint is created.")] = 128,
    backend: Annotated[str, typer.Option(help="Where working state lives.")] = "lmdb",
    retain: Annotated[int, typer.Option(help="How many commits to keep.")] = 10,
    working_dir: Annotated[
        Path | None,
        typer.Option(help="Local disk for working state. [default: HOLDFAST_WORKING_DIR, or temporary]"),
    ] = None,
    master: Annotated[str | None, typer.Option(help="The Spark master, such as local[4].")] = None,
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a job. Killed at any moment and started again, it goes on exactly where it was."""
    with one_line_errors(verbose), _display(json) as display:
        if master is not None:
            _choose_master(master)
        load_job(file, job).run(
            checkpoint,
            guarantee=guarantee,
            until=until,
            checkpoint_interval=checkpoint_interval,
            epoch_interval=epoch_interval,
            max_rows_per_epoch=max_rows_per_epoch,
            parallelism=parallelism,
            key_groups=key_groups,
            backend=backend,
            retain=retain,
            working_dir=working_dir,
            on_progress=display.progress,
            on_message=display.message,
        )


@app.command()
def guarantees(
    file: AppFile,
    guarantee: Annotated[str, typer.Option(help="The guarantee to ask for.")] = "exactly-once",
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say what each source and sink of a job guarantees, and why. Starts no Spark."""
    with one_line_errors(verbose):
        print_guarantees(load_job(file, job).graph(), guarantee, as_json=json)


@app.command()
def skip(
    checkpoint: Annotated[str, typer.Option(help="Where the checkpoint is.")],
    source: Annotated[str, typer.Option(help="The uid of the source whose planned input has vanished.")],
    verbose: Verbose = False,
) -> None:
    """Give up the input that the next epoch was to read of one source. For a job that is not running."""
    from holdfast.checkpoint.skipping import skip as skip_input
    from holdfast.storage.places import open_storage

    with one_line_errors(verbose):
        plan = skip_input(open_storage(checkpoint), source)
        given_up = plan.slices[source]
        what = f"{given_up.start} to {given_up.end}"
        print(f"epoch {plan.epoch} now reads nothing of {source!r}: {what} is given up")


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
    from holdfast.cli.demo import play

    with one_line_errors(verbose):
        play(Console(), seed=seed, kills=kills, events=events, directory=directory)


@app.command()
def version() -> None:
    """Say which versions are installed."""
    python = ".".join(map(str, sys.version_info[:3]))
    print(
        f"holdfast {installed_version('holdfast')} (PySpark {installed_version('pyspark')}, Python {python})"
    )


def _display(as_json: bool) -> Display:
    if as_json:
        return JsonLines(sys.stdout, SystemClock())
    console = Console()
    return LivePanel(console, SystemClock()) if console.is_terminal else PlainLines(sys.stderr, SystemClock())


def _choose_master(master: str) -> None:
    """Before there is a session, Spark's own variable is the public way to say it."""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {shlex.quote(master)} {given}"
