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

OURS, THEIRS, FAINT = "#0b6e4f", "#8d99ae", "#d9dee7"


def draw(found: dict[str, Any], out: Path) -> None:
    """All plots that the results allow."""
    set_look()
    _throughput(found["throughput"], out / "throughput.svg")
    _growth(found["state_growth"], out / "state-growth.svg")
    if (out / "soak.json").exists():
        _soak(json.loads((out / "soak.json").read_text()), out / "soak.svg")


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
    place = Path(sys.argv[1])
    draw(json.loads((place / "results.json").read_text()), place)
