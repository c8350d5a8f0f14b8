"""One of a node's jobs: its code, its checkpoint, and what others see of it, led by this node or not.

Always true: numbers of this process that only grow do so over all runs of the job in it.
Never here: the seat (see job_seat), the run (see run).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from holdfast.cluster.node_records import Unfit, checked_name
from holdfast.graph.fingerprint import fingerprint_parts
from holdfast.runtime.job import Job
from holdfast.runtime.progress import Listener, Progress
from holdfast.runtime.settings import RunOptions
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

STANDING_BY = "standing-by"
"""The phase of a job that another node leads, or no node does yet."""


class JobOnNode:
    """Safe to use from several threads."""

    def __init__(self, job: Job, checkpoint: str, options: RunOptions) -> None:
        self.name = checked_name("job", job.name)
        self.job, self.checkpoint, self.options = job, checkpoint, options
        self.code = fingerprint_parts(job.graph())
        self.unfit: Unfit | None = None
        """Why this node leaves the job to the others; None: it does not."""
        self.failure: BaseException | None = None
        """The failure that `unfit` tells of."""
        self._newest = Progress(job=self.name, phase=STANDING_BY)
        self._before = self._newest
        """The last of the run before this one: what was counted until then."""
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @property
    def storage(self) -> Storage:
        """The job's checkpoint storage."""
        return open_storage(self.checkpoint)

    @property
    def running(self) -> bool:
        """Whether a run of this node is under way."""
        return self._newest.phase != STANDING_BY

    def status(self) -> Progress:
        """Where the run stands now, or stood when it ended."""
        return self._newest

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on, and at once how things stand."""
        self._listeners.append(listener)
        listener(self._newest)

    def note(self, progress: Progress) -> None:
        """A run of this node goes on."""
        with self._lock:
            counted = self._before
            self._tell(
                replace(
                    progress,
                    epochs_run=counted.epochs_run + progress.epochs_run,
                    rows_run=counted.rows_run + progress.rows_run,
                )
            )

    def ended(self) -> None:
        """The run is over; this node stands by."""
        with self._lock:
            self._before = replace(self._newest, phase=STANDING_BY, error=None)
            self._tell(self._before)

    def _tell(self, now: Progress) -> None:
        self._newest = now
        for listener in self._listeners:
            listener(now)


def jobs_on_node(jobs: Sequence[Job], checkpoint: str, options: RunOptions) -> dict[str, JobOnNode]:
    """A node's jobs by name. Where there are several, each has its checkpoint below `checkpoint`."""
    root = checkpoint if "://" in checkpoint else os.path.abspath(os.path.expanduser(checkpoint))
    urls = [root] if len(jobs) == 1 else [f"{root.rstrip('/')}/{job.name}" for job in jobs]
    return {job.name: JobOnNode(job, url, options) for job, url in zip(jobs, urls, strict=True)}
