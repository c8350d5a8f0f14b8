"""What others see of a job on a node, whether the node leads it at the moment or stands by.

Always true: numbers of this process that only grow do so over all runs of the job in it.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from holdfast.runtime.progress import Listener, Progress
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

STANDING_BY = "standing-by"
"""The phase of a job that another node leads, or no node does yet."""


class Sighting:
    """One job on one node. Safe to use from several threads."""

    def __init__(self, job: str, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._newest = Progress(job=job, phase=STANDING_BY)
        self._before = self._newest
        """The last of the run before this one: what was counted until then."""
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @property
    def storage(self) -> Storage:
        """The job's checkpoint storage."""
        return open_storage(self._checkpoint)

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
