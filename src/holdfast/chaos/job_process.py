"""One life of the job: a process, with its JVM and its Python workers, in a session of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.chaos import processes


class Life:
    """Started when made. `close` ends whatever is left of it; everything else is done to it from outside."""

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
        """Ask it to end after the epoch in hand."""
        self.told_to_stop = True
        processes.terminate(self.pid)

    def pause(self, *, whole: bool) -> None:
        """Stop the driver; `whole`: its JVM and its workers as well, as on a machine that is frozen."""
        for pid in self._pids(whole):
            processes.pause(pid)

    def resume(self, *, whole: bool) -> None:
        for pid in self._pids(whole):
            processes.resume(pid)

    def close(self) -> None:
        """End it and everything it started."""
        if not self._closed:
            processes.end_session(self.pid)
            self._process.wait()
            self._closed = True

    def _pids(self, whole: bool) -> list[int]:
        return [process.pid for process in processes.members(self.pid)] if whole else [self.pid]
