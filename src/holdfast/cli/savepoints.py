"""`holdfast savepoints list | show | verify | convert | dispose`: savepoints, without their job."""

from __future__ import annotations

from collections.abc import Iterable
from json import dumps
from typing import Annotated, Any

import typer

from holdfast.checkpoint.savepoints.stored_savepoint import (
    FoundSavepoint,
    dispose_savepoint,
    find_claim,
    list_savepoints,
    objects_of,
    read_savepoint,
    size_of,
    verify_savepoint,
)
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.cli.format import answer, counted, moment, new_table, print_rows, size
from holdfast.cli.options import AsJson, Verbose, one_line_errors
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError
from holdfast.runtime.savepoints.savepoint import Savepoint
from holdfast.runtime.spark_session import open_session
from holdfast.storage.urls import open_storage

savepoints = typer.Typer(
    name="savepoints", no_args_is_help=True, help="Look at savepoints, check, convert and remove them."
)

SavepointUrl = Annotated[str, typer.Argument(metavar="URL", help="Where the savepoint is.")]


@savepoints.command("list")
def list_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="A place that has savepoints in it or below it.")],
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List the savepoints in and below a place, unfinished and damaged ones too."""
    with one_line_errors(verbose):
        storage = open_storage(url)
        headings = ("savepoint", "job", "epoch", "taken", "size", "format", "state")
        print_rows(
            list_savepoints(storage),
            as_json=json,
            plain=_plain,
            cells=lambda one: (one.url.removeprefix(storage.url).lstrip("/") or ".", *_cells(one)),
            table=new_table(f"below {storage.url}", *headings),
            empty=f"no savepoints in {url}",
        )


@savepoints.command()
def show(url: SavepointUrl, json: AsJson = False, verbose: Verbose = False) -> None:
    """Say what a savepoint holds. Its bytes are not read: see verify."""
    with one_line_errors(verbose):
        storage = open_storage(url)
        found = FoundSavepoint(storage.url, read_savepoint(storage), find_claim(storage))
        answer(json, _plain(found), *(f"{name:>12}  {value}" for name, value in _facts(found)))


@savepoints.command()
def verify(url: SavepointUrl, json: AsJson = False, verbose: Verbose = False) -> None:
    """Read every byte of a savepoint and say what is damaged or missing."""
    with one_line_errors(verbose):
        problems = verify_savepoint(open_storage(url))
        if problems and not json:
            raise CorruptionError("\n".join(problems))
        told = {"url": url, "whole": not problems, "problems": problems}
        answer(json, told, "whole: every byte is as it was written")
    if problems:
        raise typer.Exit(CorruptionError.exit_code)


@savepoints.command()
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
        told = {"url": made.url, "job": made.job, "epoch": made.epoch, "key_groups": made.key_groups}
        groups = f"{before.key_groups} -> {made.key_groups} key groups"
        line = f"{made.url}: job {made.job!r}, epoch {made.epoch}, {groups}, {counted(files, 'file')}"
        answer(json, {**told, "files": files}, line)


@savepoints.command()
def dispose(
    url: SavepointUrl,
    force: Annotated[bool, typer.Option("--force", help="Even if a job has claimed it.")] = False,
    verbose: Verbose = False,
) -> None:
    """Remove a savepoint, finished or not, and nothing else."""
    with one_line_errors(verbose):
        dispose_savepoint(open_storage(url), SystemClock().now_ms(), force=force)
        print(f"removed the savepoint in {url}")


def _cells(one: FoundSavepoint) -> Iterable[str]:
    record = one.record
    if record is None:
        return ("", "", "", "", "", one.problem)
    return (
        record.job,
        f"{record.manifest.last_epoch:,}",
        f"{moment(record.created_ms)} UTC",
        size(size_of(record)),
        record.format,
        one.problem or _ownership(one),
    )


def _ownership(one: FoundSavepoint) -> str:
    if one.claimed is not None:
        return f"claimed by {one.claimed.job} ({one.claimed.checkpoint})"
    return "of a stopped job" if one.record and one.record.stopped else "of a running job"


def _facts(one: FoundSavepoint) -> list[tuple[str, str]]:
    record = one.record
    assert record is not None
    manifest = record.manifest
    objects = counted(len(objects_of(manifest)), "object")
    return [
        ("savepoint", f"{record.id} in {one.url}"),
        ("job", f"{record.job} ({record.identity})"),
        ("taken", f"{moment(record.created_ms)} UTC, {_ownership(one)}, by {record.written_by}"),
        ("epoch", f"{manifest.last_epoch:,} (commit {record.commit:,}, {manifest.rows:,} rows)"),
        ("size", f"{size(size_of(record))} in {objects}, {record.format}"),
        ("cut into", f"{record.key_groups} key groups, {manifest.parallelism} shards"),
        *(("operator", _operator(record, uid)) for uid in _operators(record)),
        *(("source", f"{uid} at {dumps(position)}") for uid, position in manifest.positions.items()),
    ]


def _operators(record: SavepointRecord) -> list[str]:
    return [operator.uid for operator in record.manifest.operators]


def _operator(record: SavepointRecord, uid: str) -> str:
    manifest = record.manifest
    schema = next(operator for operator in manifest.operators if operator.uid == uid)
    states = ", ".join(f"{state.name} {state.type}" for state in schema.states)
    snapshots = sum(file.operator == uid for file in manifest.snapshots)
    deltas = sum(file.operator == uid for file in manifest.deltas)
    lists = sum(file.operator == uid for file in manifest.lists)
    return f"{uid}: {states or 'no state'} (snapshots {snapshots}, deltas {deltas}, lists {lists})"


def _plain(one: FoundSavepoint) -> dict[str, Any]:
    known: dict[str, Any] = {"url": one.url, "problem": one.problem, "claimed_by": None}
    if one.claimed is not None:
        known["claimed_by"] = {"job": one.claimed.job, "checkpoint": one.claimed.checkpoint}
    record = one.record
    if record is None:
        return known
    manifest = record.manifest
    return known | {
        "id": record.id,
        "job": record.job,
        "identity": record.identity,
        "commit": record.commit,
        "epoch": manifest.last_epoch,
        "created_ms": record.created_ms,
        "format": record.format,
        "stopped": record.stopped,
        "key_groups": record.key_groups,
        "parallelism": manifest.parallelism,
        "rows": manifest.rows,
        "bytes": size_of(record),
        "operators": _operators(record),
        "positions": manifest.positions,
    }
