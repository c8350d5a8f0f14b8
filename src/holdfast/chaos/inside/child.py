"""One life of a user's job, in a process of its own: its sinks recorded, its clock and storage disturbed."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.chaos.inside.disturbances import CHECKPOINT, ROUND_VARIABLE, JumpingClock, become_driver
from holdfast.chaos.inside.recording_sinks import RecordedJob
from holdfast.chaos.inside.short_intervals import tightened
from holdfast.runtime import job as jobs
from holdfast.runtime.job import Job
from holdfast.runtime.restart_strategy import ExponentialDelay
from holdfast.steps import Step

RESTART = ExponentialDelay(initial="100ms", maximum="2s")
"""Failures come every few seconds here: a job that waited longer after each would do nothing else."""

PARKED = "HOLDFAST_CHAOS_DRIVER_STOP_AT"
"""What HOLDFAST_STOP_AT is in the driver, once Spark has started: in Spark's workers it is another one."""


@dataclass(frozen=True, kw_only=True)
class LifeSettings:
    """How the job is run. `options`: those of `Job.run`, as JSON holds them."""

    options: dict[str, Any]
    real_sinks: bool = False
    tight: bool = True
    """Manifests, sweeps and snapshots every few epochs."""


def live(job: Job, directory: Path, settings: LifeSettings) -> None:
    """Run the job until it ends or is ended. `directory`: that of the round."""
    os.environ[ROUND_VARIABLE] = str(directory)
    become_driver()
    # The job reads the machine's clock by this name, and has no other use for it.
    setattr(jobs, "SystemClock", JumpingClock)  # noqa: B010
    recorded = RecordedJob(job, directory, real_sinks=settings.real_sinks)
    _start_spark(job.name)
    with tightened() if settings.tight else nullcontext():
        recorded.run(
            directory / CHECKPOINT,
            until="exhausted",
            working_dir=directory / "working",
            restart=RESTART,
            **settings.options,
        )


def _start_spark(name: str) -> None:
    """Start it while HOLDFAST_STOP_AT is what its workers are to inherit; the driver's own comes after."""
    from holdfast.runtime.spark_session import open_session

    open_session(name)
    own = os.environ.pop(PARKED, None)
    os.environ.pop("HOLDFAST_STOP_AT", None)
    if own is not None:
        os.environ["HOLDFAST_STOP_AT"] = own


def stop_at(step: Step, token: Path) -> str:
    """The setting that kills whoever reaches `step` first while `token` does not exist."""
    return f"{step}:1:KILL:{token}"
