"""`holdfast sinks list | retry | set-aside`: what sinks have shown, and ways out for one that is stuck."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from holdfast.admin.set_aside_rows import Choice, Standing, choose, set_aside, standings
from holdfast.admin.status import word_of_run
from holdfast.checkpoint.chain.history import History
from holdfast.cli.control import NoWait, Timeout, ask_and_tell
from holdfast.cli.format import answer, counted, new_table, print_rows, sink_told, size
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
from holdfast.ids import epochs_told
from holdfast.storage.urls import open_storage

ANSWER_SECONDS = 2.0

sinks = typer.Typer(
    name="sinks",
    no_args_is_help=True,
    help="See what sinks have shown; have one tried again; put aside rows that one cannot show.",
)


@sinks.command("list")
def list_command(checkpoint: Checkpoint, json: AsJson = False, verbose: Verbose = False) -> None:
    """List the sinks of a job: up to which epoch each has shown rows, how many wait for it, and why one does
    not show them. Its run says so, and is given two seconds; without a run the newest commit does, which may
    know less."""
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        clock = SystemClock()
        run = word_of_run(storage, clock, ANSWER_SECONDS, by="holdfast sinks list")
        live = run.get("sinks", {}) if run is not None else {}
        found = standings(History(storage).load(), live)
        unheard = "no run answers" if run is None else "its run has not asked them yet"
        says = "as its run says" if live else f"as the newest commit says; {unheard}"
        numbers = ("shown through epoch", "epochs that wait", "rows that wait")
        print_rows(
            found,
            as_json=json,
            plain=msgspec.to_builtins,
            cells=_cells,
            table=new_table(f"{job.job}: sinks, {says}", "sink", "state", *numbers, right=numbers),
        )
        if not json:
            for standing in found:
                if standing.refused or standing.unavailable or standing.full:
                    print(f"sink {standing.sink}: {sink_told(live[standing.sink], clock.now_ms())}")


def _cells(standing: Standing) -> tuple[str, ...]:
    epochs = standing.waiting_epochs
    waiting = epochs_told(epochs[0], epochs[-1]).partition(" ")[2] if epochs else "none"
    return standing.sink, _state(standing), f"{standing.shown:,}", waiting, f"{standing.rows:,}"


def _state(standing: Standing) -> str:
    if standing.says == "commit":
        return "not known"
    if standing.refused:
        return "REFUSED"
    return "WAITING" if standing.unavailable else "FULL" if standing.full else "goes on"


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
    server is waited for. Waits until it has shown rows again, and names the epoch; exit code 1: it was tried
    in vain, and why."""
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
        chosen = choose(History(storage).load(), sink, through)
        print(_described(chosen, to), file=sys.stderr if json else sys.stdout)
        question = f"sink {sink!r} will never show these rows, which will be written to {to}; go on?"
        confirm(question, yes, "nothing was written")
        done = set_aside(
            storage, sink, open_storage(to), SystemClock(), through=through, not_running=not_running
        )
        epochs = epochs_told(done.epochs[0], done.epochs[-1])
        told = f"{counted(done.rows, 'row')} of {epochs} are in {done.place}; the job goes on after them"
        answer(json, msgspec.to_builtins(done), told)


def _described(chosen: Choice, to: str) -> str:
    """What would be put aside, for people."""
    epochs = epochs_told(chosen.epochs[0], chosen.epochs[-1])
    what = f"{counted(chosen.rows, 'row')} of {epochs}, {size(chosen.bytes)} in the checkpoint"
    return f"to be put aside: {what}, which wait for sink {chosen.sink!r}; to be written to {to}"
