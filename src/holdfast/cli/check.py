"""`holdfast check`: whether this code can go on from that state, and what would change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.admin.job_check import rehearse_job
from holdfast.admin.upgrade_check import Start
from holdfast.cli.format import answer, new_table, print_rows
from holdfast.cli.load_job import load_job
from holdfast.cli.options import (
    AppFile,
    AsJson,
    CheckpointOrSavepoint,
    JobName,
    Verbose,
    one_line_errors,
)
from holdfast.errors import RestoreError
from holdfast.runtime.spark_session import open_session
from holdfast.storage.urls import open_storage

_STYLES = {"added": "green", "converted": "cyan", "renamed": "cyan", "changed": "cyan"}
_STYLES |= {"dropped": "red", "refused": "red"}


def check(
    file: AppFile,
    checkpoint: CheckpointOrSavepoint,
    allow_dropped_state: Annotated[
        bool, typer.Option("--allow-dropped-state", help="As it would be given to `run`.")
    ] = False,
    guarantee: Annotated[str, typer.Option(help="As it would be given to `run`.")] = "exactly-once",
    parallelism: Annotated[int | None, typer.Option(help="As it would be given to `run`.")] = None,
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say whether a job can go on from a checkpoint, and what would change; where there is none yet, whether
    the job is right. A job in parts is checked part by part, or one part at its own place. Sources and sinks
    are asked what a start asks them before Spark is there; of a job that has ended in good order, sinks that
    are written from tasks also what they show. Touches nothing; exit code 4: it cannot. Starts a local Spark
    only where a transform comes before an operator, to learn its columns.
    """
    with one_line_errors(verbose):
        graph = load_job(file, job).graph()
        found = rehearse_job(
            graph,
            open_storage(checkpoint),
            lambda: open_session(graph.name),
            Start(allow_dropped_state, guarantee, parallelism),
        )
        since = f"from epoch {found.epoch} of" if found.epoch is not None else "from"
        in_parts = any(finding.part for finding in found.findings)
        headings = (*(("part",) if in_parts else ()), "kind", "name", "becomes", "more")
        print_rows(
            found.findings,
            as_json=json,
            plain=asdict,
            cells=lambda finding: (
                *((finding.part,) if in_parts else ()),
                finding.kind,
                finding.name,
                finding.what,
                finding.detail,
            ),
            table=new_table(f"{found.job}, {since} {found.place}", *headings),
            style=lambda finding: _STYLES.get(finding.what),
            empty="",
        )
        verdict = {"can_continue": not found.problems, "problems": found.problems, "unasked": found.unasked}
        begins = (
            f"there is no checkpoint in {found.place} yet, and `run` would begin one; nothing was touched"
        )
        goes_on = "`run` can go on from here; nothing was touched"
        if found.unasked:
            sinks = ", ".join(map(repr, found.unasked))
            goes_on += f"; not asked what they show, which `run` does: sink {sinks}"
        good_news = [] if found.problems else [begins if found.is_new else goes_on]
        place = {"job": found.job, "place": found.place, "epoch": found.epoch}
        epochs = {"epochs": found.epochs} if found.epochs else {}
        answer(json, {**place, **epochs, **verdict}, *good_news)
        if found.problems:
            raise RestoreError("\n".join(found.problems))
