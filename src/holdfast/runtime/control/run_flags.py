"""What is asked of a run while it goes on. Set from any thread or signal handler, read by the driver's.

Always true: the driver looks at a wish between two epochs only, so none cuts an epoch short; the thread of a
sink looks at its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.checkpoint.store.records import MemberRecord
from holdfast.clock import SystemClock
from holdfast.connectors.contract import Json
from holdfast.errors import DefinitionError
from holdfast.runtime.control.commit_permit import Permit


class Wishes:
    """The wishes of one run."""

    def __init__(self, permit: Permit | None = None) -> None:
        self.permit = permit or Permit(SystemClock())
        """Whether commits may begin."""
        self.stopping = threading.Event()
        """End after the epoch in hand is committed."""
        self.leaving = threading.Event()
        """Of a member of a set of replicas: end, and leave the run to the others."""
        self.job_stops = threading.Event()
        """The job stops at a barrier that is carried here: whatever else this run is told, nobody is to go on
        with its part."""
        self.draining = threading.Event()
        """End when what the sources have at hand now is read."""
        self.ends: dict[str, Json] = {}
        """Source uid -> where it ends, since a drain was asked for. Of the driver's thread alone."""
        self.barrier = threading.Event()
        """Commit what was run so far, whatever the checkpoint interval says."""
        self.parts_before_run: Callable[[], bool] = lambda: False
        """Whether a part runs, or is to be run, whose channels this one reads: then they have not ended."""
        self.member_runs: Callable[[MemberRecord], bool] = lambda member: True
        """Whether the process that is a member of a set of replicas may run."""
        self._retries: set[str] = set()
        self._parallelism: int | None = None
        self._savepoint: str | None = None
        self._settled = False
        self._lock = threading.Lock()

    @property
    def parallelism(self) -> int | None:
        """Go on with this many shards."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, shards: int) -> None:
        with self._lock:
            self._parallelism = shards

    def leave_savepoint(self, url: str) -> None:
        """Leave a savepoint there when the run ends in good order. DefinitionError: it is too late for that,
        or another one is to be left.
        """
        with self._lock:
            if self._settled:
                raise DefinitionError(
                    f"the run is ending and leaves no savepoint in {url}; start it again, and take one then"
                )
            if self._savepoint not in (None, url):
                raise DefinitionError(
                    f"the run leaves its savepoint in {self._savepoint}, and no second one in {url}; copy it"
                )
            self._savepoint = url

    def taken_savepoint(self) -> str | None:
        """Where to leave a savepoint, if anywhere. After this it is too late to wish for one."""
        with self._lock:
            self._settled = True
            return self._savepoint

    def taken_parallelism(self) -> int | None:
        """The number of shards wished for since this was last asked."""
        with self._lock:
            wished, self._parallelism = self._parallelism, None
            return wished

    def retry(self, sink: str) -> None:
        """Try a sink again that is waited for, now."""
        with self._lock:
            self._retries.add(sink)

    def taken_retry(self, sink: str) -> bool:
        """Whether a sink is to be tried again, since this was last asked. By the thread of the sink, at any
        time."""
        with self._lock:
            wished = sink in self._retries
            self._retries.discard(sink)
            return wished

    def taken_barrier(self) -> bool:
        """Whether a barrier was wished for since this was last asked."""
        wished = self.barrier.is_set()
        self.barrier.clear()
        return wished
