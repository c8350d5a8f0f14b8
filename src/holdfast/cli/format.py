"""What commands print: tables and words for people, or JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.closed_output import OutputConsole
from holdfast.runtime.progress import Progress

SAVED_KEYS_SHOWN = (
    "saved", "fetched", "failed", "rejected", "superseded", "held_back", "unanswered", "bypassed",
)  # fmt: skip
_ENDINGS = {
    "stopped": "stopped cleanly",
    "exhausted": "ended cleanly, the sources had no more,",
    "failed": "ended with a failure",
    "unknown": "was a command; the run before it left no word",
}
_OF_EVERY_JOB = ("phase", "epoch", "rows", "rows/s", "lag", "state", "checkpoint age", "restarts", "term")
"""The facts that every run has."""
Thing = TypeVar("Thing")
_SIZES = ("bytes", "kB", "MB", "GB", "TB")


def print_json(value: object) -> None:
    print(json.dumps(value), flush=True)


def answer(as_json: bool, plain: object, *lines: str) -> None:
    """Print one answer: `plain` for programs, `lines` for people."""
    if as_json:
        print_json(plain)
        return
    for each in lines:
        print(each)


def print_rows(
    found: Sequence[Thing],
    *,
    as_json: bool,
    plain: Callable[[Thing], object],
    cells: Callable[[Thing], Iterable[str]],
    table: Table,
    style: Callable[[Thing], str | None] = lambda one: None,
    empty: str | None = None,
) -> None:
    """Print things of one kind: a JSON line each, or the rows of `table`. `empty`: said instead of a table
    without rows.
    """
    if as_json:
        for one in found:
            print_json(plain(one))
        return
    for one in found:
        table.add_row(*map(Text, cells(one)), style=style(one))
    if found or empty != "":
        OutputConsole().print(table if found or empty is None else empty, highlight=False)


def new_table(title: str, *headings: str, right: Collection[str] = (), **look: Any) -> Table:
    """A table without rows. What does not fit a column goes on in the next line."""
    table = Table(title=title, title_justify="left", **look)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def fact_grid(named: Iterable[tuple[str, str]]) -> Table:
    """Facts below one another, each behind its name."""
    grid = Table.grid(padding=(0, 2))
    for name, value in named:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def counted(count: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Bytes with a unit: `12.5 MB`."""
    amount = float(count)
    for unit in _SIZES:
        if amount < 1_000 or unit == _SIZES[-1]:
            break
        amount /= 1_000
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"


def moment(ms: int) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def age(since_ms: int | None, now_ms: int) -> str:
    """How long ago something was: `0.4 s`, `3 min`."""
    if since_ms is None:
        return "none yet"
    seconds = max(0, now_ms - since_ms) / 1_000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


def behind(watermark_ms: int | None, now_ms: int) -> str:
    """How far event time is, and how far that is behind the clock."""
    if watermark_ms is None:
        return "not known yet"
    try:
        at = f"{moment(watermark_ms)} UTC"
    except (ValueError, OverflowError, OSError):
        at = f"{watermark_ms} ms since 1970"
    return f"{at}, {age(watermark_ms, now_ms)} behind" if watermark_ms <= now_ms else at


def ending(ended: dict[str, Any]) -> str:
    """How a run ended, from the fields of its `EndedRecord`."""
    how = _ENDINGS[ended["ending"]]
    shown = "everything published" if ended["published"] else "some sinks show less than is committed"
    at = f"{how} at {moment(ended['at_ms'])} UTC"
    return at if ended["ending"] in ("failed", "unknown") else f"{at}, {shown}"


