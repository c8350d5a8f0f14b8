"""`holdfast rewind`: says what going back to a commit means, asks, and goes back."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.admin.rewind import Outlook, outlook, retained_commits
from holdfast.admin.rewind import rewind as go_back
from holdfast.admin.rewind_job import RetainedBarrier, outlook_of_job, retained_barriers, rewind_job
from holdfast.checkpoint.chain.checkpoint import place_of_part, read_layout
from holdfast.cli.format import answer, counted, moment, new_table, print_rows
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
from holdfast.errors import DefinitionError
from holdfast.storage.urls import open_storage

UNCHANGED = "nothing was written"


def rewind(
    checkpoint: Checkpoint,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="COMMIT", help="The commit, as --list numbers them; the barrier, of a job in parts."
        ),
    ] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List what can be gone back to, newest first; touch nothing.")
    ] = False,
    not_running: NotRunning = False,
    yes: Yes = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Go back to a retained commit: its state and positions hold again. For a job that is not running. Says
    what it means, and asks.

    Epochs that were committed since are read again, with the rows that they had, when the job starts. Sinks
    show what was committed first, and nothing twice. Nothing is deleted: one can go forward again in the same
    way. A job in parts goes back as a whole, to a barrier that went through all of them.
    """
    with one_line_errors(verbose):
        in_parts = read_layout(open_storage(checkpoint)) is not None
        if list_them:
            (_list_barriers if in_parts else _list_commits)(checkpoint, json)
            return
        if to is None:
            raise DefinitionError("say where to go with --to N, or see what there is with --list")
        go = _whole_job if in_parts else _one_checkpoint
        go(checkpoint, to, not_running=not_running, yes=yes, json=json)


def _list_commits(url: str, json: bool) -> None:
    storage, job = open_checkpoint(url)
    print_rows(
        list(retained_commits(storage)),
        as_json=json,
        plain=asdict,
        cells=lambda each: (str(each.number), str(each.epoch), moment(each.at_ms)),
        table=new_table(f"{job.job}: commits to go back to", "commit", "epoch", "time (UTC)"),
        empty=f"no commits in {storage.url} yet",
    )


def _list_barriers(root: str, json: bool) -> None:
    def cells(each: RetainedBarrier) -> tuple[str, ...]:
        commits = ", ".join(f"{part} {commit}" for part, commit in sorted(each.commits.items()))
        return str(each.number), moment(each.at_ms), commits

    print_rows(
        retained_barriers(root),
        as_json=json,
        plain=asdict,
        cells=cells,
        table=new_table("barriers to go back to", "barrier", "time (UTC)", "commit of each part"),
        empty=f"no barrier in {root} can be gone back to; they come with --barrier-interval, and with "
        "savepoints",
    )


def _one_checkpoint(url: str, to: int, *, not_running: bool, yes: bool, json: bool) -> None:
    """Go back with a job, or with one part."""
    storage, job = open_checkpoint(url)
    found = outlook(storage, to)
    if not found.holds:
        for line in described(f"job {job.job!r}", found, storage.url):
            print(line, file=sys.stderr if json else sys.stdout)
    confirm("go there?", yes or found.holds, UNCHANGED)
    done = go_back(storage, to, SystemClock(), not_running=not_running)
    told = {**asdict(done.outlook), "replayed": done.outlook.replayed, "commit": done.commit}
    answer(json, told, *_told(done.commit, done.outlook, storage.url))


def _whole_job(root: str, barrier: int, *, not_running: bool, yes: bool, json: bool) -> None:
    """Go back with all parts of a job."""
    found = outlook_of_job(root, barrier)
    for name, part in found.items():
        for line in described(f"part {name!r}", part, place_of_part(root, name)):
            print(line, file=sys.stderr if json else sys.stdout)
    confirm("go there?", yes, UNCHANGED)
    done = rewind_job(root, barrier, SystemClock(), not_running=not_running)
    told = {name: {**asdict(part.outlook), "commit": part.commit} for name, part in done.items()}
    answer(
        json,
        {"barrier": barrier, "parts": told},
        f"all parts go to barrier {barrier}; start the job again with `holdfast run` or `holdfast node`",
    )


def described(who: str, found: Outlook, url: str) -> list[str]:
    """What going back means, for people. `who`: goes back."""
    now = "damaged" if found.from_epoch is None else f"epoch {found.from_epoch}"
    then = f"epoch {found.to_epoch}, {moment(found.time_ms)} UTC"
    said = [
        f"{who} goes from commit {found.from_commit} ({now}) to commit {found.to_commit} ({then}):",
        "  state and positions of that commit hold again",
    ]
    if found.replayed:
        first, last = found.to_epoch + 1, found.replayed_through
        which = f"{counted(found.replayed, 'epoch')} ({first} to {last})"
        said.append(f"  {which} will be read again, with the rows that they had; the sources must have them")
    else:
        said.append("  no epoch has to be read again")
    said += [
        f"  sink {uid!r} has shown epochs up to {shown}, and does not show them again"
        for uid, shown in sorted(found.sinks.items())
    ]
    said += [
        f"  rows up to epoch {last} wait for sink {uid!r}, which shows them as they were committed"
        for uid, last in sorted(found.waiting.items())
    ]
    said += [
        f"  channel {uid!r} holds epochs up to {filled}, and is not given them again"
        for uid, filled in sorted(found.channels.items())
    ]
    said += [
        f"  the keys of operator {uid!r} are in no commit: where their working copy cannot go back, rows "
        "that are read again count twice"
        for uid in found.uncoordinated
    ]
    if found.other_schemas:
        uids = ", ".join(map(repr, found.other_schemas))
        said.append(
            f"  the stored state of operator {uids} had another schema then; before you start the job, see "
            f"whether it fits that with `holdfast check APP --checkpoint {url}`"
        )
    return said


def _told(commit: int | None, found: Outlook, url: str) -> list[str]:
    if commit is None:
        return [f"commit {found.to_commit} holds already (epoch {found.to_epoch}); nothing was written"]
    return [
        f"commit {commit} goes to commit {found.to_commit}; start the job again with `holdfast run`",
        f"or take it back with `holdfast rewind --checkpoint {url} --to {found.from_commit}`",
    ]
