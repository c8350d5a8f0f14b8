"""`holdfast channels list | remove`: what the channels of a part hold, and how a former one is given up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.admin.remove_channel import HeldChannel, held_channels, removable, remove_channel
from holdfast.checkpoint.chain.history import History
from holdfast.cli.format import answer, counted, lost_told, new_table, print_rows
from holdfast.cli.load_job import load_job
from holdfast.cli.options import (
    AsJson,
    Checkpoint,
    JobName,
    NotRunning,
    Verbose,
    Yes,
    confirm,
    one_line_errors,
    open_checkpoint,
)
from holdfast.clock import SystemClock
from holdfast.runtime.parts.part_jobs import layout_of
from holdfast.storage.urls import open_storage

channels = typer.Typer(
    name="channels",
    no_args_is_help=True,
    help="See what the channels of a part hold; give up those that the job has no more.",
)


@channels.command("list")
def list_command(checkpoint: Checkpoint, json: AsJson = False, verbose: Verbose = False) -> None:
    """List the channels that leave a part: how many rows each holds, how many are not read yet, and which
    epochs were found damaged and are asked for again."""
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        numbers = ("sent through epoch", "released through epoch", "rows", "not read")
        begun = History(storage).load().number > 0
        nothing_yet = (
            f"{job.job} has committed nothing yet, so that its channels hold nothing; look again later"
        )
        print_rows(
            held_channels(storage),
            as_json=json,
            plain=msgspec.to_builtins,
            cells=partial(_cells, now_ms=SystemClock().now_ms()),
            table=new_table(f"{job.job}: channels", "channel", "to", *numbers, "", right=numbers),
            empty=f"no channel leaves {job.job}" if begun else nothing_yet,
        )


def _cells(held: HeldChannel, now_ms: int) -> tuple[str, ...]:
    numbers = (f"{number:,}" for number in (held.through, held.released, held.rows, held.unread))
    lost = lost_told(msgspec.to_builtins(held.lost), held.reader, now_ms) if held.lost else ""
    return held.channel, held.reader or "not known", *numbers, lost


@channels.command("remove")
def remove_command(
    channel: Annotated[str, typer.Argument(metavar="UID", help="The uid of the channel.")],
    checkpoint: Checkpoint,
    to: Annotated[
        str | None,
        typer.Option(help="Write the rows there first, as Parquet: a directory, s3://, gs://, az://."),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of the job, if it was not started without it so far."),
    ] = None,
    job: JobName = None,
    not_running: NotRunning = False,
    yes: Yes = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Give up the rows of a channel that the job has no more, so that the part that sent them can start.

    For a part that is not running: --checkpoint is that of the part, below parts/ of the job's. The rows that
    no part has read are lost, unless --to says where to write them. A job that has the channel no more cannot
    start as long as these rows are there: name its file with --app. Which jobs and queries read a door
    (hf.ChannelSink) is not known: all its rows count as not read.
    """
    with one_line_errors(verbose):
        storage, _ = open_checkpoint(checkpoint)
        declared = layout_of(load_job(app, job).graph()) if app is not None else None
        held = removable(storage, channel, declared)
        fate = f"will be written to {to}" if to else "will be lost"
        confirm(f"{_at_stake(held)} {fate}; go on?", yes, "nothing was given up")
        target = open_storage(to) if to is not None else None
        done = remove_channel(
            storage, channel, target, SystemClock(), declared=declared, not_running=not_running
        )
        where = f"written to {done.place}" if done.place is not None else "given up"
        unread = "were not read" if held.reader else "may not have been read"
        told = f"channel {channel!r} is removed; {counted(done.rows, 'row')} that {unread}: {where}"
        answer(json, msgspec.to_builtins(done), told)


def _at_stake(held: HeldChannel) -> str:
    """Which rows are given up with a channel, as the beginning of a question."""
    rows = counted(held.unread, "row")
    if held.reader:
        return f"{rows} of channel {held.channel!r} that part {held.reader!r} has not read"
    return (
        f"channel {held.channel!r} is read by jobs or queries that are not known here, nor how far they have "
        f"come: its {rows}"
    )
