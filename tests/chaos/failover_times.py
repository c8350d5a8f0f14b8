"""How long a failover takes: `python -m tests.chaos.failover_times --kills 20 --standby warm --keys 100000`.

The leader is killed with SIGKILL again and again; each time a standby takes over, and a new node takes the
place of the dead one. Measured from the kill to the first new commit record in storage, by one clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from holdfast.checkpoint import names
from tests.chaos.apps import Shape
from tests.chaos.nodes import Cluster, NodeProcess

LOOK_SECONDS = 0.01


def newest_commit(cluster: Cluster) -> int:
    directory = cluster.place.checkpoint / names.COMMITS
    return max((int(path.name) for path in directory.iterdir()), default=0)


def kill_and_time(cluster: Cluster, leader: NodeProcess) -> float:
    """Seconds from the kill of the leader to the first commit of its successor."""
    began = time.monotonic()
    leader.kill()
    before = newest_commit(cluster)
    while newest_commit(cluster) == before:
        assert time.monotonic() - began < 240, cluster.told()
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def told(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return f"{name:12} p50 {statistics.median(ordered):6.2f}  p95 {p95:6.2f}  max {ordered[-1]:6.2f} s"


def measure(cluster: Cluster, kills: int, standby: str) -> None:
    leader = cluster.start("node-0", standby)
    cluster.wait(lambda: cluster.number() >= 3, "the first commits")
    next_up = cluster.start("node-1", standby)
    cluster.wait(lambda: next_up.told("is in cluster"), "a standby")
    whole = []
    for number in range(kills):
        before = newest_commit(cluster)
        cluster.wait(lambda seen=before: newest_commit(cluster) > seen + 2, "a leader at work")
        whole.append(kill_and_time(cluster, leader))
        leader.close()
        leader, next_up = next_up, cluster.start(f"node-{number + 2}", standby)
        cluster.wait(lambda fresh=next_up: fresh.told("is in cluster"), "a standby")
        sys.stdout.write(f"kill {number + 1}: {whole[-1]:.2f} s\n")
    found = [record for record in cluster.failovers() if record.before][:kills]
    sys.stdout.write(told(f"{standby}, all", whole) + "\n")
    for phase in ("detect_ms", "take_over_ms", "restore_ms", "replay_ms"):
        times = [getattr(record, phase) / 1_000 for record in found if getattr(record, phase) is not None]
        sys.stdout.write(told(phase.removesuffix("_ms"), times) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--standby", choices=["cold", "warm"], default="warm")
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--rows", type=int, default=200)
    given = parser.parse_args()
    shape = Shape(epochs=1_000_000, keys=given.keys, rows=given.rows)
    with tempfile.TemporaryDirectory() as root, Cluster(Path(root), shape) as cluster:
        measure(cluster, given.kills, given.standby)


if __name__ == "__main__":
    main()
