"""`holdfast status`: how a job stands, from storage, and from its leader if one answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.admin.cluster import cluster_standing, visit
from holdfast.admin.parts import job_standing
from holdfast.cli.closed_output import OutputConsole
from holdfast.cli.cluster_tables import cluster_picture
from holdfast.cli.format import (
    age,
    behind,
    counted,
    ending,
    fact_grid,
    facts,
    lost_told,
    new_table,
    print_json,
    rows,
    saved_keys,
    size,
)  # fmt: skip
from holdfast.cli.node import AuthFile, Tls, TlsCa, TlsCertificate, TlsKey, reached_by
from holdfast.cli.options import AsJson, Verbose, one_line_errors
from holdfast.clock import Clock, SystemClock
from holdfast.errors import DefinitionError
from holdfast.runtime.progress import Progress
from holdfast.storage.urls import open_storage

ANSWER_SECONDS = 2.0
WATCH_SECONDS = 2.0
FAILURES_SHOWN = 10


def status(
    checkpoint: Annotated[str | None, typer.Option(help="Where the job's checkpoint is.")] = None,
    cluster: Annotated[str | None, typer.Option(help="A cluster instead: its seats and nodes.")] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="Where the cluster is known.")
    ] = None,
    zookeeper_auth_file: AuthFile = None,
    zookeeper_tls: Tls = False,
    zookeeper_ca: TlsCa = None,
    zookeeper_cert: TlsCertificate = None,
    zookeeper_key: TlsKey = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")] = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say how a job stands: its leader, its newest checkpoint, its failures. Works also if it does not run.
    With --cluster: its nodes and seats, and the failovers.
    """
    with one_line_errors(verbose), suppress(KeyboardInterrupt):
        clock = SystemClock()
        if cluster is not None and zookeeper is not None and checkpoint is None:
            reached = reached_by(
                zookeeper, zookeeper_auth_file, "10s",
                zookeeper_tls, zookeeper_ca, zookeeper_cert, zookeeper_key,
            )  # fmt: skip
            with visit(reached, cluster, clock) as visited:
                _tell(lambda: cluster_standing(visited, clock), cluster_picture, clock, watch, json)
        elif checkpoint is not None and cluster is None and zookeeper is None:
            storage = open_storage(checkpoint)
            _tell(lambda: job_standing(storage, clock, ANSWER_SECONDS), picture, clock, watch, json)
        else:
            raise DefinitionError("say whose status: --checkpoint PLACE, or --cluster NAME --zookeeper HOSTS")


def _tell(
    look: Callable[[], dict[str, Any]],
    drawn: Callable[[dict[str, Any]], RenderableType],
    clock: Clock,
    watch: bool,
    as_json: bool,
) -> None:
    """Show what `look` finds, once or until interrupted."""
    console, found = OutputConsole(), look()
    if watch and console.is_terminal and not as_json:
        with Live(drawn(found), console=console, refresh_per_second=4) as live:
            while True:
                clock.sleep(WATCH_SECONDS)
                live.update(drawn(look()))
    while True:
        if as_json:
            print_json(found)
        else:
            console.print(drawn(found))
        if not watch:
            return
        clock.sleep(WATCH_SECONDS)
        found = look()


def picture(found: dict[str, Any]) -> RenderableType:
    """A job's standing for people."""
    if "parts" in found:
        return _parts(found)
    grid, shown = fact_grid(lines(found)), grouped(found["failures"])[-FAILURES_SHOWN:]
    return Group(grid, _failures(shown, found["now_ms"])) if shown else grid


def _parts(found: dict[str, Any]) -> RenderableType:
    drawn: list[RenderableType] = [Text(f"{found['job']}, in {counted(len(found['parts']), 'part')}")]
    for name, part in found["parts"].items():
        told = Text("it has not begun") if part is None else picture(part)
        drawn += [Text(f"part {name}", style="bold"), Padding(told, (0, 0, 1, 2))]
    if found["barrier"] is not None:
        drawn.append(Padding(Text(barrier_told(found["barrier"], found["now_ms"])), (0, 0, 1, 0)))
    return Group(*drawn, _channels(found["channels"], found["now_ms"]))


