"""The table of what was measured, and docs/protection.md with its picture, from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from bench import plots
from bench.protection.cases import KEYS, SAVE_EVERY, WINDOW_SECONDS
from bench.protection.cluster import EPOCH_INTERVAL

matplotlib.use("svg")
import matplotlib.pyplot as plt

PICTURE = Path("pictures/protection.svg")
KEPT_UP = 0.95
"""A part that has counted a smaller share of the rows that were due was not able to keep up."""
COLUMNS = (
    "protection", "CPU ms / 1,000 rows", "of all nodes", "bytes / row", "latency p50 ms", "p95 ms", "gap s",
    "at most", "replayed rows", "lost rows", "protected again s",
)  # fmt: skip
COLORS = {
    "rollback": "#8d99ae", "passive": "#0b6e4f", "upstream": "#c77d11", "active": "#9b2226",
    "uncoordinated": "#3d5a80",
}  # fmt: skip
FLAT_SECONDS = 0.1
"""Below this the scale of gaps is not logarithmic: a gap may be 0."""
HOW = """\
## How it was measured

One job in two [parts](how-to/parts.md): `main` makes rows at a steady pace ({rate:,} a second, {keys:,}
keys); `counted` has the protection, and counts and adds up the rows of each key in windows of event time
({window} s where nothing else is said), into Parquet files. Epochs begin every {epochs}. `hf.Uncoordinated`
has no windows: there a function counts, keys are saved {save} after they became dirty, and it is compared
with the same function under rollback. ZooKeeper and all nodes, each with one core and a working directory
of its own, are on one machine. `main` is on a node that is never hurt and commits every epoch.

- **All is well**: a stretch of {stretch:g} s, after {warm_up:g} s to warm up. *CPU* and *bytes*: what the
  system counted for all processes of the nodes that run or follow `counted`, by the rows that it took; *of
  all nodes*: with the node of `main`, which also follows a part that has a passive standby. *Latency*: from
  the clock of an epoch's plan to its commit; in brackets, against rollback.
- **A kill**, {kills} times: all processes of a node that runs `counted` end by SIGKILL, and its disk is not
  seen again; at that moment another node is started. *Gap*: the largest distance of two commits with new
  epochs around the kill, less the usual one: median, and largest. *Replayed*: rows of epochs that were
  planned before it and run after it; median. *Lost*: after all kills, by what the files show; of
  uncoordinated keys, at most, by their own count. *Protected again*: from the kill until the part commits
  and everything is as before (passive standby: the new node follows; active replicas: it has taken part in
  a commit); median.
- The session time-out of ZooKeeper is {session:g} s: so long it takes to notice that a node is gone. Nodes
  are cold standbys; parts with a passive standby are followed all the same.
"""

Result = dict[str, Any]


def table(cases: Mapping[str, Result]) -> list[tuple[str, ...]]:
    """A row of text for each case, in the order of COLUMNS."""
    return [_row(case, cases.get(case["baseline"])) for case in cases.values()]


def _row(case: Result, baseline: Result | None) -> tuple[str, ...]:
    steady, kills = case["steady"], case["kills"]
    lost = "-" if case["lost_rows"] is None else f"{case['lost_rows']:,}"
    if case["doubled_rows"]:
        lost += f" (doubled: {case['doubled_rows']:,})"
    gaps = [kill["gap_seconds"] for kill in kills]
    return (
        case["title"],
        f"{steady['part']['cpu_ms_per_1000_rows']:,.0f}",
        f"{steady['all']['cpu_ms_per_1000_rows']:,.0f}",
        f"{steady['part']['bytes_per_row']:,.0f}",
        *(_latency(steady, baseline, which) for which in ("p50", "p95")),
        f"{statistics.median(gaps):.1f}",
        f"{max(gaps):.1f}",
        f"{statistics.median(kill['replayed_rows'] for kill in kills):,.0f}",
        lost,
        f"{statistics.median(kill['protected_seconds'] for kill in kills):.1f}",
    )


def _latency(steady: Result, baseline: Result | None, which: str) -> str:
    """In milliseconds, and how much more than that of the baseline."""
    own = steady["latency_seconds"][which] * 1_000
    if baseline is None or baseline["steady"] is steady:
        return f"{own:,.0f}"
    return f"{own:,.0f} ({own - baseline['steady']['latency_seconds'][which] * 1_000:+,.0f})"


def as_text(cases: Mapping[str, Result]) -> str:
    """The table for a terminal."""
    rows = [COLUMNS, *table(cases)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def remarks(cases: Mapping[str, Result]) -> list[str]:
    """What makes figures doubtful."""
    return [
        f"{case['title']}: counted {case['steady']['kept_up']:.0%} of the rows that were due; the machine is "
        "too slow for it, and its figures cannot be compared"
        for case in cases.values()
        if case["steady"]["kept_up"] < KEPT_UP
    ]


def page(found: Result) -> str:
    """docs/protection.md."""
    about, cases = found["about"], found["cases"]
    loads = sorted({case["load_before"] for case in cases.values()})
    lines = [
        "# What each protection costs, and what it gives",
        "",
        f"Measured on {about['started']}: {about['machine']}; load before each: {loads[0]} to {loads[-1]}.",
        "`make protection` measures again; `python -m bench.protection --report` writes this page.",
        "",
        f"![cost while all is well, and gap after a kill]({PICTURE})",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"| --- |{' ---: |' * (len(COLUMNS) - 1)}",
        *(f"| {' | '.join(row)} |" for row in table(cases)),
        *(["", *(f"- {remark}." for remark in remarks(cases))] if remarks(cases) else []),
        "",
        HOW.format(
            keys=KEYS, window=WINDOW_SECONDS, epochs=EPOCH_INTERVAL, save=SAVE_EVERY, **about["settings"]
        ),
    ]
    return "\n".join(lines)


def draw(cases: Mapping[str, Result], path: Path) -> None:
    """Cost while all is well against the gap after a kill."""
    plots.set_look()
    figure, axes = plt.subplots(figsize=(9, 5))
    for case in cases.values():
        cost = case["steady"]["part"]["cpu_ms_per_1000_rows"]
        gap = statistics.median(kill["gap_seconds"] for kill in case["kills"])
        axes.plot(cost, gap, "o", color=COLORS[case["kind"]], markersize=8)
        axes.annotate(case["title"], (cost, gap), xytext=(7, 5), textcoords="offset points", fontsize=8)
    costs = [case["steady"]["part"]["cpu_ms_per_1000_rows"] for case in cases.values()]
    axes.set_xscale("log")
    axes.set_xlim(min(costs) * 0.8, max(costs) * 2)
    axes.set_yscale("symlog", linthresh=FLAT_SECONDS)
    axes.set_ylim(bottom=-FLAT_SECONDS / 4)
    axes.set_xlabel("CPU ms per 1,000 rows while all is well, of the nodes that run or follow the part")
    axes.set_ylabel("gap in the output after a kill, seconds")
    axes.grid(color=plots.FAINT)
    plots.save(figure, path)


def write(found: Result, docs: Path) -> None:
    """The page and its picture, below `docs`."""
    (docs / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    draw(found["cases"], docs / PICTURE)
    (docs / "protection.md").write_text(page(found))
