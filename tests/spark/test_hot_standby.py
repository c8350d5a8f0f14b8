"""A hot standby on a real Spark with a real ZooKeeper: it takes over and has nothing to restore.

Leader and standby run in one process: they share a machine, a Spark and a `--working-dir`, and nothing else.
What a takeover had to do is read from the failover record, not from a clock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.admin.cluster import cluster_standing
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.log.incidents import read_failovers
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.clock import SystemClock
from holdfast.cluster.membership import Cluster
from holdfast.cluster.zookeeper import ZooKeeper, ZooKeeperSettings
from holdfast.nodes import seat_allocation
from holdfast.nodes.follower import Follower
from holdfast.nodes.zookeeper_server import ZooKeeperServer, free_port
from holdfast.runtime.epoch import snapshotter
from holdfast.storage.urls import open_storage
from tests.services.harness import Running, expire, nodes_of
from tests.services.harness import wait_until as wait_for
from tests.spark.jobs import SCHEMA, Sequence, check_sequences, expected_totals

pytestmark = pytest.mark.timeout(600)
SHARDS = 2
wait_until = partial(wait_for, seconds=120.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), free_port())
    server.start()
    yield server
    server.kill()


class Pair:
    """Nodes of one cluster over one directory of input files, of which each is an epoch."""

    def __init__(self, root: Path, start: Callable[..., Running], hosts: str) -> None:
        self._root, self._start = root, start
        self._zookeeper = ZooKeeper(ZooKeeperSettings(hosts=hosts), lambda change: None, SystemClock())
        self._zookeeper.connect()
        self.storage = open_storage(str(root / "ck"))
        (root / "in").mkdir()
        self.rows: list[tuple[str, int]] = []
        self.nodes: list[Running] = []

    def start(self, name: str) -> Running:
        job = hf.Job("sequences")
        source = hf.FileSource(self._root / "in", format="json", schema=SCHEMA)
        keyed = job.source(source, uid="rows").key_by("user").process(Sequence(), uid="sequence")
        keyed.sink(hf.FileSink(self._root / "out", format="json"), uid="out")
        options = {"parallelism": SHARDS, "retain": 2, "working_dir": self._root / "working"}
        self.nodes.append(self._start(name, job, standby="hot", cluster=self._root.name, options=options))
        return self.nodes[-1]

    def feed(self, files: int = 1) -> int:
        """Give the job more files and wait until all of them are committed; gives the newest epoch then."""
        for _ in range(files):
            self.add()
            wait_until(lambda: self.committed() == len(self.rows), "the epoch to be committed", self.story)
        return History(self.storage).load().last_epoch

    def add(self) -> None:
        more = [(f"u{i}", len(self.rows) + i) for i in range(20)]
        text = "".join(json.dumps({"user": user, "amount": amount}) + "\n" for user, amount in more)
        draft = self._root / f"draft-{len(self.rows)}"
        draft.write_text(text)
        draft.rename(self._root / "in" / f"{len(self.rows):06d}.json")
        self.rows += more

    def committed(self) -> int:
        return History(self.storage).load().rows

    def lag(self, name: str) -> dict[str, Any]:
        standing = cluster_standing(Cluster(self._zookeeper, self._root.name), SystemClock())
        lags = [each["lag"].get("sequences") for each in standing["nodes"] if each["node"] == name]
        return (lags[0] if lags else None) or {"epoch": -1}

    def followed(self, by: str, epoch: int) -> None:
        wait_until(lambda: self.lag(by)["epoch"] == epoch, f"{by} to follow to {epoch}", self.story)

    def failover(self, number: int) -> FailoverRecord:
        wait_until(lambda: len(read_failovers(self.storage)) >= number, f"failover {number}", self.story)
        return read_failovers(self.storage)[number - 1]

    def pair(self) -> tuple[Running, Running]:
        """A leader, and a standby that has followed it."""
        first = self.start("first")
        epoch = self.feed(3)
        second = self.start("second")
        self.followed("second", epoch)
        return first, second

    def shown(self) -> list[tuple[Any, ...]]:
        files = sorted((self._root / "out").glob("*.json"))
        return [tuple(json.loads(line).values()) for path in files for line in path.read_text().splitlines()]

    def check(self) -> None:
        # An epoch is shown after it was committed, and `feed` has waited for the commit alone.
        wait_until(lambda: len(self.shown()) >= len(self.rows), "all rows to be shown", self.story)
        check_sequences(self.shown(), expected_totals(self.rows))

    def close(self) -> None:
        self._zookeeper.close()

    def story(self) -> str:
        return "\n".join(each.story() for each in self.nodes)


@pytest.fixture
def pair(
    spark: SparkSession, server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    # Who has lost a seat would leave it to the others for some seconds, and here it is to come back at once.
    monkeypatch.setattr(seat_allocation, "COOL_SECONDS", 0.0)
    with nodes_of(tmp_path / "ck", server.hosts) as start:
        pair = Pair(tmp_path, start, server.hosts)
        yield pair
        pair.close()


def test_a_hot_standby_takes_over_and_restores_nothing(pair: Pair, tmp_path: Path) -> None:
    first, second = pair.pair()
    expire(first)
    wait_until(lambda: second.told("TAKING THE SEAT", "first had it"), "a takeover", pair.story)
    pair.feed()
    failover = pair.failover(2)
    assert (failover.node, failover.standby) == ("second", "hot"), pair.story()
    assert failover.arrivals == {"there": SHARDS}, pair.story()

    kept = {path.parents[2].name for path in (tmp_path / "working").glob("*/*/sequence/*")}
    assert len(kept) == 2, f"leader and standby keep their working state apart, here: {kept}"

    # The old leader follows now. Its working state was the leader's: it goes on with that.
    pair.followed("first", pair.feed())
    expire(second)
    wait_until(lambda: first.told("TAKING THE SEAT", "second had it"), "a takeover back", pair.story)
    pair.feed()
    assert pair.failover(3).arrivals == {"there": SHARDS}, pair.story()
    pair.check()


def test_a_standby_whose_deltas_were_removed_goes_on_from_the_snapshots(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotter, "DELTAS_MIN", 2)
    first, second = pair.pair()
    asleep, step = threading.Event(), Follower.step

    def sleepy(follower: Follower) -> bool:
        return not asleep.is_set() and step(follower)

    monkeypatch.setattr(Follower, "step", sleepy)
    asleep.set()
    missed = pair.feed()
    wait_until(
        lambda: pair.feed() and not pair.storage.list(names.data_of(missed)),
        "retention to remove what the standby would need",
        pair.story,
    )
    asleep.clear()
    pair.followed("second", pair.feed())
    expire(first)
    wait_until(lambda: second.told("TAKING THE SEAT", "first had it"), "a takeover", pair.story)
    pair.feed()
    assert pair.failover(2).arrivals == {"there": SHARDS}, pair.story()
    pair.check()
