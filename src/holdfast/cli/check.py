"""`holdfast check`: whether this code can go on from that state, and what would change."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.admin.upgrade_check import Rehearsal, rehearse
from holdfast.cli.load_job import load_job
from holdfast.cli.options import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.errors import RestoreError
from holdfast.runtime.spark_session import open_session
from holdfast.storage.urls import open_storage

_STYLES = {"added": "green", "converted": "cyan", "renamed": "cyan", "changed": "cyan", "dropped": "red"}


def check(
    file: AppFile,
    checkpoint: Annotated[str, typer.Option(help="Where the checkpoint, or a savepoint, is.")],
    allow_dropped_state: Annotated[
        bool, typer.Option("--allow-dropped-state", help="As it would be given to `run`.")
    ] = False,
    guarantee: Annotated[str, typer.Option(help="As it would be given to `run`.")] = "exactly-once",
    parallelism: Annotated[int | None, typer.Option(help="As it would be given to `run`.")] = None,
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say whether a job can go on from a checkpoint, and what would change. Touches nothing; exit code 4: it
    cannot. Starts a local Spark only where a transform comes before an operator, to learn its columns.
    """
    with one_line_errors(verbose):
        graph = load_job(file, job).graph()
        found = rehearse(
            graph,
            open_storage(checkpoint),
            lambda: open_session(graph.name),
            allow_dropped_state=allow_dropped_state,
            guarantee=guarantee,
            parallelism=parallelism,
        )
        if json:
            _print_lines(found)
        else:
            _print_table(found)
        if found.problems:
            raise RestoreError("\n".join(found.problems))


def _print_lines(found: Rehearsal) -> None:
    for finding in found.findings:
        sys.stdout.write(json_module.dumps(asdict(finding)) + "\n")
    verdict = {"job": found.job, "place": found.place, "epoch": found.epoch}
    sys.stdout.write(
        json_module.dumps({**verdict, "can_continue": not found.problems, "problems": found.problems}) + "\n"
    )


def _print_table(found: Rehearsal) -> None:
    console = Console()
    title = f"{found.job}, from epoch {found.epoch} of {found.place}"
    table = Table(title=title, title_justify="left")
    for heading in ("part", "name", "becomes", "more"):
        table.add_column(heading, overflow="fold")
    for finding in found.findings:
        table.add_row(
            finding.part, finding.name, finding.what, finding.detail, style=_STYLES.get(finding.what)
        )
    if found.findings:
        console.print(table)
    if not found.problems:
        console.print("`run` can go on from here; nothing was touched", highlight=False)
