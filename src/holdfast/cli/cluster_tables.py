"""A cluster for people: its seats, its nodes, and how failovers went."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.format import age, counted

FAILOVERS_SHOWN = 10


def cluster_picture(found: dict[str, Any]) -> RenderableType:
    """A cluster's standing as tables."""
    now_ms = found["now_ms"]
    seats = _table(
        f"cluster {found['cluster']}: seats", "job", "holder", "term", "epoch", "survives", "state"
    )
    for seat in found["seats"]:
        holder, state = seat["holder"] or "nobody", state_of(seat, now_ms)
        _add(seats, seat["job"], holder, seat["term"], seat["epoch"], survival_of(seat["survives"]), state)
    nodes = _table("nodes", "node", "host", "process", "there for", "kind", "seats", "behind")
    for node in found["nodes"]:
        holds = ", ".join(node["seats"]) or "standing by"
        ago = age(node["since_ms"], now_ms)
        behind = "\n".join(lag_of(job, lag) for job, lag in sorted(node["lag"].items())) or None
        _add(nodes, node["node"], node["host"], node["pid"], ago, node["standby"], holds, behind)
    shown: list[RenderableType] = [seats, nodes]
    for part in found["replicas"]:
        shown.append(Text(f"{part['part']}: {part['told']}"))
    for node in found["nodes"]:
        for job, error in node["unfit"].items():
            shown.append(Text(f"{job} failed on node {node['node']}, which leaves it to others: {error}"))
    for seat in found["seats"]:
        if "problem" in seat:
            shown.append(Text(f"the failovers of {seat['job']} cannot be read: {seat['problem']}"))
        if seat["failovers"]:
            shown.append(_failovers(seat["job"], seat["failovers"][-FAILOVERS_SHOWN:], now_ms))
    return Group(*shown)


def survival_of(nodes: int) -> str:
    """How many more ends of nodes a job survives, in words."""
    return "1 more node" if nodes == 1 else f"{nodes or 'no'} more nodes"


def state_of(seat: dict[str, Any], now_ms: int) -> str:
    """How a seat stands, in words."""
    over, wish = seat["over"], seat["handing_over"]
    if over is not None:
        return f"{over['state']}: {over['error']}" if over.get("error") else str(over["state"])
    if wish is not None:
        return f"being handed over to {wish['to'] or 'whoever is readiest'}"
    if seat["holder"] is None:
        return "FREE"
    heard = f"heard of {age(seat['heard_ms'], now_ms)} ago" if seat["heard_ms"] else "not heard of yet"
    heir = f"{seat['heir']} is next" if seat["heir"] else "NOBODY STANDS BY"
    return f"{seat['phase'] or 'starting'}, {heard}, {heir}"


def lag_of(job: str, lag: dict[str, Any]) -> str:
    """How far a hot standby is behind, in words."""
    if lag["problem"]:
        return f"{job}: CANNOT FOLLOW since epoch {lag['epoch']}: {lag['problem']}"
    if not lag["epochs"]:
        return f"{job}: nothing, at epoch {lag['epoch']}"
    return f"{job}: {counted(lag['epochs'], 'epoch')}, {lag['ms'] / 1_000:.1f} s"


def _failovers(job: str, failovers: list[dict[str, Any]], now_ms: int) -> Table:
    table = _table(
        f"starts and failovers of {job}, newest last",
        "ago", "term", "node", "from", "why", "detect", "take over", "restore", "replay",
    )  # fmt: skip
    table.padding = 0  # Nine columns fit into 80 characters only so.
    for failover in failovers:
        phases = (
            failover.get("detect_ms"), failover.get("take_over_ms", 0), failover.get("restore_ms", 0),
            failover.get("replay_ms"),
        )  # fmt: skip
        _add(
            table, age(failover["at_ms"], now_ms), failover["term"],
            f"{failover['node']} ({failover['standby']})", failover["before"], failover["reason"],
            *("-" if ms is None else f"{ms / 1_000:.1f} s" for ms in phases),
        )  # fmt: skip
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        # A heading that is cut short says nothing.
        table.add_column(heading, overflow="fold", min_width=max(map(len, heading.split())))
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text("-" if cell is None else str(cell)) for cell in cells))
