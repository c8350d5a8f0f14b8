"""`make chaos`: our own jobs under `holdfast chaos`, as a user would run it, over a matrix of shapes.

    python -m tests.chaos.matrix [--quick] [--seed N] [--out DIRECTORY] [--only NAME]

Every line is one campaign: its seed, its verdict, its figures. The matrix has passed if every verdict is
true, and if faults and kinds were enough to mean something. Timing is the machine's: the same seed gives the
same faults, not the same instants.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.chaos.checker import Verdict, worst
from holdfast.chaos.evidence import checkpoint_left, sink_left

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = Path(__file__).parent / "jobs"
FAULTS_MIN, KINDS_MIN = 200, 8
SECONDS_PER_FAULT = 7
"""On two cores; a campaign that takes three times as long is ended, and what it has shown counts."""
QUICK_FAULTS_MIN, QUICK_KINDS_MIN = 10, 5


@dataclass(frozen=True)
class Cell:
    """One campaign."""

    name: str
    job: str
    faults: int
    options: tuple[str, ...] = ()
    rows: int = 16_000


EPOCHS = ("--max-rows-per-epoch", "200")
MARKS_AGREE = ("--check", "tests.chaos.matrix:marks_agree")
CELLS = (
    Cell("two operators", "ledger", 36, EPOCHS),
    Cell("lists, maps, dead letters", "wide", 30, EPOCHS),
    Cell("random marks", "marked", 24, (*EPOCHS, *MARKS_AGREE)),
    Cell("several epochs a commit", "ledger", 20, (*EPOCHS, "--checkpoint-interval", "1s")),
    Cell("the real file sinks", "ledger", 20, (*EPOCHS, "--real-sinks")),
    Cell("working state in RocksDB", "wide", 20, (*EPOCHS, "--backend", "rocksdb")),
    Cell("at least once", "plain", 20, (*EPOCHS, "--guarantee", "at-least-once")),
    Cell("at most once", "plain", 14, (*EPOCHS, "--guarantee", "at-most-once")),
    Cell("a cluster", "ledger", 24, (*EPOCHS, "--cluster", "2", "--parallelism", "4")),
    Cell("windows, event timers", "windows", 30, EPOCHS),
    Cell("a ttl, a join by time", "expiring", 30, EPOCHS),
    Cell("windows in RocksDB", "windows", 16, (*EPOCHS, "--backend", "rocksdb"), 8_000),
    Cell("time, damaged files", "windows", 6, (*EPOCHS, "--kinds", "damage-file,kill-driver"), 8_000),
    Cell("damaged files", "ledger", 6, (*EPOCHS, "--kinds", "damage-file,kill-driver"), 8_000),
)
QUICK = (
    Cell("two operators", "ledger", 10, EPOCHS, 8_000),
    Cell("random marks", "marked", 6, (*EPOCHS, *MARKS_AGREE), 8_000),
    Cell("windows, event timers", "windows", 4, EPOCHS, 4_000),
)


def marks_agree(reference: Path, run: Path) -> list[str]:
    """For --check of the job `marked`: the next row of a key found the mark that the one before it left, and
    the state holds the last one.
    """
    wrong, left = [], {}
    count = Counter(row["event"] for row in sink_left(run, "marked-out").rows())
    expected = Counter(row["event"] for row in sink_left(reference, "marked-out").rows())
    if count != expected:
        wrong.append(
            f"{sum((expected - count).values())} events lost, {sum((count - expected).values())} doubled"
        )
    for row in sorted(sink_left(run, "marked-out").rows(), key=lambda row: (row["key"], row["seq"])):
        seq, mark = left.get(row["key"], (0, ""))
        if row["seq"] != seq + 1 or row["before"] != mark:
            wrong.append(
                f"key {row['key']}: number {row['seq']} follows {seq}, found another mark than was left"
            )
        left[row["key"]] = (row["seq"], row["mark"])
    _, states = checkpoint_left(run / "ck")
    held = {key[0]: (values["seq"], values["mark"]) for key, values in states["marked"].items()}
    if held != left:
        wrong.append("the state is not what the sink's last rows say")
    return wrong[:10]


def run_cell(cell: Cell, seed: int, directory: Path) -> dict[str, Any]:
    """One campaign, in a process of its own; its report."""
    command = [sys.executable, "-m", "holdfast", "chaos", str(JOBS / f"{cell.job}.py"), "--json"]
    minutes = 3 * cell.faults * SECONDS_PER_FAULT / 60
    limits = ("--faults", str(cell.faults), "--minutes", f"{minutes:.1f}")
    command += [*limits, "--seed", str(seed), "--out", str(directory), *cell.options]
    environment = {**os.environ, "CHAOS_ROWS": str(cell.rows)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    directory.mkdir(parents=True)
    with Path(f"{directory}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()  # it ends its job, too
            process.wait()
            raise
    lines = said.splitlines()
    if not lines:
        reason = f"no report (exit code {process.returncode}); see {directory}.log"
        return {"verdict": str(Verdict.UNKNOWN), "faults": {}, "tally": {}, "reasons": [reason], "rounds": 0}
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def told(cell: Cell, seed: int, report: dict[str, Any]) -> str:
    tally, took = report["tally"], report.get("recoveries", {})
    return (
        f"{cell.name:<26} seed {seed:<5} verdict {report['verdict']:<8} {report['rounds']} rounds, "
        f"{sum(report['faults'].values())} faults of {len(report['faults'])} kinds, "
        f"{report.get('restarts', 0)} restarts, lost {_allowed(cell, tally, 'lost')}, "
        f"doubled {_allowed(cell, tally, 'doubled')}, changed {tally.get('changed', 0)}, "
        f"kill to commit {_seconds(took)}"
    )


def _seconds(took: dict[str, float]) -> str:
    if not took.get("count"):
        return "not measured"
    return f"p50 {took['p50']:.1f} s, longest {took['longest']:.1f} s"


def _allowed(cell: Cell, tally: dict[str, int], what: str) -> str:
    """A number; in parentheses where the guarantee asked for allows it."""
    forgiving = {"lost": "at-most-once", "doubled": "at-least-once"}[what] in cell.options
    return f"({tally.get(what, 0)})" if forgiving else str(tally.get(what, 0))


def counted(cell: Cell, report: dict[str, Any], what: str) -> int:
    """Rows that were lost or doubled against the guarantee asked for."""
    text = _allowed(cell, report["tally"], what)
    return 0 if text.startswith("(") else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short campaigns")
    parser.add_argument("--seed", type=int, default=1, help="that of the first campaign")
    parser.add_argument("--only", help="campaigns whose name has this in it")
    parser.add_argument("--out", type=Path, help="[default: a temporary directory]")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cells = [cell for cell in (QUICK if given.quick else CELLS) if (given.only or "") in cell.name]
    out = (given.out or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))).resolve()
    minutes = sum(cell.faults * SECONDS_PER_FAULT / 60 + 1 for cell in cells)
    print(f"{len(cells)} campaigns, about {minutes:.0f} minutes, in {out}", flush=True)
    reports = []
    for number, cell in enumerate(cells):
        seed = given.seed + number
        report = run_cell(cell, seed, out / cell.name.replace(" ", "-").replace(",", ""))
        reports.append(report)
        print(told(cell, seed, report), flush=True)
        for reason in report["reasons"]:
            print(f"    - {reason}", flush=True)
    sys.exit(summarize(cells, reports, quick=given.quick or bool(given.only)))


def summarize(cells: list[Cell], reports: list[dict[str, Any]], *, quick: bool) -> int:
    """Say what it all comes to; returns the exit code."""
    faults: Counter[str] = Counter()
    for report in reports:
        faults.update(report["faults"])
    rounds = sum(report["rounds"] for report in reports)
    verdict = worst(Verdict(report["verdict"]) for report in reports)
    lost = sum(counted(cell, report, "lost") for cell, report in zip(cells, reports, strict=True))
    doubled = sum(counted(cell, report, "doubled") for cell, report in zip(cells, reports, strict=True))
    for kind, count in sorted(faults.items()):
        print(f"  {kind:<22} {count}")
    print(
        f"{faults.total()} faults of {len(faults)} kinds in {rounds} runs of the jobs: "
        f"lost {lost}, doubled {doubled}; verdict {verdict}"
    )
    if verdict is Verdict.TRUE:
        print(
            f"No failure in {rounds} runs: with 95 % confidence the chance of one per run is below "
            f"3/{rounds} = {min(1.0, 3 / rounds):.3f} "
            f"(per fault, were they independent: 3/{faults.total()} = {3 / faults.total():.3f})"
        )
    least = (QUICK_FAULTS_MIN, QUICK_KINDS_MIN) if quick else (FAULTS_MIN, KINDS_MIN)
    enough = faults.total() >= least[0] and len(faults) >= least[1]
    if not enough:
        print(f"too little happened: at least {least[0]} faults of {least[1]} kinds are wanted")
    return 0 if verdict is Verdict.TRUE and enough and not lost and not doubled else 1


if __name__ == "__main__":
    main()
