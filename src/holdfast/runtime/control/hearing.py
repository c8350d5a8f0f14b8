"""Whether another member of a set of replicas is there: it is asked, once something of it is long awaited.

Members send no sign of life: a set needs none to go on. But what a member has taken on, another may answer
for only when that member is gone.
Always true: nothing is done twice because of what is found out here. A member that was only slow finds its
request answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.log.requests import State, forget, read_asked, take_back
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, RestoreError
from holdfast.runtime.control.request_client import TAKEN_SECONDS, ask_leader
from holdfast.storage.contract import Storage

PATIENCE_SECONDS = 15.0
"""How long something is awaited before its member is asked."""


@dataclass
class _Awaited:
    """`since`: when it was first awaited, last heard of, or asked. `question`: the request, if it was."""

    since: float
    question: str = ""


class Hearing:
    """For one thread."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage, self._clock = storage, clock
        self._awaited: dict[str, _Awaited] = {}

    def is_silent(self, process: str) -> bool:
        """Called at every look, for as long as something of a member is awaited. True: it was asked where it
        stands, and has not answered in time."""
        now = self._clock.monotonic()
        awaited = self._awaited.setdefault(process, _Awaited(now))
        waited = now - awaited.since
        if not awaited.question:
            if waited >= PATIENCE_SECONDS:
                wanted = {"process": process}
                asked = ask_leader(self._storage, "status", wanted, self._clock, by="a member of its set")
                self._awaited[process] = _Awaited(now, asked.id)
            return False
        answered = self._is_answered(awaited.question, last_look=waited >= TAKEN_SECONDS)
        if not answered and waited < TAKEN_SECONDS:
            return False
        forget(self._storage, awaited.question)
        del self._awaited[process]
        return not answered

    def _is_answered(self, question: str, *, last_look: bool) -> bool:
        now_ms, why = self._clock.now_ms(), "it was not answered in time"
        try:
            asked = read_asked(self._storage, question)
            if last_look and not asked.state.ended:
                asked = take_back(self._storage, question, now_ms, why)
        except (CorruptionError, RestoreError):
            # Damaged, or swept because it is that old: nothing is known then.
            return True
        return asked.state is State.DONE
