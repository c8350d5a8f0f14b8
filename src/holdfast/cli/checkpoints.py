"""`holdfast checkpoints list | show | verify | prune`: what a checkpoint holds, and how much is kept."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console

from holdfast.admin.prune import Pruned, prune
from holdfast.checkpoint.chain.history import DamagedChain, History, brings_manifest
from holdfast.checkpoint.chain.history import verify as damaged_records
from holdfast.checkpoint.chain.pins import read_pins
from holdfast.checkpoint.chain.view import CheckpointView, to_manifest
from holdfast.checkpoint.savepoints.copy import Copy, chunks_of, damage_in
from holdfast.checkpoint.store.records import CommitRecord, Extent
from holdfast.cli.closed_output import OutputConsole
from holdfast.cli.format import answer, counted, fact_grid, moment, new_table, print_json, print_rows, size
from holdfast.cli.options import AsJson, Checkpoint, Verbose, one_line_errors, open_checkpoint
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import epochs_told
from holdfast.runtime.recovery import Inspector
from holdfast.storage.contract import Storage

checkpoints = typer.Typer(
    name="checkpoints",
    no_args_is_help=True,
    help="Look at the commits of a checkpoint, check them, give up old ones.",
)

Number = Annotated[int, typer.Argument(metavar="N", help="The number of the commit.")]


@checkpoints.command("list")
def list_command(checkpoint: Checkpoint, json: AsJson = False, verbose: Verbose = False) -> None:
    """List the commits that are in storage, oldest first."""
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        table = new_table(
            f"{job.job}: commits in {storage.url}",
            "commit", "epochs", "time", "term", "rows", "files", "size", "kept",
            right=("rows", "files", "size"), box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0),
        )  # fmt: skip
        *others, kept = table.columns
        # Whether one can go back to a commit is seen also where the terminal is narrow.
        kept.min_width = 8
        for column in others:
            column.no_wrap, column.overflow = True, "ellipsis"
        print_rows(
            _commits(storage),
            as_json=json,
            plain=dict,
            cells=_cells,
            table=table,
            empty=f"no commits in {storage.url} yet",
        )


def _commits(storage: Storage) -> list[dict[str, Any]]:
    history = History(storage)
    try:
        retained_from = history.load().retained_from
    except DamagedChain as damage:
        retained_from = damage.head.retained_from
    pins: dict[int, list[str]] = {}
    for pin in read_pins(storage).held_at(SystemClock().now_ms()):
        pins.setdefault(pin.commit, []).append(pin.holder)
    rows: list[dict[str, Any]] = []
    for number in history.numbers():
        row: dict[str, Any] = {"commit": number, "retained": number >= retained_from}
        row["pinned_by"] = pins.get(number, [])
        try:
            rows.append({**row, **_facts(history.record(number))})
        except CorruptionError as damage:
            rows.append({**row, "damage": str(damage)})
    return rows


def _facts(record: CommitRecord) -> dict[str, Any]:
    extents = [delta.extent for delta in record.deltas]
    extents += [file.extent for file in record.staged]
    extents += [held.extent for held in record.lists]
    extents += [extent for copy in (record.tables or {}).values() for extent in copy.extents]
    return {
        "first_epoch": record.first_epoch,
        "last_epoch": record.last_epoch,
        "time_ms": record.clock_ms,
        "term": record.term,
        "run": record.run,
        "rows": record.rows,
        "files": len(extents) + len(record.snapshots),
        "bytes": sum(extent.length for extent in extents) + sum(file.length for file in record.snapshots),
        "manifest": brings_manifest(record),
        "rewind_to": record.rewind_to,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    kept = "yes" if row["retained"] else "no"
    if row["pinned_by"]:
        kept = f"pinned by {', '.join(row['pinned_by'])}"
    if row.get("rewind_to") is not None:
        kept += f", commit {row['rewind_to']} again"
    if row.get("manifest"):
        kept += ", manifest"
    if "damage" in row:
        return [str(row["commit"]), "damaged", "", "", "", "", "", kept]
    first, last = row["first_epoch"], row["last_epoch"]
    epochs = f"{first}" if first == last else f"{first} to {last}" if first < last else f"none ({last})"
    if row["rewind_to"] is not None:
        epochs = f"{last} again"
    return [
        str(row["commit"]), epochs, moment(row["time_ms"]), str(row["term"]), f"{row['rows']:,}",
        str(row["files"]), size(row["bytes"]), kept,
    ]  # fmt: skip


@checkpoints.command()
def show(number: Number, checkpoint: Checkpoint, json: AsJson = False, verbose: Verbose = False) -> None:
    """Show everything about one commit: its record, and the checkpoint that it leads to."""
    with one_line_errors(verbose):
        history = History(open_checkpoint(checkpoint)[0])
        number = _chosen(history, number)
        record, view = history.record(number), history.view_at(number)
        if json:
            print_json(msgspec.to_builtins({"record": record, "checkpoint": to_manifest(view)}))
        else:
            _show(OutputConsole(), record, view)


def _show(console: Console, record: CommitRecord, view: CheckpointView) -> None:
    facts = _facts(record)
    told = {
        "commit": f"{record.number}, after commit {record.parent.number}",
        "epochs": f"{record.first_epoch} to {record.last_epoch}" if record.attempts else "none",
        "time": moment(record.clock_ms),
        "leader": f"term {record.term}, run {record.run}",
        "rows": f"{record.rows:,} (in all {view.rows:,})",
        "parallelism": str(record.parallelism),
        "code": record.fingerprint,
        "own files": f"{facts['files']} ({size(facts['bytes'])})",
        "retained from": f"commit {record.retained_from}",
        "positions": json_module.dumps(msgspec.to_builtins(view.positions)),
        "published through": json_module.dumps(view.published_through),
    }
    kept = sorted({file.epoch for file in view.staged if file.epoch > view.last_epoch})
    if kept:
        told["waiting for sinks"] = f"rows of {epochs_told(kept[0], kept[-1])}, committed before a rewind"
    console.print(fact_grid(told.items()), highlight=False)
    table = new_table("state that it leads to", "operator", "key", "states", "snapshots", "deltas", "lists")
    for schema in view.operators:
        deltas = view.live_deltas(schema.uid)
        snapshots = view.snapshots.get(schema.uid, ())
        lists = view.lists.get(schema.uid, ())
        table.add_row(
            schema.uid,
            ", ".join(f"{name} {ddl}" for name, ddl in schema.key),
            "\n".join(f"{state.name}: {state.kind} of {state.type}" for state in schema.states),
            f"{len(snapshots)} ({size(sum(file.length for file in snapshots))})",
            f"{len(deltas)} ({size(sum(delta.extent.length for delta in deltas))})",
            str(len(lists)),
        )
    console.print(table, highlight=False)


@checkpoints.command()
def verify(
    checkpoint: Checkpoint,
    number: Annotated[int | None, typer.Argument(metavar="[N]", help="[default: the newest]")] = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Read every byte that a commit names, and every record. Exit code 5 if something is damaged."""
    found: dict[str, Any] = {}
    with one_line_errors(verbose):
        storage, job = open_checkpoint(checkpoint)
        found = _verified(storage, job.key_groups, number)
        what = f"commit {found['commit']}: {counted(found['files'], 'file')}, {size(found['bytes'])}"
        state = "whole" if not found["damage"] else "damaged, and can be restored from other files"
        verdict = f"{what}, {state if found['restorable'] else 'damaged, and cannot be restored'}"
        answer(json, found, *(f"damage: {problem}" for problem in found["damage"]), verdict)
    if found["damage"]:
        raise typer.Exit(CorruptionError.exit_code)


