"""`holdfast savepoints list | show | verify | dispose`: what can be done with savepoints without a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.checkpoint.savepoints.layout import (
    FoundSavepoint,
    dispose_savepoint,
    find_claim,
    list_savepoints,
    objects_of,
    read_savepoint,
    size_of,
    verify_savepoint,
)
from holdfast.checkpoint.store.records import SavepointRecord
from holdfast.cli.format import size
from holdfast.cli.options import AsJson, Verbose, one_line_errors
from holdfast.clock import SystemClock
from holdfast.errors import CorruptionError
from holdfast.storage.urls import open_storage

savepoints = typer.Typer(no_args_is_help=True, help="Look at savepoints, check them, remove them.")

Place = Annotated[str, typer.Argument(metavar="URL", help="Where the savepoint is.")]


@savepoints.command("list")
def list_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="A place that has savepoints in it or below it.")],
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List the savepoints in and below a place, unfinished and damaged ones too."""
    with one_line_errors(verbose):
        storage = open_storage(url)
        found = list_savepoints(storage)
        if json:
            for one in found:
                _print_json(_plain(one))
            return
        table = Table(title=f"below {storage.url}", title_justify="left")
        for heading in ("savepoint", "job", "epoch", "taken", "size", "format", "state"):
            table.add_column(heading, overflow="fold")
        for one in found:
            table.add_row(one.url.removeprefix(storage.url).lstrip("/") or ".", *_row(one))
        Console().print(table if found else f"no savepoints in {url}", highlight=False)


@savepoints.command()
def show(url: Place, json: AsJson = False, verbose: Verbose = False) -> None:
    """Say what a savepoint holds. Its bytes are not read: see verify."""
    with one_line_errors(verbose):
        storage = open_storage(url)
        found = FoundSavepoint(storage.url, read_savepoint(storage), find_claim(storage))
        if json:
            _print_json(_plain(found))
            return
        for name, value in _facts(found):
            print(f"{name:>12}  {value}")


@savepoints.command()
def verify(url: Place, json: AsJson = False, verbose: Verbose = False) -> None:
    """Read every byte of a savepoint and say what is damaged or missing."""
    with one_line_errors(verbose):
        problems = verify_savepoint(open_storage(url))
        if json:
            _print_json({"url": url, "whole": not problems, "problems": problems})
        elif problems:
            raise CorruptionError("\n".join(problems))
        else:
            print("whole: every byte is as it was written")
    if problems:
        raise typer.Exit(CorruptionError.exit_code)


@savepoints.command()
def dispose(
    url: Place,
    force: Annotated[bool, typer.Option("--force", help="Even if a job has claimed it.")] = False,
    verbose: Verbose = False,
) -> None:
    """Remove a savepoint, finished or not, and nothing else."""
    with one_line_errors(verbose):
        dispose_savepoint(open_storage(url), SystemClock().now_ms(), force=force)
        print(f"removed the savepoint in {url}")


def _row(one: FoundSavepoint) -> Iterable[str]:
    record = one.record
    if record is None:
        return ("", "", "", "", "", one.problem)
    return (
        record.job,
        f"{record.manifest.last_epoch:,}",
        _time(record.created_ms),
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
    return [
        ("savepoint", f"{record.id} in {one.url}"),
        ("job", f"{record.job} ({record.identity})"),
        ("taken", f"{_time(record.created_ms)}, {_ownership(one)}, by {record.written_by}"),
        ("epoch", f"{manifest.last_epoch:,} (commit {record.commit:,}, {manifest.rows:,} rows)"),
        ("size", f"{size(size_of(record))} in {len(objects_of(manifest)):,} objects, {record.format}"),
        ("cut into", f"{record.key_groups} key groups, {manifest.parallelism} shards"),
        *(("operator", _operator(record, uid)) for uid in _operators(record)),
        *(("source", f"{uid} at {json.dumps(position)}") for uid, position in manifest.positions.items()),
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


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
