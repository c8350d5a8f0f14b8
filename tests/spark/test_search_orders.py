"""The example with a search index: a real OpenSearch, killed while the job runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load_job import load_job
from tests.services.search_node import SearchNode

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_orders.py"
SECONDS = 240.0


def test_every_user_has_the_right_total_though_the_server_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "opensearch"
    place.mkdir()
    with SearchNode(place) as node:
        node.make("totals")
        monkeypatch.setenv("SEARCH_URL", node.url)
        job = load_job(EXAMPLE)

        begun, killed = threading.Event(), threading.Event()

        def held_up(progress: hf.Progress) -> None:
            if progress.committed_epoch >= 3:
                begun.set()
                assert killed.wait(SECONDS)

        handle = job.start(
            tmp_path / "ck",
            spark=spark,
            until="exhausted",
            max_rows_per_epoch=300,
            working_dir=tmp_path / "working",
            on_progress=held_up,
        )
        assert begun.wait(SECONDS)
        # By this thread: the server ends with the one that started it.
        node.kill()
        killed.set()
        node.start()
        handle.wait(SECONDS)
        found = node.documents("totals")
    users = [document["user"] for document in found]
    assert len(users) == len(set(users))
    assert sum(document["orders"] for document in found) == 3_000
    assert sum(document["amount"] for document in found) == sum(n % 20 for n in range(3_000))