def barrier_told(barrier: dict[str, Any], now_ms: int) -> str:
    """What there is to say of the newest barrier of a job."""
    number = f"barrier {barrier['barrier']}"
    if "problem" in barrier:
        return f"{number}: DAMAGED: {barrier['problem']}"
    if barrier["state"] != "under way":
        why = f": {barrier['reason']}" if barrier["reason"] else ""
        return f"{number}: {barrier['state']} {age(barrier['ended_ms'], now_ms)} ago{why}"
    said = f"{number}: under way for {age(barrier['begun_ms'], now_ms)}, by {barrier['by']}"
    if coming := barrier["not_come_to"]:
        said += f"; not come to by part {', '.join(coming)}"
    return f"{said}; the job stops there" if barrier["ends_runs"] else said


def _channels(channels: list[dict[str, Any]], now_ms: int) -> Table:
    right = ("rows that wait", "epochs", "size", "kept for going back")
    table = new_table("channels", "channel", "from", "to", *right, "", right=right)
    for one in channels:
        cells = [one["channel"], one["from"], one["to"] or "-"]
        if "problem" in one:
            cells += ["?", "?", "?", "?", f"DAMAGED: {one['problem']}"]
        else:
            cells += [rows(one["rows"]), rows(one["epochs"]), size(one["bytes"]), size(one["kept_bytes"])]
            gone = f"the job has it no more; see `holdfast channels remove {one['channel']}`"
            said = [gone] if one["to"] is None else ["FULL"] if one["full"] else []
            said += [lost_told(one["lost"], one["to"], now_ms)] if one.get("lost") else []
            cells.append("; ".join(said))
        table.add_row(*map(Text, cells))
    return table


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to say, in reading order."""
    progress, now_ms = found["progress"], found["now_ms"]
    said = [("job", f"{found['job']} ({found['key_groups']} key groups)"), ("leader", _leader(found))]
    said += _replicas(found["replicas"], now_ms) if found["replicas"] else []
    said += [("survives now", _survives(found))] if _may_run(found) else []
    if progress is None:
        return said + _checkpoint(found["checkpoint"], now_ms)
    # A leader of another version may know more than this one, or less.
    known = {field.name for field in fields(Progress)}
    told = Progress(**{name: value for name, value in progress.items() if name in known})
    said += [(name, value) for name, value in facts(told, now_ms) if name != "term"]
    if told.error:
        said.append(("last error", told.error))
    if told.parallelism:
        said.append(("shards", str(told.parallelism)))
    return said


def _leader(found: dict[str, Any]) -> str:
    leader, now_ms = found["leader"], found["now_ms"]
    if leader is None:
        return "nobody ever led this job"
    who = f"term {leader['term']}, {leader['host']}, process {leader['pid']}"
    if found["ended"] is not None:
        return f"nobody; the last, {who}, {ending(found['ended'])}"
    if found["replicas"]:
        return _set(found)
    since = age(leader["claimed_ms"], now_ms)
    if found["progress"] is not None:
        return f"{who}, since {since}"
    return f"nobody answered within {ANSWER_SECONDS:g} s; the last was {who}, begun {since} ago"


def _set(found: dict[str, Any]) -> str:
    leader, replicas, now_ms = found["leader"], found["replicas"], found["now_ms"]
    who = f"a set of {leader['members']} replicas, term {leader['term']}{', with votes' * replicas['vote']}"
    if replicas["left_ms"] is not None:
        return f"nobody; the members of {who}, have left, the last {age(replicas['left_ms'], now_ms)} ago"
    if found["progress"] is None:
        return f"no member of {who}, answered within {ANSWER_SECONDS:g} s"
    return f"{who}, founded {age(leader['claimed_ms'], now_ms)} ago"


def _replicas(replicas: dict[str, Any], now_ms: int) -> list[tuple[str, str]]:
    lead = replicas["lead"]
    said = [
        (f"replica {each['seat']}", _member(each, each["seat"] == lead, now_ms))
        for each in replicas["members"]
    ]
    votes = replicas["votes"]
    if votes and votes["agreeing"]:
        cast = "; ".join(f"{', '.join(map(str, seats))} agree" for seats in votes["agreeing"])
        said.append(("votes", f"epoch {votes['epoch']:,}: {cast}; {votes['wanted']} are wanted"))
    return said


def _member(member: dict[str, Any], has_lead: bool, now_ms: int) -> str:
    if member["process"] is None:
        return "EMPTY: no process has taken this seat yet"
    who = f"{member['host']}, process {member['pid']}"
    if member["left_ms"]:
        return f"EMPTY: {who}, has left {age(member['left_ms'], now_ms)} ago"
    joined = f"joined {age(member['joined_ms'], now_ms)} ago"
    brought = f"commit {member['commit']:,} is its own" if member["commit"] else "no recent commit is its own"
    told = member["progress"]
    if told is None:
        return f"DOES NOT ANSWER: {who}, {joined}; {brought}"
    diverged = told.get("divergences", 0)
    return (
        f"{told.get('phase')}{', has the lead' * has_lead}: {who}, {joined}; epoch {told.get('epoch', 0):,}, "
        f"{_heard(told.get('committed_ms'), now_ms)}, {brought}"
        + (f"; DIVERGED {counted(diverged, 'time')}" if diverged else "")
    )


def _heard(committed_ms: int | None, now_ms: int) -> str:
    if committed_ms is None:
        return "has heard of no commit yet"
    return f"heard of a commit {age(committed_ms, now_ms)} ago"


def _may_run(found: dict[str, Any]) -> bool:
    left = found["replicas"] and found["replicas"]["left_ms"] is not None
    return found["leader"] is not None and found["ended"] is None and not left


def _survives(found: dict[str, Any]) -> str:
    """What may end now, counted by what is there; not by what was declared."""
    replicas, cluster = found["replicas"], found["cluster"]
    silent = found["progress"] is None
    heard = f"the last sign of life is {age(found['heard_ms'], found['now_ms'])} old" if silent else ""
    if replicas:
        told, needed = replicas["told"], replicas["needed"]
        if replicas["running"] < needed:
            waits = f"{told}: nothing is committed until {needed} run{'s' * (needed == 1)}"
            return f"{waits}; {heard}" if silent else waits
        more = counted(replicas["survives"], "more end") if replicas["survives"] else "no more end"
        return f"{told}: {more} of a member goes unnoticed"
    told = "the end of its process is noticed, and another goes on from the checkpoint"
    if silent:
        told = f"no process answers, and {heard}; one that is started goes on from the checkpoint"
    if cluster is None:
        return told if silent else f"{told}, once it is started"
    where = f"holdfast status --cluster {cluster['cluster']} --zookeeper {cluster['zookeeper']}"
    return f"{told}; how many nodes are there for that: `{where}`"


def _checkpoint(newest: dict[str, Any], now_ms: int) -> list[tuple[str, str]]:
    if "problem" in newest:
        return [("checkpoint", f"DAMAGED: {newest['problem']}")]
    if not newest["commit"]:
        return [("checkpoint", "no commit yet")]
    return [
        ("epoch", f"{newest['last_epoch']:,} (committed, by commit {newest['commit']:,})"),
        ("rows", rows(newest["rows"])),
        ("stored state", size(newest["stored_bytes"])),
        *((f"keys of {uid}", saved_keys(numbers)) for uid, numbers in newest["own_keys"].items()),
        *((f"watermark of {uid}", behind(at, now_ms)) for uid, at in newest["watermarks"].items()),
        ("checkpoint age", f"{age(newest['clock_ms'], now_ms)} since its last epoch began"),
        ("shards", str(newest["parallelism"])),
    ]


def grouped(failures: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Failures that follow one another and are the same one again: of one epoch, with one cause."""
    runs = groupby(failures, key=lambda failure: (failure["epoch"], failure["cause"]))
    return [list(same) for _, same in runs]


