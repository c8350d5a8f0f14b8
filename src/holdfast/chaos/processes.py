"""The job's processes, seen and hurt from outside: its lives, their parts, and the signals sent to them.

A life runs in a session of its own, and whatever it starts (its JVM, its Python workers, orphans) keeps the
session's number: that is how its parts are known.
Always true: only processes of sessions that a caller names are touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.spark_session import WORKER_DAEMON

DAEMONS = ("pyspark.daemon", WORKER_DAEMON)
"""Spark's Python workers are forked by a process of this name, and keep its command line."""
EXECUTOR = "CoarseGrainedExecutorBackend"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: optimising compilation would cost more than it gains."""


@dataclass(frozen=True)
class Process:
    """`session`: the pid of the process that began it; all that this one starts keep it."""

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


class Life:
    """One life of the job: a process, with its JVM and its Python workers, in a session of its own.

    Started when made. `close` ends whatever is left of it; everything else is done to it from outside.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        directory: Path | None = None,
    ) -> None:
        """`environment` comes on top of this process's own; `directory`: where it runs."""
        self.name, self._log = name, log
        self.told_to_stop = False
        self._closed = False
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def said(self) -> str:
        """All it wrote."""
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        """Its last error; Spark's daemons may go on talking after it."""
        lines = [line for line in self.said().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["nothing"])[-1]

    def kill(self) -> None:
        """From outside, at whatever it is doing. Its JVM and its workers find out by themselves."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end after its current epoch."""
        self.told_to_stop = True
        terminate(self.pid)

    def pause(self, *, whole: bool) -> None:
        """Stop the driver; `whole`: its JVM and its workers as well, as on a machine that is frozen."""
        for pid in self._pids(whole):
            pause(pid)

    def resume(self, *, whole: bool) -> None:
        for pid in self._pids(whole):
            resume(pid)

    def close(self) -> None:
        """End it and everything it started."""
        if not self._closed:
            end_session(self.pid)
            self._process.wait()
            self._closed = True

    def _pids(self, whole: bool) -> list[int]:
        return [process.pid for process in members(self.pid)] if whole else [self.pid]


def members(session: int) -> list[Process]:
    """All processes of a session, orphans among them."""
    return [process for process in _processes() if process.session == session and process.state not in "ZX"]


def give_way(session: int, niceness: int) -> None:
    """What the processes of a session get of the machine beside others: 0 as much as they, 19 the least. For
    nodes that share a machine and would not elsewhere. Nothing happens where that may not be chosen."""
    for process in members(session) if os.geteuid() == 0 else ():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PGRP, os.getpgid(process.pid), niceness)


def python_workers(session: int) -> list[Process]:
    """Spark's Python workers of a session, without the process that forks them."""
    daemons = [process for process in members(session) if any(name in process.command for name in DAEMONS)]
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
    """SIGTERM: a job ends after its current epoch."""
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
