"""Does an epoch's cost follow the keys it touches, or the size of the state?

    python -m bench.state_growth --keys 100000 1000000 10000000

For each size: a state of that many keys is filled, then epochs of 250,000 rows touching 50,000 keys spread
over all
of it are timed, and the size of their deltas is taken from the commit records. Then the job is started again
in a new
process with nothing but the checkpoint: the time from "Spark is up" to the first commit, every byte of the
snapshots
verified, is the restore.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.holdfast_runs import CommitTimes
from bench.spark_baselines import session
from holdfast.checkpoint.chain.commits import Chain
from holdfast.storage.urls import open_storage

ROWS = 250_000
TOUCHED = 50_000
FILL_ROWS = 500_000
WARM_UP = 16
MEASURED = 10
RESTORES = 2

Result = dict[str, Any]


def job_of(keys: int, fill: int, epochs: int) -> hf.Job:
    """Ids below `fill` set up one key each; after that every ROWS ids touch TOUCHED keys, five rows a key."""
    spread = f"pmod(xxhash64((id - {fill}) div {ROWS} * {TOUCHED} + (id - {fill}) % {TOUCHED}), {keys})"
    columns = {"k": f"if(id < {fill}, id, {spread})", "value": "pmod(id, 10)"}
    source = hf.GeneratorSource(columns, schema="k long, value long", total=fill + epochs * ROWS)
    job = hf.Job("growth")
    keyed = job.source(source, uid="ids").key_by("k")
    keyed.aggregate(uid="sum", total=hf.sum("value"), n=hf.count()).sink(hf.MemorySink(), uid="out")
    return job


def fill_and_measure(keys: int, place: Path) -> Result:
    """Fill the state, then time epochs over it. Leaves the checkpoint behind for `restore`."""
    spark = session()
    started = time.perf_counter()
    job_of(keys, keys, 0).run(
        place / "ck", spark=spark, until="exhausted", max_rows_per_epoch=FILL_ROWS, working_dir=place / "w"
    )
    filled = time.perf_counter() - started
    epochs = WARM_UP + MEASURED
    times = EpochLog()
    job_of(keys, keys, epochs).run(
        place / "ck",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS,
        working_dir=place / "w",
        on_progress=times,
    )
    spark.stop()
    gaps = times.gaps_ms(min(times.at) + WARM_UP)
    seen = [times.epochs[epoch] for epoch in sorted(times.epochs)][WARM_UP:]
    return {
        "keys": keys,
        "fill_s": round(filled, 1),
        "epoch_ms": round(statistics.median(gaps), 1),
        "state_ms": round(statistics.median(p.timings_ms["open"] + p.timings_ms["apply"] for p in seen), 1),
        "compute_ms": round(statistics.median(p.timings_ms["compute"] for p in seen), 1),
        "delta_bytes": round(statistics.median(p.delta_bytes for p in seen)),
        **_sizes(place),
    }


def restore(keys: int, place: Path, turn: int) -> Result:
    """Start from the checkpoint alone, in a new process, and time it to the first commit."""
    command = [sys.executable, "-m", "bench.state_growth", "--restore", str(keys), "--place", str(place)]
    command += ["--turn", str(turn)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Result = json.loads(ran.stdout.splitlines()[-1])
    return found


def _restore_here(keys: int, place: Path, turn: int) -> Result:
    spark = session()
    spark.range(1).count()
    up = time.perf_counter()
    times = CommitTimes()
    fresh = place / f"restored-{turn}"
    handle = job_of(keys, keys, WARM_UP + MEASURED + 1 + turn).start(
        place / "ck",
        spark=spark,
        until="exhausted",
        max_rows_per_epoch=ROWS,
        working_dir=fresh,
        on_progress=times,
    )
    handle.wait()
    spark.stop()
    return {"restore_s": round(max(times.at.values()) - up, 3)}


class EpochLog(CommitTimes):
    """Keeps what each epoch said of itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, hf.Progress] = {}

    def __call__(self, progress: hf.Progress) -> None:
        super().__call__(progress)
        if progress.timings_ms:
            self.epochs.setdefault(progress.epoch, progress)


def _sizes(place: Path) -> Result:
    view = Chain(open_storage(str(place / "ck"))).load()
    newest = {(s.first_group, s.end_group): s for s in view.snapshots.get("sum", ())}
    since = max((s.version.epoch for s in newest.values()), default=0)
    waiting = [d for d in view.live_deltas("sum") if d.version.epoch > since]
    return {
        "snapshot_bytes": sum(s.length for s in newest.values()),
        "deltas_since_snapshot": len(waiting),
        "delta_bytes_since_snapshot": sum(d.extent.length for d in waiting),
    }


def run_sizes(sizes: list[int]) -> list[Result]:
    results = []
    for keys in sizes:
        place = Path(tempfile.mkdtemp(prefix="holdfast-growth-"))
        try:
            result = fill_and_measure(keys, place)
            spent = [restore(keys, place, turn)["restore_s"] for turn in range(RESTORES)]
            result["restore_s"] = statistics.median(spent)
        finally:
            shutil.rmtree(place)
        results.append(result)
        print(json.dumps(result), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="epoch time, delta size and restore time as the state grows")
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--restore", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.restore is not None:
        print(json.dumps(_restore_here(given.restore, given.place, given.turn)))
        return
    results = run_sizes(given.keys)
    small, large = results[0], results[-1]
    for name in ("epoch_ms", "state_ms", "delta_bytes", "restore_s"):
        print(
            f"{name:<14} {large['keys']:,} keys / {small['keys']:,} keys = {large[name] / small[name]:.2f}x"
        )


if __name__ == "__main__":
    main()
