"""`holdfast skip`: shows what would be given up, asks, and gives it up."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.checkpoint.chain.skip import Choice, GivenUp, choose, give_up
from holdfast.cli.format import answer, counted, size
from holdfast.cli.options import (
    AsJson,
    Checkpoint,
    Verbose,
    Yes,
    confirm,
    one_line_errors,
    open_checkpoint,
)
from holdfast.clock import SystemClock
from holdfast.errors import RestoreError
from holdfast.runtime.control.request_client import asker, status_of_leader
from holdfast.storage.contract import Storage

ANSWER_SECONDS = 2.0
FILES_SHOWN = 50


def skip(
    checkpoint: Checkpoint,
    epoch: Annotated[int | None, typer.Option(help="Which epoch. [default: the next one]")] = None,
    source: Annotated[str | None, typer.Option(help="Only what it reads of this source (its uid).")] = None,
    file: Annotated[
        list[str] | None, typer.Option(help="Only this file; may be given several times.")
    ] = None,
    yes: Yes = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Give up input that a planned epoch cannot read or process: a file, a source's part, or all of it. For a
    job that is not running. Shows what would be lost, and asks.
    """
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        choice = choose(storage, epoch=epoch, source=source, files=file or ())
        _refuse_if_led(storage)
        for line in described(job.job, choice):
            print(line, file=sys.stderr if json else sys.stdout)
        confirm("give this up?", yes, "nothing was given up")
        plan = give_up(storage, choice)
        parts = [asdict(part) for part in choice.parts]
        told = {"epoch": plan.epoch, "attempt": plan.attempt, "given_up": parts}
        which = f"attempt {plan.attempt} of the plan of epoch {plan.epoch}"
        answer(json, told, f"given up, by {which}; start the job again")


def described(job: str, choice: Choice) -> list[str]:
    """What would be given up, and what not, for people."""
    said = [f"epoch {choice.plan.epoch} of job {job!r} would not read:"]
    for part in choice.parts:
        said += _part(part)
    kept = [
        f"{uid} without these files" if any(part.source == uid for part in choice.parts) else uid
        for uid in choice.left
    ]
    said.append(f"it still reads: {', '.join(kept) or 'nothing'}")
    said.append("what is given up will be in no state, and is not read later; sinks that show it keep it")
    return said


def _part(part: GivenUp) -> list[str]:
    what = "all of it" if part.whole else "some of its files"
    known = "rows not counted" if part.rows is None else counted(part.rows, "row")
    if not part.files:
        start = "the beginning" if part.start is None else json_module.dumps(part.start)
        end = json_module.dumps(part.end)
        return [f"  source {part.source!r}, {what}: after {start} up to {end}, {known}"]
    total = size(sum(file.size for file in part.files))
    said = [f"  source {part.source!r}, {what}: {counted(len(part.files), 'file')}, {total}, {known}"]
    said += [f"    {file.name} ({size(file.size)})" for file in part.files[:FILES_SHOWN]]
    more = len(part.files) - FILES_SHOWN
    return [*said, f"    and {more:,} more"] if more > 0 else said


def _refuse_if_led(storage: Storage) -> None:
    """A leader follows the plan that it has read, and would not see another."""
    if runs_no_more(storage):
        return
    told = status_of_leader(storage, SystemClock(), ANSWER_SECONDS, by=asker("holdfast skip"))
    if told is not None:
        raise RestoreError(
            f"the job runs (phase {told.get('phase')}, epoch {told.get('epoch')}); end it first: "
            f"`holdfast stop --checkpoint {storage.url}`"
        )
