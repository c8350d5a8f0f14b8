"""`holdfast sinks list | retry | set-aside`: what sinks have shown, and ways out for one that is stuck."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from holdfast.admin.set_aside_rows import Standing, set_aside, standings
from holdfast.checkpoint.chain.history import History
from holdfast.cli.control import NoWait, Timeout, ask_and_tell
from holdfast.cli.format import answer, new_table, print_rows
from holdfast.cli.options import (
    AsJson,
    Checkpoint,
    NotRunning,
    Verbose,
    Yes,
    confirm,
    one_line_errors,
    open_checkpoint,
)
from holdfast.clock import SystemClock
from holdfast.storage.urls import open_storage

sinks = typer.Typer(
    name="sinks",
    no_args_is_help=True,
    help="See what sinks have shown; have one tried again; put aside rows that one cannot show.",
)


@sinks.command("list")
def list_command(checkpoint: Checkpoint, json: AsJson = False, verbose: Verbose = False) -> None:
    """List the sinks of a checkpoint: up to which epoch each has shown rows, and how many wait for it."""
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        numbers = ("shown through epoch", "epochs that wait", "rows that wait")
        print_rows(
            standings(History(storage).load()),
            as_json=json,
            plain=msgspec.to_builtins,
            cells=_cells,
            table=new_table(f"{job.job}: sinks", "sink", *numbers, right=numbers),
        )


def _cells(standing: Standing) -> tuple[str, ...]:
    epochs = standing.waiting_epochs
    waiting = f"{epochs[0]} to {epochs[-1]}" if epochs else "none"
    return standing.sink, f"{standing.shown:,}", waiting, f"{standing.rows:,}"


@sinks.command("retry")
def retry_command(
    sink: Annotated[str, typer.Argument(metavar="UID", help="The uid of the sink.")],
    checkpoint: Checkpoint,
    timeout: Timeout = "1m",
    no_wait: NoWait = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Have a running job try a sink again, now: one that refused an epoch, once that is mended, or one whose
    server is waited for. `holdfast status` shows what came of it."""
    with one_line_errors(verbose):
        ask_and_tell(checkpoint, "retry", {"sink": sink}, timeout, wait=not no_wait, as_json=json)


@sinks.command("set-aside")
def set_aside_command(
    sink: Annotated[str, typer.Argument(metavar="UID", help="The uid of the sink.")],
    checkpoint: Checkpoint,
    to: Annotated[
        str, typer.Option(help="Where to write the rows, as Parquet: a directory, s3://, gs://, az://.")
    ],
    through: Annotated[
        int | None, typer.Option(help="Only epochs up to this one. [default: all that wait]")
    ] = None,
    not_running: NotRunning = False,
    yes: Yes = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write committed rows that a sink cannot show to another place, and let the job go on after them.

    For a job that is not running. The sink never shows these rows itself. After a kill it may show the first
    of the epochs already: look there before you use what was put aside. A sink that is written by lanes may
    show the beginnings of some lanes: each lane of an epoch is a file of its own, UID-EPOCH-LANE.parquet, and
    the sink's mark of that lane says how many of its rows are shown.
    """
    with one_line_errors(verbose):
        storage, _ = open_checkpoint(checkpoint)
        question = f"sink {sink!r} will never show these rows, which will be written to {to}; go on?"
        confirm(question, yes, "nothing was written")
        done = set_aside(
            storage, sink, open_storage(to), SystemClock(), through=through, not_running=not_running
        )
        epochs = f"epochs {done.epochs[0]} to {done.epochs[-1]}"
        told = f"{done.rows:,} rows of {epochs} are in {done.place}; the job goes on after them"
        answer(json, msgspec.to_builtins(done), told)