def rows(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def lag(progress: Progress) -> str:
    """What waits at the sources: rows, and files where these are what is counted."""
    said = [] if progress.lag_rows is None else [counted(progress.lag_rows, "row")]
    if progress.waiting_files is not None:
        said.append(f"{counted(progress.waiting_files, 'file')}, {size(progress.waiting_bytes or 0)}")
    return " and ".join(said) or ("unknown" if progress.epochs_run else "not known yet")


def saved_keys(numbers: dict[str, int]) -> str:
    """How keys that are saved on their own stand."""
    said = f"{counted(numbers['unsaved'], 'event')} in no save, {rows(numbers['lost'])} lost at most"
    shown = [name for name in SAVED_KEYS_SHOWN if numbers.get(name)]
    keys = [f"{rows(numbers[name])} {name.replace('_', ' ')}" for name in shown]
    return f"{said}; keys {', '.join(keys)}" if keys else said


def source_told(one: dict[str, Any], now_ms: int) -> str:
    """What there is to tell of a source, from its part of `Progress.sources`."""
    said = []
    if away := one.get("unavailable"):
        said.append(outage_told(away, now_ms))
    if one.get("health"):
        said.append(one["health"])
    if one["silent"]:
        said.append(f"SILENT for {age(one['rows_ms'], now_ms)}")
    if one["set_aside"]:
        said.append(f"{counted(one['set_aside'], 'row')} set aside; the newest: {one['reason']}")
    said += [f"new column {name!r} first seen in file {file!r}" for name, file in one["undeclared"].items()]
    return "; ".join(said)


def table_told(one: dict[str, Any], now_ms: int) -> str:
    """The copy of a table that a lookup uses, and why there is no newer one."""
    said = f"{counted(one['rows'], 'row')}, read {age(one['read_ms'], now_ms)} ago"
    return f"{said}; no newer copy could be made: {one['error']}" if one["error"] else said


def channel_told(one: dict[str, Any]) -> str:
    """What waits in a channel, from its part of `Progress.channels`."""
    if not one["rows"]:
        return f"nothing waits for {one['part']}"
    waits = f"{counted(one['rows'], 'row')} of {counted(one['epochs'], 'epoch')}, {size(one['bytes'])}"
    return f"{waits} wait for {one['part']}{'; FULL' if one['full'] else ''}"


def sink_told(one: dict[str, Any], now_ms: int) -> str:
    """What there is to tell of a sink, from its part of `Progress.sinks`."""
    said = []
    if away := one["unavailable"]:
        said.append(outage_told(away, now_ms))
    if refused := one.get("refused"):
        said.append(
            f"REFUSED for {age(refused['since_ms'], now_ms)}: {refused['reason']} (tried "
            f"{counted(refused['tries'], 'time')}, again by `holdfast sinks retry`)"
        )
    if one["epochs"] > 1 or away or refused or one["full"]:
        waits = f"{counted(one['epochs'], 'epoch')}, {size(one['bytes'])}, committed and not shown"
        said.append(f"{waits}{'; FULL: nothing is read' if one['full'] else ''}")
    return "; ".join(said)


def latency_told(latency: dict[str, Any]) -> str:
    """How long rows took until a sink showed them, from its part of `Progress.sinks`."""
    if latency["p50"] is None:
        return "no rows in the last minute"
    return ", ".join(f"{name} {latency[name]:,.2f} s" for name in ("p50", "p95", "p99"))


def outage_told(away: dict[str, Any], now_ms: int) -> str:
    """A server that is waited for."""
    again = max(0, away["next_try_ms"] - now_ms) / 1_000
    return (
        f"WAITING for its server for {age(away['since_ms'], now_ms)}: {away['reason']} "
        f"(tried {counted(away['tries'], 'time')}, again in {again:.0f} s)"
    )


def lost_told(lost: dict[str, Any], reader: str, now_ms: int) -> str:
    """Epochs of a channel that were found damaged, from the fields of `LostEpochs`. `reader`: who waits."""
    many = len(lost["epochs"]) > 1
    what = f"LOST: epoch{'s' * many} {', '.join(map(str, lost['epochs']))}"
    asked = f"asked for again by commit {lost['commit']:,} of {reader}"
    if lost["asked_ms"] is not None:
        asked += f", after an epoch that began {age(lost['asked_ms'], now_ms)} ago"
    return f"{what}, {asked}; {'being computed again' if lost['answered'] else 'not answered yet'}"


def facts(progress: Progress, now_ms: int) -> list[tuple[str, str]]:
    """What a person wants to know of a run, in reading order. Not its error: that is told when it happens."""
    idle = progress.idle_sources
    return [
        ("phase", progress.phase),
        ("epoch", f"{progress.epoch:,} (committed {progress.committed_epoch:,})"),
        ("rows", rows(progress.rows)),
        ("rows/s", f"{progress.rows_per_second:,.0f}"),
        ("lag", lag(progress)),
        *(
            (f"source {uid}", told)
            for uid, one in progress.sources.items()
            if (told := source_told(one, now_ms))
        ),
        ("state", size(progress.state_bytes)),
        *((f"keys of {uid}", saved_keys(numbers)) for uid, numbers in progress.own_keys.items()),
        *((f"watermark of {uid}", behind(at, now_ms)) for uid, at in progress.watermarks.items()),
        *((f"late rows of {uid}", str(rows)) for uid, rows in progress.late_rows.items()),
        *((f"table of {uid}", table_told(one, now_ms)) for uid, one in progress.tables.items()),
        *((f"channel {uid}", channel_told(one)) for uid, one in progress.channels.items()),
        *((f"sink {uid}", told) for uid, one in progress.sinks.items() if (told := sink_told(one, now_ms))),
        *(
            (f"latency to {uid}", latency_told(latency))
            for uid, one in progress.sinks.items()
            if (latency := one.get("latency"))
        ),
        *([("target latency", f"{target:g} s")] if (target := progress.target_latency) else []),
        *([("idle sources", f"{', '.join(idle)}; event time does not wait for them")] if idle else []),
        ("checkpoint age", age(progress.committed_ms, now_ms)),
        ("restarts", str(progress.restarts)),
        ("term", str(progress.term)),
    ]


def line(progress: Progress, now_ms: int) -> str:
    """A run in one line."""
    first, *others = facts(progress, now_ms)
    return f"{progress.job}: {first[1]}, " + ", ".join(f"{name} {value}" for name, value in others)


def several_jobs(told: Sequence[Progress], now_ms: int) -> tuple[str, RenderableType]:
    """Several runs, a row for each, and below that what only some have to tell. First the name of the job, if
    all are parts of one; empty: they are not.
    """
    owners = {progress.job.rpartition(".")[0] for progress in told}
    job = owners.pop() if len(owners) == 1 else ""
    named = {progress.job.removeprefix(f"{job}.") if job else progress.job: progress for progress in told}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("part" if job else "job", *_OF_EVERY_JOB):
        table.add_column(heading, overflow="fold")
    more = []
    for name, progress in named.items():
        found = facts(progress, now_ms)
        of_every = {fact: value for fact, value in found if fact in _OF_EVERY_JOB}
        table.add_row(*(Text(cell) for cell in (name, *(of_every[fact] for fact in _OF_EVERY_JOB))))
        more += [(f"{name}: {fact}", value) for fact, value in found if fact not in _OF_EVERY_JOB]
    return job, Group(table, Text(), fact_grid(more)) if more else table
