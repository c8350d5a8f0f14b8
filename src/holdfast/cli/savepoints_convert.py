"""`holdfast savepoints convert`: the same state in another number of key groups, or cut for other tasks."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from holdfast.cli.options import AsJson, Verbose, one_line_errors
from holdfast.runtime.savepoints.savepoint import Savepoint
from holdfast.runtime.spark_session import open_session


def convert(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Where the savepoint is.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty place for the new one.")],
    key_groups: Annotated[
        int | None, typer.Option(help="How many key groups the new one has. [default: as many]")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(help="For how many tasks its files are cut. [default: one per core]")
    ] = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Make another savepoint of the same state, in other key groups, as Parquet. Starts Spark."""
    with one_line_errors(verbose):
        before = Savepoint.open(source)
        made = before.convert(
            target, open_session("savepoint convert"), key_groups=key_groups, parallelism=parallelism
        )
        files = len(made.record.manifest.deltas)
        if json:
            told = {"url": made.url, "job": made.job, "epoch": made.epoch, "key_groups": made.key_groups}
            print(json_module.dumps({**told, "files": files}))
        else:
            groups = f"{before.key_groups} -> {made.key_groups} key groups"
            print(f"{made.url}: job {made.job!r}, epoch {made.epoch}, {groups}, {files} files")
