"""What does each way to protect a part cost, and how long is the gap when its node dies? `make protection`.

    python -m bench.protection [--quick] [--only rollback active-1 ...]
    python -m bench.protection --report

Rollback, passive standby (three checkpoint intervals), upstream backup (three lengths of windows), active
replicas (k = 1 and 2) and uncoordinated keys protect the same part in turn, on real nodes with a real
ZooKeeper. For each: what it costs while all is well; then nodes that run the part are killed. Prints a table
and keeps all figures as JSON, case by case. `--report` writes docs/protection.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.protection import report
from bench.protection.cases import CASES
from bench.protection.cluster import Settings
from bench.protection.measure import measure

FULL = Settings(rate=2_000, session=6.0, warm_up=45.0, stretch=60.0, kills=5)
QUICK = Settings(rate=200, session=20.0, warm_up=0.0, stretch=5.0, kills=1)
"""Whether all of it works, also on a busy machine: these figures mean nothing."""
DOCS = Path(__file__).parents[2] / "docs"


def known_cases(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What was measured before in the same way, and is kept."""
    found = json.loads(out.read_text()) if out.exists() else {}
    same = found.get("about", {}).get("settings") == about["settings"]
    return dict(found["cases"]) if same else {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.protection", description="protections of a part, compared")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="not all cases")
    parser.add_argument("--quick", action="store_true", help="one kill and a few seconds: does it work?")
    parser.add_argument("--kills", type=int, help="how often a node is killed, for each case")
    parser.add_argument("--session", type=float, help="session time-out of ZooKeeper in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-results/protection.json"))
    parser.add_argument("--report", action="store_true", help="write docs/protection.md; measure nothing")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where --report writes")
    given = parser.parse_args()
    if given.report:
        if not given.out.exists():
            parser.error(f"there is no {given.out}; measure first: make protection")
        report.write(json.loads(given.out.read_text()), given.docs)
        return
    usual = QUICK if given.quick else FULL
    settings = Settings(
        usual.rate, given.session or usual.session, usual.warm_up, usual.stretch, given.kills or usual.kills
    )
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "settings": asdict(settings),
    }
    measure_all(given.only, settings, about, given.out, given.seed)


def measure_all(slugs: list[str], settings: Settings, about: dict[str, Any], out: Path, seed: int) -> None:
    cores, load = os.cpu_count() or 1, round(os.getloadavg()[0], 1)
    if load > cores / 4:
        print(f"the machine is busy (load {load}): these figures will be too bad", file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    known = known_cases(out, about)
    for slug in slugs:
        print(f"{CASES[slug].title} ...", flush=True)
        known[slug] = measure(CASES[slug], settings, seed)
        cases = {each: known[each] for each in CASES if each in known}
        out.write_text(json.dumps({"about": about, "cases": cases}, indent=2))
    cases = {each: known[each] for each in CASES if each in known}
    if cases:
        print(report.as_text(cases))
    for remark in report.remarks(cases):
        print(remark)
    print(f"everything: {out}")


if __name__ == "__main__":
    main()
