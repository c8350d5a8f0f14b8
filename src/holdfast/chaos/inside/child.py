"""One life of a user's job, in a process of its own: its sinks recorded, its clock and storage disturbed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.chaos.inside.disturbances import CHECKPOINT, ROUND_VARIABLE, JumpingClock, become_driver
from holdfast.chaos.inside.recording_sinks import RecordedJob
from holdfast.checkpoint.chain import checkpoint, commits, retention
from holdfast.runtime import job_handle as jobs
from holdfast.runtime.epoch import snapshotter
from holdfast.runtime.job import Job
from holdfast.runtime.restart_strategy import ExponentialDelay

RESTART = ExponentialDelay(initial="100ms", maximum="2s")
"""Failures come every few seconds here: a job that waited longer after each would do nothing else."""

PARKED = "HOLDFAST_CHAOS_DRIVER_STOP_AT"
"""What HOLDFAST_STOP_AT is in the driver, once Spark has started: in Spark's workers it is another one."""

MANIFEST_EVERY = 3
SWEEP_EVERY = 1
DELTAS_MIN = 3


@dataclass(frozen=True, kw_only=True)
class LifeSettings:
    """How the job is run. `options`: those of `Job.run`, as JSON holds them."""

    options: dict[str, Any]
    real_sinks: bool = False


def live(job: Job, directory: Path, settings: LifeSettings) -> None:
    """Run the job until it ends or is ended. `directory`: that of the round."""
    os.environ[ROUND_VARIABLE] = str(directory)
    become_driver()
    # The job reads the machine's clock by this name, and has no other use for it.
    setattr(jobs, "SystemClock", JumpingClock)  # noqa: B010
    recorded = RecordedJob(job, directory, real_sinks=settings.real_sinks)
    _start_spark(job.name)
    with tightened():
        recorded.run(
            directory / CHECKPOINT,
            until="exhausted",
            working_dir=directory / "working",
            restart=RESTART,
            **settings.options,
        )


@contextmanager
def tightened() -> Iterator[None]:
    """Manifests, sweeps and snapshots every few epochs, in this process: a short run then passes every step
    that there is. Only how often things happen changes, never what happens.
    """
    often: list[tuple[Any, str, Any]] = [
        (checkpoint, "Chain", partial(commits.Chain, manifest_every=MANIFEST_EVERY)),
        (checkpoint, "Retention", partial(retention.Retention, sweep_every=SWEEP_EVERY)),
        (snapshotter, "DELTAS_MIN", DELTAS_MIN),
    ]
    usual = [(module, name, getattr(module, name)) for module, name, _ in often]
    try:
        for module, name, value in often:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)


def _start_spark(name: str) -> None:
    """Start it while HOLDFAST_STOP_AT is what its workers are to inherit; the driver's own comes after."""
    from holdfast.runtime.spark_session import open_session

    open_session(name)
    own = os.environ.pop(PARKED, None)
    os.environ.pop("HOLDFAST_STOP_AT", None)
    if own is not None:
        os.environ["HOLDFAST_STOP_AT"] = own
