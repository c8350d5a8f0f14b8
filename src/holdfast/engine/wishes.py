"""What others ask of a run while it goes on. Set from any thread or signal handler, read by the driver's.

Always true: a wish is only looked at between two epochs, so an epoch is never cut short by one.
"""

from __future__ import annotations

import threading

from holdfast.clock import SystemClock
from holdfast.engine.permit import Permit


class Wishes:
    """The wishes of one run."""

    def __init__(self, permit: Permit | None = None) -> None:
        self.permit = permit or Permit(SystemClock())
        """Whether commits may begin."""
        self.stopping = threading.Event()
        """End after the epoch in hand is committed."""
        self.draining = threading.Event()
        """End when the sources have nothing at hand any more."""
        self.barrier = threading.Event()
        """Commit what was run so far, whatever the checkpoint interval says."""
        self.parallelism: int | None = None
        """Go on with this many shards."""
        self.savepoint: str | None = None
        """Where to leave a savepoint when the run ends in good order."""

    def taken_barrier(self) -> bool:
        """Whether a barrier was wished for since this was last asked."""
        wished = self.barrier.is_set()
        self.barrier.clear()
        return wished
