"""Processes seen and hurt from outside: who belongs to a life of the job, and the signals sent to them.

A life runs in a session of its own, and whatever comes of it (its JVM, its Python workers, orphans) keeps the
session's number: that is how its parts are known.
Always true: only processes of sessions that somebody names are touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DAEMON = "pyspark.daemon"
"""Spark's Python workers are forked by a process of this name, and keep its command line."""
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Process:
    """`session`: the pid of the process that began it; whatever comes of that one keeps it."""

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


def python_workers(session: int) -> list[Process]:
    """Spark's Python workers of a session, without the process that forks them."""
    daemons = [process for process in members(session) if DAEMON in process.command]
    pids = {process.pid for process in daemons}
    return [process for process in daemons if process.parent in pids]


def executors(session: int) -> list[Process]:
    """The JVMs of a cluster's executors that came of a session."""
    return [process for process in members(session) if EXECUTOR in process.command]


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
    _signal(pid, signal.SIGKILL)


def pause(pid: int) -> None:
    _signal(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    _signal(pid, signal.SIGCONT)


def terminate(pid: int) -> None:
    """SIGTERM: a job ends after the epoch in hand."""
    _signal(pid, signal.SIGTERM)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


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
