"""What a test does to a process: which step it is stopped at, by which signal, and how anyone knows it was.

Always true: a fault that was asked for is seen to have happened (its token was taken) or the test fails; a
run that was never hurt proves nothing. Processes are looked at and hurt with the tools of `holdfast chaos`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.chaos.faults import DRIVER_STEPS, WORKER_STEPS
from holdfast.chaos.processes import Process, end_session, is_stopped, kill, members, pause, resume
from holdfast.steps import Step

__all__ = [
    "DRIVER_STEPS",
    "WORKER_STEPS",
    "Action",
    "Fault",
    "Process",
    "end_session",
    "is_stopped",
    "kill",
    "members",
    "pause",
    "resume",
]


class Action(StrEnum):
    KILL = "KILL"
    STOP = "STOP"


@dataclass(frozen=True)
class Fault:
    """Do `action` to the process that reaches `step` for the `count`-th time."""

    step: Step
    count: int = 1
    action: Action = Action.KILL

    def __str__(self) -> str:
        return f"{self.action} at {self.step}:{self.count}"

    def setting(self, token: Path) -> dict[str, str]:
        """The environment that brings it about. `token`: a file that appears with the fault."""
        return {"HOLDFAST_STOP_AT": f"{self.step}:{self.count}:{self.action}:{token}"}
