"""What does an epoch cost as a job grows, and what gives way first? `make scale`.

    python -m bench.scale [--quick] [--only keys executors ...] [--out bench-results/scale.json]
    python -m bench.scale --report

One thing is varied at a time: keys, executors, key groups, operators, sinks; and shards, rows and touched
keys, which a model needs to tell what each costs. Prints a table for each, the model with its residuals, and
what it says of 100 and 1,000 executors; keeps all figures as JSON, point by point: what is there is not
measured again. `--report` writes docs/how-it-grows.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.scale import points, report
from bench.scale.measure import fits, measure

WARM_UP, MEASURED = 12, 10
QUICK_WARM_UP, QUICK_MEASURED = 2, 5
DOCS = Path(__file__).parents[2] / "docs"
Result = dict[str, Any]


def known_points(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What was measured before in the same way: point, as text -> figures."""
    found = json.loads(out.read_text()) if out.exists() else {}
    same = found.get("about", {}).get("settings") == settings
    return dict(found["points"]) if same else {}


def measure_all(names: list[str], quick: bool, out: Path) -> Result:
    usual = points.QUICK_DEFAULT if quick else points.FULL_DEFAULT
    warm_up, measured = (QUICK_WARM_UP, QUICK_MEASURED) if quick else (WARM_UP, MEASURED)
    about: Result = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 2),
        "settings": {"warm_up": warm_up, "measured": measured},
    }
    known = known_points(out, about["settings"])
    axes = {
        name: points.axis(name, sizes, usual)
        for name, sizes in (points.QUICK if quick else points.FULL).items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    found = {"about": about, "usual": asdict(usual), "axes": of_axes(axes, known), "points": known}
    for name in names:
        for point in axes[name]:
            where = f"{name} {getattr(point, name):,}"
            if text(point) not in known:
                if not fits(point):
                    print(f"{where}: left out: the disk has no room for it", flush=True)
                    continue
                known[text(point)] = measure(point, warm_up, measured)
            print(f"{where}: {known[text(point)]['epoch_ms']} ms", flush=True)
            # After each point, so that a run that is cut short has measured something.
            found["axes"] = of_axes(axes, known)
            out.write_text(json.dumps(found, indent=2))
    return found


def text(point: points.Point) -> str:
    return json.dumps(asdict(point))


def of_axes(axes: Mapping[str, Sequence[points.Point]], known: Result) -> dict[str, list[Result]]:
    """The figures of each axis, of the points that have some."""
    found = {
        name: [known[text(point)] for point in line if text(point) in known] for name, line in axes.items()
    }
    return {name: results for name, results in found.items() if results}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scale", description="epochs of jobs as they grow")
    parser.add_argument("--only", nargs="+", choices=points.FULL, default=list(points.FULL))
    parser.add_argument("--quick", action="store_true", help="small sizes and few epochs: does it work?")
    parser.add_argument("--out", type=Path, default=Path("bench-results/scale.json"))
    parser.add_argument("--report", action="store_true", help="write docs/how-it-grows.md; measure nothing")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where --report writes")
    given = parser.parse_args()
    if given.report:
        if not given.out.exists():
            parser.error(f"there is no {given.out}; measure first: make scale")
        report.write(json.loads(given.out.read_text()), given.docs)
        return
    load = os.getloadavg()[0]
    if load > points.CPUS / 4:
        print(f"the machine is busy (load {load:.1f}): these figures will be too bad", file=sys.stderr)
    found = measure_all(given.only, given.quick, given.out)
    if not found["axes"]:
        raise SystemExit("nothing was measured: make room on the disk, or name another place with TMPDIR")
    print("\n".join([*report.tables(found["axes"]), "", *report.model_lines(found)]))
    report.draw(found, given.out.with_suffix(".svg"))
    print(f"everything: {given.out}")


if __name__ == "__main__":
    main()
