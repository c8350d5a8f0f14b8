"""A job from Kafka to files, killed again and again, while the broker is killed too, transactions are given
up and left open, and a partition is added: every row of a committed transaction takes effect once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from holdfast.checkpoint.store import names
from tests.chaos.apps import Place
from tests.chaos.harness import ROOT, wait_until
from tests.services.kafka_broker import QUIET, KafkaBroker, kafka, topic

__all__ = ["kafka", "topic"]

ROWS = 60
"""Of a transaction. An epoch reads fewer offsets, so that a life has several."""
USERS = 7


class Writer:
    """Writes numbered rows in transactions; knows which of them count."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.use(partitions=2)
        self.committed: list[int] = []
        self._next = 0
        self._open: list[int] = []

    def use(self, partitions: int) -> None:
        """Write to so many partitions, by a producer that has heard of them."""
        settings = {"bootstrap.servers": self._kafka.servers, "transactional.id": self._topic, **QUIET}
        self._producer, self._partitions = Producer(settings), partitions
        self._producer.init_transactions(60)

    def begin(self) -> None:
        """Write rows, and leave it open whether they count."""
        self._producer.begin_transaction()
        self._open = list(range(self._next, self._next + ROWS))
        self._next += ROWS
        for n in self._open:
            row = json.dumps({"user": f"u{n % USERS}", "n": n})
            self._producer.produce(self._topic, row, partition=n % self._partitions)
        assert self._producer.flush(60) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(60)
        self.committed += self._open

    def give_up(self) -> None:
        self._producer.abort_transaction(60)

    def write(self) -> None:
        """Rows that count, and between them some that do not."""
        self.begin()
        self.give_up()
        self.begin()
        self.commit()


class Lives:
    """The job in processes of its own, one after the other."""

    def __init__(self, place: Place, *arguments: str) -> None:
        self._place, self._arguments = place, arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.count = 0

    def start(self, *more: str) -> None:
        self.count += 1
        self._log = self._place.root / f"life-{self.count}.log"
        app = [sys.executable, "-m", "tests.chaos.kafka_app", str(self._place.root)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*app, *self._arguments, *more], cwd=self._place.root, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )  # fmt: skip

    def wait_for_commits(self, more: int) -> None:
        """Wait until the chain has grown, which this life must live to do."""
        before = self._newest()
        wait_until(lambda: self._newest() >= before + more or self._ended(), f"{more} more commits")
        assert not self._ended(), f"it ended: {self._said()}"

    def kill(self) -> None:
        assert not self._ended(), f"it ended before it was killed: {self._said()}"
        self.close()

    def finish(self) -> None:
        wait_until(self._ended, "the last life to end")
        assert self._process is not None
        assert self._process.returncode == 0, self._said()

    def close(self) -> None:
        """End it and everything it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _newest(self) -> int:
        directory = self._place.checkpoint / names.COMMITS
        return max((int(path.name) for path in directory.glob("[0-9]*")), default=0)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def rows_in(directory: Path) -> list[dict[str, Any]]:
    files = [path for path in directory.glob("*.json") if not path.name.startswith("_")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def partitions(kafka: KafkaBroker, topic: str) -> int:
    return len(kafka.admin.list_topics(topic, timeout=30).topics[topic].partitions)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_job_that_reads_kafka_and_is_killed_shows_every_committed_row_once(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.make(topic, partitions=2)
    place, writer = Place(tmp_path), Writer(kafka, topic)
    lives = Lives(place, kafka.servers, topic)
    try:
        writer.write()
        lives.start()
        lives.wait_for_commits(2)
        lives.kill()  # in the middle of what was there

        writer.write()
        writer.begin()
        lives.start()
        lives.wait_for_commits(2)
        lives.kill()  # a transaction is open: what lies behind its first row is not read yet
        writer.commit()

        lives.start()
        lives.wait_for_commits(1)
        kafka.kill()
        kafka.start()
        writer.write()
        lives.wait_for_commits(2)
        lives.kill()  # after the broker was, too

        kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        wait_until(lambda: partitions(kafka, topic) == 3, "the partition that was added")
        writer.use(partitions=3)
        lives.start()
        writer.write()
        lives.wait_for_commits(3)
        kafka.kill()
        lives.kill()  # both at once
        kafka.start()

        writer.write()
        lives.start("exhausted")
        lives.finish()
    finally:
        lives.close()

    copied = sorted(row["n"] for row in rows_in(place.sink("copy")))
    assert copied == sorted(writer.committed)
    sums: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for n in writer.committed:
        sums[f"u{n % USERS}"] += n
        counts[f"u{n % USERS}"] += 1
    ledger = rows_in(place.sink("ledger"))
    for user, count in counts.items():
        seqs = {row["seq"]: row["total"] for row in ledger if row["user"] == user}
        assert sorted(row["seq"] for row in ledger if row["user"] == user) == list(range(1, count + 1))
        assert seqs[count] == sums[user]