def _failures(groups: list[list[dict[str, Any]]], now_ms: int) -> RenderableType:
    """Each below one another: causes are too long for a column."""
    said: list[RenderableType] = [Text("failures and restarts, newest last", style="italic")]
    for same in groups:
        said += [Text(_when(same, now_ms)), Padding(Text(same[-1]["message"] or "-"), (0, 0, 0, 2))]
    return Group(*said)


def _when(same: list[dict[str, Any]], now_ms: int) -> str:
    """`9.0 s to 6.0 s ago, 4 times, terms 1 to 2, epoch 7: restart after 1.5 s`."""
    first, last = same[0], same[-1]
    ago = f"{age(last['at_ms'], now_ms)} ago"
    if len(same) > 1:
        ago = f"{age(first['at_ms'], now_ms)} to {ago}, {counted(len(same), 'time')}"
    terms = f"term {last['term']}"
    if first["term"] != last["term"]:
        terms = f"terms {first['term']} to {last['term']}"
    epoch = f", epoch {last['epoch']}" if last["epoch"] else ""
    return f"{ago}, {terms}{epoch}: {_then(last)}"


def _then(failure: dict[str, Any]) -> str:
    then = str(failure["decision"])
    if failure.get("delay_ms"):
        then += f" after {failure['delay_ms'] / 1_000:.1f} s"
    return f"{then}: {failure['reason']}" if failure.get("reason") else then
