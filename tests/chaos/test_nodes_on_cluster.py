"""Nodes as drivers of one real Spark cluster: leader and standby have executors on each of two workers.

The leader, an executor, a worker and the master are lost, one after the other; after each the job goes on,
and in the end state and sinks equal a run without faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import nemesis
from tests.chaos.apps import Shape
from tests.chaos.cluster import Cluster as SparkCluster
from tests.chaos.cluster import arguments
from tests.chaos.harness import ROOT
from tests.chaos.nodes import ENDLESS, Cluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1_800)]

APPLICATIONS = 2
"""The leader and one standby, each with an executor on both workers."""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), applications=APPLICATIONS) as started:
        yield started


@pytest.fixture
def cluster(spark_cluster: SparkCluster, tmp_path: Path) -> Iterator[Cluster]:
    conf = spark_cluster.conf(os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    spark = ("--master", spark_cluster.url, *arguments(conf))
    with Cluster(tmp_path, Shape(epochs=ENDLESS, shards=4), session="6s", spark=spark) as started:
        yield started


def test_a_killed_leader_is_replaced_on_the_same_cluster(
    cluster: Cluster, spark_cluster: SparkCluster
) -> None:
    first, second = cluster.pair()
    first.kill()
    cluster.wait(lambda: cluster.term() == 2, "the second node to commit")
    third = cluster.start("third")
    cluster.wait_joined(third)
    second.kill()
    cluster.wait(lambda: cluster.term() == 3, "the third node to commit")
    cluster.wait(lambda: len(spark_cluster.executors()) == 2, "the executors of the dead to be gone")
    cluster.wait_progress()
    cluster.stop(third)


def test_the_leader_survives_the_loss_of_executor_worker_and_master(
    cluster: Cluster, spark_cluster: SparkCluster
) -> None:
    first, second = cluster.pair()
    there = 2 * APPLICATIONS
    cluster.wait(lambda: len(spark_cluster.executors()) == there, "all executors to be there")

    for executor in spark_cluster.executors():
        # One after the other, so that those of the leader are among them.
        nemesis.kill(executor.pid)
        cluster.wait_progress()
    cluster.wait(lambda: len(spark_cluster.executors()) == there, "the executors to be replaced")

    spark_cluster.kill_worker(1)
    cluster.wait_progress(3)
    spark_cluster.start_worker(1)
    spark_cluster.wait_registered(1)
    cluster.wait(lambda: len(spark_cluster.executors()) == there, "executors on the worker that came back")
    cluster.wait_progress()

    spark_cluster.kill_master()
    cluster.wait_progress(3)
    spark_cluster.start_master()
    cluster.wait_progress(3)
    # The master that came back gives out executors again: it has not forgotten the two nodes.
    nemesis.kill(spark_cluster.executors()[0].pid)
    cluster.wait(lambda: len(spark_cluster.executors()) == there, "the executor to be replaced")
    cluster.wait_progress()
    assert cluster.term() == 1, cluster.told()

    first.kill()
    cluster.wait(lambda: cluster.term() == 2, "the second node to commit")
    cluster.wait_progress()
    cluster.stop(second)
