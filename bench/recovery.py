"""How long does a job stand still after its driver was killed?

    python -m bench.recovery --keys 100000 10000000 --kills 30

For each size a state of that many keys is filled. Then the driver runs as a process of its own, under a
steady load, is killed with SIGKILL at a random moment, and is started again at once, as a supervisor would.
Its Spark session is the one that `holdfast run` opens, with the archive of `holdfast jvm-archive`. The time
from the kill to the first new commit is split into

    detect    until the supervisor knows that the process is gone
    python    until a new process has imported what it needs
    jvm       until its JVM answers
    spark     until the Spark session is there
    restore   until the checkpoint is loaded and the shards have their state
    replay    until the epoch that the kill interrupted is committed

`--lost` also removes the working state before each start, as if the machine were lost with the process.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark import SparkContext

import holdfast as hf
from bench.spark_baselines import session
from bench.state_growth import FILL_ROWS
from holdfast.runtime import jvm_archive
from holdfast.runtime.spark_session import open_session

ROWS = 10_000
EPOCH_INTERVAL = "500ms"
EPOCHS_BEFORE_KILL = 3
DEADLINE_SECONDS = 300.0
PHASES = ("detect", "python", "jvm", "spark", "restore", "replay")

Result = dict[str, Any]


def job_of(keys: int, **pace: Any) -> hf.Job:
    """Ids below `keys` set up one key each; later ones touch them all over. `pace`: of the source."""
    columns = {"k": f"if(id < {keys}, id, pmod(xxhash64(id), {keys}))", "value": "pmod(id, 10)"}
    source = hf.GeneratorSource(columns, schema="k long, value long", **pace)
    job = hf.Job("recovery")
    keyed = job.source(source, uid="ids").key_by("k")
    keyed.aggregate(uid="sum", total=hf.sum("value"), n=hf.count()).sink(hf.MemorySink(), uid="out")
    return job


def fill(keys: int, place: Path) -> None:
    """Make the state, at full speed."""
    job_of(keys, total=keys).run(
        place / "ck",
        spark=session(),
        until="exhausted",
        max_rows_per_epoch=FILL_ROWS,
        working_dir=place / "w",
    )


def child(keys: int, place: Path) -> None:
    """One life of the driver. Says on standard output when what was reached."""

    def say(**event: Any) -> None:
        print(json.dumps({"at": time.time(), **event}), flush=True)

    say(event="python")
    jvm_archive.prepare_jvm()
    # The first thing that needs the JVM starts it: here, so that it can be told apart from the session.
    SparkContext.setSystemProperty("holdfast.bench", "recovery")
    say(event="jvm")
    spark = open_session("recovery")
    say(event="spark")
    told: dict[str, int] = {}

    def listen(progress: hf.Progress) -> None:
        if progress.phase == "running" and "running" not in told:
            told["running"] = progress.committed_epoch
            say(event="running", committed=progress.committed_epoch)
        elif progress.timings_ms and "epoch" not in told:
            told["epoch"] = 1
            say(event="epoch", open_ms=progress.timings_ms["open"], seconds=progress.epoch_seconds)
        if progress.committed_epoch > told.get("committed", told.get("running", 1 << 60)):
            told["committed"] = progress.committed_epoch
            say(event="committed", committed=progress.committed_epoch)

    job_of(keys, total=1 << 40).run(
        place / "ck",
        spark=spark,
        working_dir=place / "w",
        max_rows_per_epoch=ROWS,
        epoch_interval=EPOCH_INTERVAL,
        on_progress=listen,
    )


class Life:
    """A driver process and what it said."""

    def __init__(self, keys: int, place: Path) -> None:
        command = [sys.executable, "-m", "bench.recovery", "--child", str(keys), "--place", str(place)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.events: list[Result] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, event: str, count: int = 1) -> Result:
        give_up = time.monotonic() + DEADLINE_SECONDS
        while True:
            found = [seen for seen in list(self.events) if seen["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, f"the driver ended with {self.process.returncode}"
            assert time.monotonic() < give_up, f"no {event} in {DEADLINE_SECONDS} s"
            time.sleep(0.01)


def one_kill(life: Life, keys: int, place: Path, pause: float, lost: bool) -> tuple[Life, Result]:
    """Kill the driver after some epochs, start the next, and time it to its first commit."""
    life.wait_for("committed", EPOCHS_BEFORE_KILL)
    time.sleep(pause)
    killed = time.time()
    life.process.kill()
    life.process.wait()
    gone = time.time()
    if lost:
        shutil.rmtree(place / "w")
    following = Life(keys, place)
    ups = [following.wait_for(event)["at"] for event in ("python", "jvm", "spark")]
    running = following.wait_for("running")["at"]
    restored = running + following.wait_for("epoch")["open_ms"] / 1_000
    committed = following.wait_for("committed")["at"]
    times = (killed, gone, *ups, restored, committed)
    split = {phase: times[i + 1] - times[i] for i, phase in enumerate(PHASES)}
    return following, {**split, "total": committed - killed}


def measure(keys: int, kills: int, lost: bool, seed: int) -> Result:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as root:
        place = Path(root)
        filler = [sys.executable, "-m", "bench.recovery", "--fill", str(keys), "--place", root]
        subprocess.run(filler, check=True, stderr=subprocess.DEVNULL)
        life, taken = Life(keys, place), []
        for number in range(kills):
            life, split = one_kill(life, keys, place, chance.uniform(0, 1), lost)
            taken.append(split)
            print(f"{keys:,} keys, kill {number + 1}: {split['total']:.2f} s", flush=True)
        life.process.kill()
        life.process.wait()
    summary = {phase: percentiles([split[phase] for split in taken]) for phase in (*PHASES, "total")}
    return {"keys": keys, "kills": kills, "lost_working_state": lost, "seed": seed, "seconds": summary}


def percentiles(values: list[float]) -> Result:
    """The middle, the bad and the worst of some durations."""
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) for name, part in at.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--lost", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-results/recovery.json"))
    parser.add_argument("--child", type=int)
    parser.add_argument("--fill", type=int)
    parser.add_argument("--place", type=Path)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child, given.place)
        return
    if given.fill is not None:
        fill(given.fill, given.place)
        return
    jvm_archive.make()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    for keys in given.keys:
        found = measure(keys, given.kills, given.lost, given.seed)
        known[f"{keys}{'-lost' if given.lost else ''}"] = found
        given.out.write_text(json.dumps(known, indent=2))
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