def _verified(storage: Storage, key_groups: int, number: int | None) -> dict[str, Any]:
    history = History(storage)
    number = _chosen(history, number)
    problems = damaged_records(history)
    try:
        view = history.view_at(number)
    except CorruptionError as damage:
        problems += [] if str(damage) in problems else [str(damage)]
        return {"commit": number, "files": 0, "bytes": 0, "restorable": False, "damage": problems}
    copies = copies_of(view)
    problems += damage_in(storage, copies)
    whole = not problems
    return {
        "commit": number,
        "epoch": view.last_epoch,
        "files": len(copies),
        "bytes": sum(copy.length for copy in copies),
        "restorable": whole or Inspector(storage, key_groups, lambda text: None).restorable(view),
        "damage": problems,
    }


def copies_of(view: CheckpointView) -> list[Copy]:
    """Every object that restoring and publishing from a view may need, with the stretches to be checked."""
    objects: dict[str, list[Extent]] = {}
    for files in view.snapshots.values():
        for file in files:
            objects.setdefault(file.object, list(chunks_of(file)))
    extents = [delta.extent for uid in view.deltas for delta in view.live_deltas(uid)]
    extents += [file.extent for file in view.staged]
    extents += [file.extent for files in view.lists.values() for file in files]
    extents += [extent for copy in view.tables.values() for extent in copy.extents]
    for extent in extents:
        objects.setdefault(extent.object, []).append(extent)
    return [Copy(name, tuple(stretches)) for name, stretches in sorted(objects.items())]


def _chosen(history: History, number: int | None) -> int:
    numbers = history.numbers()
    if not numbers:
        raise RestoreError(f"there are no commits in {history.storage.url} yet; start the job to make some")
    if number is not None and number not in numbers:
        there = f"{numbers[0]} to {numbers[-1]}" if numbers[1:] else f"only commit {numbers[0]}"
        raise RestoreError(
            f"there is no commit {number} in {history.storage.url}; there are {there}: choose one of them "
            "(`holdfast checkpoints list` tells what they hold)"
        )
    return number or numbers[-1]


@checkpoints.command("prune")
def prune_command(
    checkpoint: Checkpoint,
    keep: Annotated[int, typer.Option(help="How many of the newest commits to keep.")],
    pins_older_than: Annotated[
        str | None, typer.Option(help="Also drop pins older than this, such as 1d: their readers fail.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be given up.")] = False,
    not_running: Annotated[
        bool,
        typer.Option("--not-running", help="The job is known not to run, its leader was killed."),
    ] = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Give up old commits and delete what only they need. Beside a running job: only what it has given up."""
    with one_line_errors(verbose):
        done = prune(
            open_checkpoint(checkpoint)[0],
            keep,
            SystemClock(),
            pins_older_than_ms=duration_ms(pins_older_than) if pins_older_than else None,
            dry_run=dry_run,
            not_running=not_running,
        )
        answer(json, msgspec.to_builtins(done), *_told(done, dry_run))


def _told(done: Pruned, dry_run: bool) -> list[str]:
    would = "would be " if dry_run else ""
    lines = []
    if done.led:
        lines.append("the job runs: its leader decides how many commits to keep (run --retain)")
    if done.given_up:
        given_up = f"{done.given_up[0]} to {done.given_up[-1]}"
        lines.append(f"commits {given_up} {would}given up")
    if done.pins_dropped:
        lines.append(f"{counted(len(done.pins_dropped), 'pin')} {would}dropped")
    if done.held_back:
        lines.append(f"nothing could be deleted: {done.held_back}")
    lines.append(
        f"commits {done.retained_from} to {done.newest} are kept"
        + ("" if dry_run else f"; {counted(done.deleted, 'object')} deleted")
    )
    return lines
