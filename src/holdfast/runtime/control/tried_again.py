"""What became of a sink that is tried again, by what its run shows of it.

Never here: trying it (see epoch.outages), and what a sink is shown (see epoch.publisher).
"""

from __future__ import annotations

from typing import Any

from holdfast.clock import Clock
from holdfast.errors import RetryableError
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.progress import Monitor

LOOK_SECONDS = 0.05
_ENDED = ("stopped", "failed")


def await_shown(monitor: Monitor, wishes: Wishes, sink: str, before: dict[str, Any], clock: Clock) -> int:
    """Wait until the sink has shown what it had not `before`, which is its part of the progress; gives the
    epoch that it shows by then. RetryableError: it was tried, and it refuses again or its server is not
    there; or the run ends before that is known."""
    while True:
        now = monitor.progress
        one = now.sinks.get(sink, before)
        if one["refused"] not in (None, before["refused"]):
            raise RetryableError(f"it was tried, and refuses again: {one['refused']['reason']}")
        if one["unavailable"] not in (None, before["unavailable"]):
            raise RetryableError(
                f"it was tried, and its server is not there: {one['unavailable']['reason']}; it is tried "
                "again by itself"
            )
        if _is_shown(before, one):
            through: int = one["through"]
            return through
        if wishes.stopping.is_set() or now.phase in _ENDED:
            raise RetryableError("the run ends, and what came of it is not known; the next start tries it")
        clock.sleep(LOOK_SECONDS)


def _is_shown(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """That nothing stands against a sink says little: after a restart it is not asked yet."""
    if before["epochs"]:
        return bool(now["through"] > before["through"])
    return not (now["refused"] or now["unavailable"])
