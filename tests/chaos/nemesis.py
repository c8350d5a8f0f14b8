"""What is done to a process: which step it is stopped at, by which signal, and how anyone knows that it was.

Always true: a fault that was asked for is seen to have happened (its token was taken) or the test fails; a
run that was never hurt proves nothing.
"""

from __future__ import annotations

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


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, children first. Processes that end meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for found, parent, _ in _processes():
        children.setdefault(parent, []).append(found)
    below: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            below.append(child)
            waiting.append(child)
    return below


def parent_of(pid: int) -> int:
    return next((parent for found, parent, _ in _processes() if found == pid), 0)


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect."""
    return any(state == "T" for found, _, state in _processes() if found == pid)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie that waits to be collected."""
    return any(state not in "ZX" for found, _, state in _processes() if found == pid)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, state letter) of all processes."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                # The command, in parentheses, may hold anything: the fields begin after the last one.
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(fields[1]), fields[0]
