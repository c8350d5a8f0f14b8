"""How long does a job stand still after the node that leads was killed?

    python -m bench.failover --standby cold warm hot --keys 100000 10000000 --kills 20

For each size a state of that many keys is filled once. Then, for each kind of standby, two nodes run the job
under a steady load, with a real ZooKeeper on this machine. The leader is killed with SIGKILL at a random
moment, the standby takes over, and a fresh node takes the place of the dead one. The time from the kill to
the first new commit record, by one clock, is split into

    detect      until ZooKeeper has ended the session and the standby has won the seat
    take over   until the term is claimed. A cold standby starts Spark here
    restore     until the checkpoint is loaded
    replay      until the first commit: shards get their state, and the interrupted epoch is run

The bound that is wished for: session time-out + one tick of ZooKeeper + two median epochs + one second.
A kill takes 30 to 45 s with all that is around it, so all of the above takes more than an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.node_process import Node, wait_for, zookeeper
from bench.recovery import ROWS, percentiles
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.nodes.zookeeper_server import TICK_MS
from holdfast.storage.urls import open_storage

KINDS = ("cold", "warm", "hot")
PHASES = ("detect", "take over", "restore", "replay")
EPOCH_INTERVAL = "500ms"
EPOCHS_BEFORE_KILL = 5
SPARE_SECONDS = 1.0
"""What the bound allows beside the session, a tick and two epochs."""
APP = "from bench.recovery import job_of\n\njob = job_of({keys}, total=1 << 40)\n"

Result = dict[str, Any]


class Cluster:
    """A leader and a standby of one kind, over a checkpoint that is there already."""

    def __init__(self, kind: str, place: Path, hosts: str, session: float) -> None:
        self._kind, self._place, self._hosts, self._session = kind, place, hosts, session
        self._storage = open_storage(str(place / "ck"))
        self._started = 0
        self.epoch_seconds: list[float] = []
        self.leader = self._start()
        self.standby: Node | None = None

    def _start(self) -> Node:
        self._started += 1
        options = [
            "--standby", self._kind, "--working-dir", "working",
            "--session-timeout", f"{round(self._session * 1_000)}ms",
            "--max-rows-per-epoch", str(ROWS), "--epoch-interval", EPOCH_INTERVAL,
        ]  # fmt: skip
        return Node(f"{self._kind}-{self._started}", self._place, self._hosts, options)

    def ready(self) -> None:
        """Wait for a leader at work and a standby that is what its kind promises."""
        began = self.newest()
        wait_for(lambda: self.newest() > began, f"{self.leader.name} to commit")
        standby = self.standby = self.standby or self._start()
        promise = "HOT: " if self._kind == "hot" else "is in cluster"
        wait_for(lambda: standby.told(promise), f"{standby.name} to be {self._kind}")
        began = self.newest()
        wait_for(lambda: self.newest() >= began + EPOCHS_BEFORE_KILL, f"{self.leader.name} to commit")

    def newest(self) -> int:
        return max((names.number_of(f"commits/{name}") or 0 for name in self._commits()), default=0)

    def _commits(self) -> list[str]:
        directory = self._place / "ck" / names.COMMITS
        return os.listdir(directory) if directory.is_dir() else []

    def kill(self) -> Result:
        """Kill the leader and time the way to the first new commit."""
        standby, told = self.standby, len(read_failovers(self._storage))
        assert standby is not None
        killed = self.leader.kill()
        before = self.newest()
        wait_for(lambda: self.newest() > before, f"{standby.name} to commit")
        record = self._place / "ck" / names.commit(before + 1)
        total = record.stat().st_mtime - killed
        wait_for(lambda: len(read_failovers(self._storage)) > told, "the failover to be written down")
        # Not the first epochs of a leader: they are slower, and would make the bound a mild one.
        self.epoch_seconds += list(self.leader.epoch_seconds.values())[EPOCHS_BEFORE_KILL:]
        self.leader.close()
        self.leader, self.standby = standby, None
        return split(total, read_failovers(self._storage)[-1])

    def close(self) -> None:
        for node in (self.leader, self.standby):
            if node is not None:
                node.close()


def split(total: float, failover: FailoverRecord) -> Result:
    """A failover's phases. Its own *detect* begins with the last sign of life; here, with the kill."""
    assert failover.replay_ms is not None
    later = [failover.take_over_ms / 1_000, failover.restore_ms / 1_000, failover.replay_ms / 1_000]
    times = [max(0.0, total - sum(later)), *later]
    return {**dict(zip(PHASES, times, strict=True)), "total": total, "arrivals": failover.arrivals}


def measure(kind: str, keys: int, kills: int, place: Path, hosts: str, session: float, seed: int) -> Result:
    chance, began = random.Random(seed), time.monotonic()
    cluster = Cluster(kind, place, hosts, session)
    taken: list[Result] = []
    try:
        for number in range(kills):
            cluster.ready()
            time.sleep(chance.uniform(0, 1))
            taken.append(cluster.kill())
            print(f"{keys:,} keys, {kind}, kill {number + 1}: {taken[-1]['total']:.2f} s", flush=True)
    finally:
        cluster.close()
    epoch = statistics.median(cluster.epoch_seconds)
    bound = session + TICK_MS / 1_000 + 2 * epoch + SPARE_SECONDS
    return {
        "keys": keys,
        "standby": kind,
        "kills": kills,
        "seed": seed,
        "session_seconds": session,
        "median_epoch_seconds": round(epoch, 3),
        "bound_seconds": round(bound, 2),
        "within_bound": sum(each["total"] <= bound for each in taken),
        "restored_nothing": sum(set(each["arrivals"]) == {"there"} for each in taken),
        "totals": [round(each["total"], 2) for each in taken],
        "took_minutes": round((time.monotonic() - began) / 60, 1),
        "seconds": {phase: percentiles([each[phase] for each in taken]) for phase in (*PHASES, "total")},
    }


@contextmanager
def filled(keys: int) -> Iterator[tuple[Path, str]]:
    """A checkpoint of that many keys, and a ZooKeeper."""
    with tempfile.TemporaryDirectory(prefix="holdfast-failover-") as root:
        place = Path(root)
        filler = [sys.executable, "-m", "bench.recovery", "--fill", str(keys), "--place", root]
        subprocess.run(filler, check=True, stderr=subprocess.DEVNULL)
        shutil.rmtree(place / "w")
        (place / "app.py").write_text(APP.format(keys=keys))
        with zookeeper(place) as hosts:
            yield place, hosts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--standby", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--session", type=float, default=4.0, help="session time-out in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-results/failover.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    for keys in given.keys:
        with filled(keys) as (place, hosts):
            for kind in given.standby:
                found = measure(kind, keys, given.kills, place, hosts, given.session, given.seed)
                known[f"{keys}-{kind}"] = found
                given.out.write_text(json.dumps(known, indent=2))
                print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
