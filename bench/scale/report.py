"""Tables of what was measured, the model, and docs/how-it-grows.md with its picture: from results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from bench import plots
from bench.scale.model import EXTRAPOLATED, LIMITS, Undetermined, fit_all, foreseen, gives_way, point_of

matplotlib.use("svg")
import matplotlib.pyplot as plt

PICTURE = Path("pictures/how-it-grows.svg")
FIGURES = {
    "epoch_ms": "epoch ms", "plan_ms": "plan", "run_ms": "run", "commit_ms": "commit",
    "publish_ms": "publish", "task_ms": "slowest task", "driver_cpu_ms": "driver CPU ms",
    "result_bytes": "results B", "delta_bytes": "delta B", "snapshot_bytes": "snapshots B",
    "commit_bytes": "commit B", "files_per_epoch": "files an epoch", "heap_mb": "heap MB",
}  # fmt: skip
UNITS = {"driver_cpu_ms": "driver, CPU ms", "rest_ms": "the rest of an epoch, ms"}
HEAD = """\
# How it grows

What an epoch costs with more keys, executors, key groups, operators and sinks, and what a model fitted to
these figures says of 100 and 1,000 executors. `make scale` measures (about two hours on a quiet machine, and
up to 55 GB of disk for the largest state); `python -m bench.scale --report` writes this page.
"""
HOW = """\
## What is measured

Running sums by key, one operator after the other, Parquet files out, on a standalone Spark cluster on one
machine: executors of one core each, a shard on each. The state is filled first; then epochs of rows that
touch keys spread over all of it. One thing is varied at a time. Every size has processes of its own. Epochs
follow one another at full speed: *epoch* is the time from the results of one to those of the next, the median
after a warm-up, with the least and the most. Commit and publish (of one sink) go on beside the next epoch.
*driver CPU* is all that the driver's Python and Java processes used. Executors beyond the cores of the
machine share them.

## The model

    driver = a + b operators + c tasks + d sinks
    epoch  = driver + a + b operators + c sinks + (d tasks + e rows + f touched keys) / cores

A *task* is an operator's work in one shard. The driver plans, schedules tasks, takes their results, and
writes one commit record: its work grows with tasks, and executors do not take any of it away. What tasks do
is shared among the cores. The size of the state is not in it: an epoch's cost follows the keys that it
touches (the table by keys shows whether that holds). The costs are found by least squares; beside each model
is how far it is, typically, from what was measured.

With more executors the job grows along: as many rows and touched keys for each executor, four key groups a
shard. Then the part of the executors stays what it is, and the part of the driver grows. Its CPU time is
taken as if one thread spent it all, so it gives way later than said rather than sooner. Something gives way
when it is at its limit:

{limits}

What the model cannot know: networks between machines, buckets instead of a disk, executors that fail, and
Spark's own limits with thousands of executors.
"""
Result = dict[str, Any]


def tables(axes: Mapping[str, Sequence[Result]]) -> list[str]:
    """A table for each axis."""
    lines = []
    for name, results in axes.items():
        lines += ["", f"### By {name}", "", f"| {name} | {' | '.join(FIGURES.values())} |"]
        lines.append(f"| ---: |{' ---: |' * len(FIGURES)}")
        lines += [_row(name, result) for result in results]
    return lines[1:]


def _row(name: str, result: Result) -> str:
    cells = [_number(result[figure]) for figure in FIGURES]
    cells[0] += f" ({_number(result['epoch_ms_min'])} to {_number(result['epoch_ms_max'])})"
    return f"| {result[name]:,} | {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:,.1f}"


def model_lines(found: Result) -> list[str]:
    """The costs with their residuals, what they say of more executors, and what gives way first."""
    try:
        # The usual point is on most axes, and counts once.
        points = {point_of(result): result for results in found["axes"].values() for result in results}
        fits = fit_all([*points.values()])
    except Undetermined as why:
        return [f"{why}."]
    usual = point_of(found["usual"])
    lines = ["| model | costs | explained | typically off by |", "| --- | --- | ---: | ---: |"]
    for target, each in fits.items():
        costs = ", ".join(f"{name}: {cost:,.3g}" for name, cost in each.costs.items())
        off = f"{each.typical_residual:,.3g}"
        lines.append(f"| {UNITS.get(target, FIGURES.get(target))} | {costs} | {each.explained:.0%} | {off} |")
    said = {executors: foreseen(fits, usual, executors) for executors in EXTRAPOLATED}
    lines += ["", f"| executors | {' | '.join(f'{executors:,}' for executors in said)} |"]
    lines.append(f"| --- |{' ---: |' * len(said)}")
    for target in next(iter(said.values())):
        title = UNITS.get(target, FIGURES.get(target))
        lines.append(f"| {title} | {' | '.join(_number(each[target]) for each in said.values())} |")
    order = gives_way(fits, usual)
    if order[0][1] is not None:
        lines += ["", f"What gives way first, with {order[0][1]:,} executors: {LIMITS[order[0][0]][1]}."]
    lines += ["", "| what gives way | limit | with so many executors |", "| --- | ---: | ---: |"]
    for target, executors in order:
        limit, what = LIMITS[target]
        lines.append(f"| {what} | {_number(limit)} | {'-' if executors is None else f'{executors:,}'} |")
    return lines


def page(found: Result) -> str:
    """docs/how-it-grows.md."""
    about = found["about"]
    lines = [
        HEAD,
        f"Measured on {about['started']}: {about['machine']}; load before: {about['load_before']}.",
        "",
        f"![epochs by what was varied]({PICTURE})",
        "",
        "## The model's answer",
        "",
        *model_lines(found),
        "",
        explanation(),
        "## Figures",
        "",
        *tables(found["axes"]),
    ]
    return "\n".join(lines) + "\n"


def explanation() -> str:
    """What was measured, and the model, in words."""
    return HOW.format(limits="\n".join(f"- {what}." for _, what in LIMITS.values()))


def draw(found: Result, path: Path) -> None:
    """The epochs of each axis, with the driver's share."""
    plots.set_look()
    axes_found = found["axes"]
    across = 4
    down = -(-len(axes_found) // across)
    figure, places = plt.subplots(down, across, figsize=(12, 3 * down), squeeze=False)
    for place, (name, results) in zip(places.flat, axes_found.items(), strict=False):
        sizes = [result[name] for result in results]
        middle = [result["epoch_ms"] for result in results]
        spread = [
            [result["epoch_ms"] - result["epoch_ms_min"] for result in results],
            [result["epoch_ms_max"] - result["epoch_ms"] for result in results],
        ]
        place.errorbar(sizes, middle, yerr=spread, fmt="o-", color=plots.OURS, capsize=3, label="epoch, ms")
        driver = [result["driver_cpu_ms"] for result in results]
        place.plot(sizes, driver, "s--", color=plots.THEIRS, label="driver, CPU ms")
        place.set_xscale("log")
        place.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7, rotation=20)
        place.minorticks_off()
        place.set_ylim(bottom=0)
        place.set_title(f"by {name}", fontsize=10)
        place.grid(color=plots.FAINT)
    places.flat[0].legend(fontsize=8)
    for place in list(places.flat)[len(axes_found) :]:
        place.set_visible(False)
    plots.save(figure, path)


def write(found: Result, docs: Path) -> None:
    """The page and its picture, below `docs`."""
    (docs / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    draw(found, docs / PICTURE)
    (docs / "how-it-grows.md").write_text(page(found))
