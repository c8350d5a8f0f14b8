"""The demo's job as a process of its own, which can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.chaos.processes import QUICK_JVM


class Child:
    """One life of the job: `holdfast run clickstream.py --json`. What it says last is in `progress`."""

    def __init__(self, directory: Path, number: int, settings: dict[str, str]) -> None:
        self.log = directory / f"run-{number}.log"
        self.progress: dict[str, Any] = {}
        java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {QUICK_JVM}".strip()
        command = [sys.executable, "-m", "holdfast", "run", "clickstream.py", "--json"]
        command += ["--checkpoint", "ck", "--working-dir", "working", "--until", "exhausted"]
        command += ["--max-rows-per-epoch", "50000"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **settings, "JDK_JAVA_OPTIONS": java},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def phase(self) -> str:
        return str(self.progress.get("phase", "starting"))

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it as a power cut would: no handler, no last word. Nothing happens if it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """The last line of its standard error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a line cut short by the kill
            if said["event"] == "progress":
                self.progress = said
