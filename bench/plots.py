"""The pictures of docs/benchmarks.md, drawn from the results alone; and the look of all pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

from bench.workload import TINY

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

PICTURES = ("throughput.svg", "state-growth.svg", "soak.svg", "recovery.svg")
OURS, THEIRS, FAINT = "#0b6e4f", "#8d99ae", "#d9dee7"


def draw(place: Path) -> None:
    """All plots that the results in a directory allow."""
    set_look()
    results = json.loads((place / "results.json").read_text()) if (place / "results.json").exists() else {}
    if "throughput" in results:
        _throughput(results["throughput"], place / "throughput.svg")
    if "state_growth" in results:
        _growth(results["state_growth"], place / "state-growth.svg")
    for name, plot in (("soak", _soak), ("recovery", _recovery)):
        if (place / f"{name}.json").exists():
            plot(json.loads((place / f"{name}.json").read_text()), place / f"{name}.svg")


def set_look() -> None:
    """The same for every picture; the same results give the same bytes."""
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "holdfast", "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "font.family": "sans-serif"})


def _throughput(results: list[dict[str, Any]], path: Path) -> None:
    rates = {
        result["name"]: result["rows_per_s"]
        for result in results
        if result["sink"] == "parquet" and result["workload"] != str(TINY)
    }
    names = sorted(rates, key=lambda name: rates[name])
    figure, axes = plt.subplots(figsize=(8, 3.6))
    colors = [OURS if "holdfast" in name else THEIRS for name in names]
    bars = axes.barh(names, [rates[name] for name in names], color=colors)
    axes.bar_label(bars, [f"{rates[n]:,}" for n in names], padding=4)
    axes.set_xlabel("rows per second, keyed running sum with a Parquet sink, 2 cores")
    axes.set_xlim(0, max(rates.values()) * 1.18)
    save(figure, path)


def _growth(results: list[dict[str, Any]], path: Path) -> None:
    keys = [r["keys"] for r in results]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.2))
    for axes, name, label in (
        (left, "epoch_ms", "epoch, ms"),
        (middle, "delta_bytes", "delta, bytes"),
        (right, "restore_s", "restore to first commit, s"),
    ):
        axes.semilogx(keys, [r[name] for r in results], "o-", color=OURS)
        axes.set_ylim(0, max(r[name] for r in results) * 1.3)
        axes.set_xlabel("keys in state")
        axes.set_title(label, fontsize=10)
    save(figure, path)


def _recovery(found: dict[str, dict[str, Any]], path: Path) -> None:
    """One bar for each size: what follows on what, by medians."""
    phases = list(dict.fromkeys(phase for each in found.values() for phase in each["seconds"]))[:-1]
    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.7 * len(found)))
    shades = matplotlib.colormaps["YlGn"]
    for row, each in enumerate(found.values()):
        start = 0.0
        for number, phase in enumerate(phases):
            took = each["seconds"][phase]["p50"]
            color = shades(0.2 + 0.7 * number / len(phases))
            axes.barh(row, took, left=start, color=color, label=phase if row == 0 else None)
            start += took
    lost = ("", ", working state lost")
    axes.set_yticks(range(len(found)))
    axes.set_yticklabels([f"{e['keys']:,} keys{lost[e['lost_working_state']]}" for e in found.values()])
    axes.xaxis.set_minor_locator(MultipleLocator(0.1))
    axes.set_xlabel("seconds after SIGKILL, medians")
    axes.legend(ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save(figure, path)


def _soak(samples: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(10, 5.5))
    for place, (name, label) in zip(
        axes.flat,
        (
            ("objects", "objects in the checkpoint"),
            ("working_files", "files of working state"),
            ("shuffle_files", "files of Spark's shuffles"),
            ("driver_mb", "driver memory, MB"),
        ),
        strict=True,
    ):
        place.plot([s["epoch"] for s in samples], [s[name] for s in samples], color=OURS)
        place.set_ylim(0, max(s[name] for s in samples) * 1.3 + 1)
        place.set_title(label, fontsize=10)
        place.set_xlabel("epoch")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture, without the time of day."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
