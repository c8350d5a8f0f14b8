"""Storms over connectors: the job, whoever writes, the server and the connections are struck in random
order. Where a connector is exactly once, all ends as in a run without faults: each row is there once. Where
it is at least once, no row is lost, and those that come again are counted.

A seed decides everything that the test can decide: HOLDFAST_STORM_SEED=7 repeats the storm of seed 7.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.chaos.checker import Verdict
from tests.chaos import connector_feeds as feeds
from tests.chaos import connector_systems as systems
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Finding
from tests.chaos.cluster import Cluster
from tests.chaos.connector_feeds import FedSystem
from tests.chaos.connector_storm import SourceStorm, Storm, Strike
from tests.chaos.connector_systems import CAN_MOUNT, System
from tests.chaos.harness import show

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

SHAPE = Shape(epochs=60, rows=400, shards=4, pad=60)
AT_A_SERVER = (
    Strike.DRIVER, Strike.DRIVER, Strike.WRITER, Strike.WRITER, Strike.SERVER, Strike.SERVER, Strike.BREAK,
    Strike.BREAK, Strike.REFUSE, Strike.LOSE,
)  # fmt: skip
FULL = (Strike.FILL,) if CAN_MOUNT else ()


def seed_of_this_run() -> int:
    return int(os.environ.get("HOLDFAST_STORM_SEED") or random.randrange(1_000_000))


WITHOUT_SERVER = (Strike.DRIVER, Strike.DRIVER, Strike.WRITER, Strike.WRITER, Strike.WRITER)
STORMS: dict[type[System], tuple[Strike, ...]] = {
    systems.Postgres: AT_A_SERVER + FULL,
    # Its table does not grow: it needs no room.
    systems.PostgresUpsert: AT_A_SERVER,
    systems.RedisStream: (*AT_A_SERVER, Strike.FILL),
    systems.RedisHash: (*AT_A_SERVER, Strike.FILL),
    systems.Kafka: (*AT_A_SERVER, Strike.VANISH),
    systems.Files: WITHOUT_SERVER + FULL,
    systems.Delta: WITHOUT_SERVER,
    systems.Iceberg: WITHOUT_SERVER,
    systems.Lines: AT_A_SERVER,
    systems.Foreach: WITHOUT_SERVER,
}


def rages(storm: Storm, capsys: pytest.CaptureFixture[str]) -> Finding:
    show(f"{storm.system.name}, seed {storm.seed}:", capsys)
    finding = storm.rage()
    struck = ", ".join(f"{count} x {strike}" for strike, count in sorted(storm.struck.items()))
    show(f"  {finding.rows} rows, and {storm.repeated} again; the nemesis {struck}", capsys)
    return finding


@pytest.mark.parametrize("kind", STORMS, ids=lambda kind: kind.name)
def test_a_storm_loses_and_doubles_nothing(
    kind: type[System], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kind() as system:
        # A server that remembers nothing confirms row by row, which takes longer.
        shape = SHAPE if system.exactly_once else replace(SHAPE, rows=100)
        storm = Storm(system, Place(tmp_path), shape, seed_of_this_run(), STORMS[kind])
        finding = rages(storm, capsys)
    assert finding.verdict is Verdict.TRUE, storm.story


ON_A_CLUSTER = (
    Strike.EXECUTOR, Strike.EXECUTOR, Strike.EXECUTOR, Strike.EXECUTOR, Strike.WRITER, Strike.WRITER,
    Strike.DRIVER,
)  # fmt: skip


@pytest.mark.parametrize("kind", [systems.Postgres, systems.Files], ids=lambda kind: kind.name)
def test_a_storm_over_executors_that_write_loses_and_doubles_nothing(
    kind: type[System], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cluster", "job"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path / "cluster") as cluster, kind() as system:
        job = Place(tmp_path / "job")
        storm = Storm(system, job, SHAPE, seed_of_this_run(), ON_A_CLUSTER, cluster.arguments(), cluster)
        finding = rages(storm, capsys)
    assert finding.verdict is Verdict.TRUE, storm.story


FORGETFUL: dict[type[System], Strike] = {
    systems.Postgres: Strike.LOSE,
    systems.RedisStream: Strike.LOSE,
    # Of one whose answer is lost a client asks again, and is told. So it must not be able to ask.
    systems.Kafka: Strike.VANISH,
    systems.Files: Strike.WRITER,
    systems.Delta: Strike.WRITER,
    systems.Iceberg: Strike.WRITER,
}


@pytest.mark.parametrize("kind", FORGETFUL, ids=lambda kind: kind.name)
def test_a_sink_that_forgets_what_it_shows_is_found_out(
    kind: type[System], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No notice is taken of marks, or of names of files: what was written and not heard of comes again."""
    with kind() as system:
        shape = replace(SHAPE, epochs=12)
        arguments = ("--forget", system.name)
        storm = Storm(system, Place(tmp_path), shape, seed_of_this_run(), (FORGETFUL[kind],), arguments)
        finding = rages(storm, capsys)
    assert finding.verdict is Verdict.FALSE, storm.story
    assert any("times" in reason for reason in finding.reasons), storm.story


AT_A_SOURCE = (
    Strike.DRIVER, Strike.DRIVER, Strike.SERVER, Strike.SERVER, Strike.BREAK, Strike.BREAK, Strike.REFUSE,
)  # fmt: skip
# What is received is logged by a thread of its own: it connects again by itself, and no job waits for it.
AT_A_SENDER = tuple(strike for strike in AT_A_SOURCE if strike is not Strike.REFUSE)
FED: dict[type[FedSystem], tuple[Strike, ...]] = {
    feeds.Table: AT_A_SOURCE,
    feeds.RedisEntries: AT_A_SOURCE,
    feeds.Queue: AT_A_SENDER,
    feeds.SentLines: AT_A_SENDER,
}


@pytest.mark.parametrize("kind", FED, ids=lambda kind: kind.name)
def test_a_storm_over_a_source_misses_and_doubles_nothing(
    kind: type[FedSystem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kind() as system:
        storm = SourceStorm(system, Place(tmp_path), SHAPE, seed_of_this_run(), FED[kind])
        finding = rages(storm, capsys)
    assert finding.verdict is Verdict.TRUE, storm.story
