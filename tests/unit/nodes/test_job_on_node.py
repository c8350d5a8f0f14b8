"""What a node shows of a job over several runs of it."""

from __future__ import annotations

from pathlib import Path

import holdfast as hf
from holdfast.nodes.job_on_node import STANDING_BY, JobOnNode, jobs_on_node
from holdfast.runtime.progress import Progress


def test_counts_go_on_from_one_run_to_the_next(tmp_path: Path) -> None:
    seen: list[Progress] = []
    job = JobOnNode(hf.Job("orders"), str(tmp_path), {})
    job.listen(seen.append)
    assert (seen[-1].phase, job.running) == (STANDING_BY, False)

    job.note(Progress(job="orders", phase="running", epochs_run=5, rows_run=50, term=1))
    assert (job.running, job.status().term) == (True, 1)
    job.note(Progress(job="orders", phase="failed", epochs_run=6, rows_run=60, error="x"))
    job.ended()
    assert (seen[-1].phase, seen[-1].error, job.running) == (STANDING_BY, None, False)
    assert seen[-1].epochs_run == 6

    job.note(Progress(job="orders", phase="running", epochs_run=1, rows_run=10))
    assert (seen[-1].epochs_run, seen[-1].rows_run) == (7, 70)
    assert [progress.epochs_run for progress in seen] == sorted(progress.epochs_run for progress in seen)


def test_the_storage_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    assert JobOnNode(hf.Job("orders"), str(tmp_path), {}).storage.url == str(tmp_path)


def test_several_jobs_have_checkpoints_of_their_own() -> None:
    def checkpoints(root: str, *names: str) -> list[str]:
        jobs = jobs_on_node([hf.Job(name) for name in names], root, {})
        return [job.checkpoint for job in jobs.values()]

    assert checkpoints("s3://b/shop", "counts") == ["s3://b/shop"]
    assert checkpoints("s3://b/shop/", "counts", "sums") == ["s3://b/shop/counts", "s3://b/shop/sums"]
