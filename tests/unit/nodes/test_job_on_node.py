"""What a node shows of a job over several runs of it."""

from __future__ import annotations

from pathlib import Path

from holdfast.nodes.job_on_node import STANDING_BY, Sighting
from holdfast.runtime.progress import Progress


def test_counts_go_on_from_one_run_to_the_next(tmp_path: Path) -> None:
    seen: list[Progress] = []
    sighting = Sighting("orders", str(tmp_path))
    sighting.listen(seen.append)
    assert (seen[-1].phase, sighting.running) == (STANDING_BY, False)

    sighting.note(Progress(job="orders", phase="running", epochs_run=5, rows_run=50, term=1))
    assert (sighting.running, sighting.status().term) == (True, 1)
    sighting.note(Progress(job="orders", phase="failed", epochs_run=6, rows_run=60, error="x"))
    sighting.ended()
    assert (seen[-1].phase, seen[-1].error, sighting.running) == (STANDING_BY, None, False)
    assert seen[-1].epochs_run == 6

    sighting.note(Progress(job="orders", phase="running", epochs_run=1, rows_run=10))
    assert (seen[-1].epochs_run, seen[-1].rows_run) == (7, 70)
    assert [progress.epochs_run for progress in seen] == sorted(progress.epochs_run for progress in seen)


def test_the_storage_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    assert Sighting("orders", str(tmp_path)).storage.url == str(tmp_path)
