"""The Python environments of the peers: each one's own, made on demand, kept among Holdfast's cached files.

Always true: nothing of a peer is installed where Holdfast is; an environment that was not finished is made
again from nothing.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.jvm_archive import archive_directory
from holdfast.storage.checksums import checksum

HERE = Path(__file__).parent
INSTALL_SECONDS = 900.0
DONE = "installed"
UNREACHABLE = "after connection broken by"
UNTELLING = ("Python process exits with code", "An error occurred while calling")
"""What is only said of the failure of another process."""


class LeftOut(Exception):
    """A peer that has no figures on this machine; says why, in one line."""


@dataclass(frozen=True)
class Environment:
    """What a peer needs: the packages of its requirements file, `package` is the peer itself."""

    name: str
    package: str

    @property
    def requirements(self) -> Path:
        return HERE / f"{self.name}-requirements.txt"

    @property
    def version(self) -> str:
        lines = self.requirements.read_text().splitlines()
        return dict(line.split("==") for line in lines if "==" in line)[self.package]

    def python(self) -> Path:
        """Its interpreter; the first time this installs the packages. LeftOut: that is not possible."""
        wanted = f"{sys.version} {self.requirements.read_text()}"
        place = archive_directory().with_name("peers") / f"{self.name}-{checksum(wanted.encode())}"
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.with_name(f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / DONE).exists():
                for former in place.parent.glob(f"{self.name}-*"):
                    shutil.rmtree(former)
                self._make(place)
                (place / DONE).touch()
        return place / "bin/python"

    def _make(self, place: Path) -> None:
        self._run([sys.executable, "-m", "venv", str(place)])
        pip = [str(place / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        self._run([*pip, "--retries", "2", "install", "--requirement", str(self.requirements)])

    def _run(self, command: list[str]) -> None:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise LeftOut(f"it could not be installed in {INSTALL_SECONDS:.0f} s") from None
        said = done.stdout + done.stderr
        if done.returncode and UNREACHABLE in said:
            raise LeftOut("it cannot be installed: there is no way to the package index from here")
        if done.returncode:
            raise LeftOut(f"it cannot be installed here: {last_error(said)}")


def last_error(said: str) -> str:
    """The line that tells most of what a command said before it failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if not any(each in line for each in UNTELLING)]
    errors = [line for line in telling if "ERROR" in line or "Error" in line or "Exception" in line]
    return (errors or lines or ["it said nothing"])[-1]
