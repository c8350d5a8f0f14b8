"""What processes have used up, by the counters that the system keeps for each of them.

Always true: of processes that have ended, what their parent has collected is counted with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.chaos.processes import members

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 15)
"""In /proc/PID/stat after the command: user and system time, of a process and of its children that ended."""


@dataclass(frozen=True)
class Used:
    """Seconds of processors, and bytes that were given to disks to write."""

    cpu_seconds: float = 0.0
    written_bytes: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(self.cpu_seconds + other.cpu_seconds, self.written_bytes + other.written_bytes)

    def __sub__(self, other: Used) -> Used:
        return Used(self.cpu_seconds - other.cpu_seconds, self.written_bytes - other.written_bytes)


def used_by(sessions: Iterable[int]) -> Used:
    """What all processes of these sessions have used so far."""
    total = Used()
    for session in sessions:
        for process in members(session):
            # One that ends at this moment is counted with its parent.
            with suppress(OSError):
                directory = Path(f"/proc/{process.pid}")
                total += read_counters((directory / "stat").read_text(), (directory / "io").read_text())
    return total


def read_counters(stat: str, io: str) -> Used:
    """What the texts of /proc/PID/stat and /proc/PID/io tell."""
    # The command, in parentheses, may hold anything: the fields begin after the last one.
    ticks = sum(map(int, stat.rpartition(")")[2].split()[_CPU_FIELDS]))
    counters = dict(line.split(": ") for line in io.splitlines())
    return Used(ticks / TICKS_PER_SECOND, int(counters["write_bytes"]))


def per_row(used: Used, rows: int) -> dict[str, float]:
    """What so many rows cost, as it is reported."""
    assert rows > 0, "no rows were counted; measure for longer"
    return {
        "cpu_ms_per_1000_rows": round(used.cpu_seconds * 1_000_000 / rows, 1),
        "bytes_per_row": round(used.written_bytes / rows, 1),
    }
