"""What is done to a process: which step it is stopped at, by which signal, and how anyone knows that it was.

Always true: a fault that was asked for is seen to have happened (its token was taken) or the test fails; a
run that was never hurt proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.steps import Step

WORKER_STEPS = (
    Step.TASK_STATE_READY,
    Step.TASK_COMPUTED,
    Step.TASK_FILES_WRITTEN,
    Step.TASK_APPLIED,
    Step.SNAPSHOT_WRITTEN,
)
"""Reached in Python workers; all others in the driver."""

DRIVER_STEPS = tuple(step for step in Step if step not in WORKER_STEPS)


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


@dataclass(frozen=True)
class Process:
    """`session`: the pid of the process that a test started; whatever comes of that one keeps it."""

    pid: int
    parent: int
    session: int
    state: str
    """One letter, as the system has it: T stopped, Z ended and not collected."""

    @property
    def command(self) -> str:
        try:
            return (
                Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            return ""

    @property
    def directory(self) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/cwd")
        except OSError:
            return ""


def members(session: int) -> list[Process]:
    """All processes of a session, orphans among them."""
    return [process for process in _processes() if process.session == session and process.state not in "ZX"]


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect."""
    process = _process(pid)
    return process is not None and process.state == "T"


def end_session(session: int) -> None:
    """Kill everything that came of the process that began this session."""
    while alive := members(session):
        for process in alive:
            kill(process.pid)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pause(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _processes() -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (process := _process(int(entry.name))):
            yield process


def _process(pid: int) -> Process | None:
    try:
        # The command, in parentheses, may hold anything: the fields begin after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0])
