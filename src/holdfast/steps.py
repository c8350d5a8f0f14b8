"""The named steps of the epoch protocol, and the one seam through which tests stop a process at them.

`reached(step)` does nothing unless the environment variable HOLDFAST_STOP_AT names the step:

    HOLDFAST_STOP_AT=commit-written:3:KILL:/tmp/token

sends SIGKILL (or STOP) to this very process the third time it gets there. The token file is created
exclusively first, so that of all processes that share the setting just one is hit, once.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum


class Step(StrEnum):
    """Where a process can be when it dies; docs/architecture.md draws them in order."""

    TERM_CLAIMED = "term-claimed"
    PLAN_WRITTEN = "plan-written"
    TASK_STATE_READY = "task-state-ready"
    TASK_COMPUTED = "task-computed"
    TASK_FILES_WRITTEN = "task-files-written"
    TASK_APPLIED = "task-applied"
    RESULTS_CHOSEN = "results-chosen"
    BUNDLE_WRITTEN = "bundle-written"
    MANIFEST_WRITTEN = "manifest-written"
    BEFORE_COMMIT = "before-commit"
    COMMIT_WRITTEN = "commit-written"
    BEFORE_PUBLISH = "before-publish"
    SINK_PUBLISHED = "sink-published"
    SNAPSHOT_WRITTEN = "snapshot-written"
    FLOOR_RAISED = "floor-raised"
    RETIRED = "retired"
    RECOVERY_READ = "recovery-read"


_counts: dict[Step, int] = {}


def reached(step: Step) -> None:
    """Mark that this process got to `step`."""
    setting = os.environ.get("HOLDFAST_STOP_AT")
    if setting is None:
        return
    name, count, action, token = setting.split(":", 3)
    if name != step:
        return
    _counts[step] = _counts.get(step, 0) + 1
    if _counts[step] >= int(count) and _first_to_take(token):
        # To this very thread: of several, another one would take a signal to the process, and SIGSTOP would
        # come late.
        signal.pthread_kill(threading.get_ident(), signal.Signals[f"SIG{action}"])


def _first_to_take(token: str) -> bool:
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
