"""A class-data archive: Spark's classes as they are once a JVM has loaded them, kept in a file.

A JVM that maps one needs about half the work until Spark is up and its first epoch done. An archive fits one
Java and one set of jars; its name says which, and what its bytes come to. It is made once, beside the first
run that lasts long enough, by a process of its own that yields to everything else; or at any time by
`holdfast jvm-archive`. HOLDFAST_JVM_ARCHIVE=off: none is made or used.

Always true: no JVM is given an archive with other bytes than were recorded (a damaged one would end it). None
is ever needed: without one, or with one that the JVM does not accept, Spark starts as it always did.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import MachineError
from holdfast.storage.checksums import checksum

SWITCH = "HOLDFAST_JVM_ARCHIVE"
JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Where Spark's start script takes options for the JVM from, beside those of its settings."""
MAKE_AFTER_SECONDS = 60.0
"""How long a run lasts before an archive is made beside it: short ones are over sooner."""
LONGEST_SECONDS = 900.0
"""After that a recording is given up: others wait for it."""
KEPT = 4
"""How many archives there may be: of several Sparks on one machine."""
SUFFIX = ".jsa"


def prepare_jvm() -> None:
    """Let the JVM that this process is about to start map the archive; where there is none, have it made
    beside the run."""
    if not _wanted(os.environ):
        return
    found = find_archive()
    if found is None:
        later = threading.Timer(MAKE_AFTER_SECONDS, _make_beside)
        later.daemon = True
        later.start()
    elif SUFFIX not in os.environ.get(JVM_OPTIONS, ""):
        os.environ[JVM_OPTIONS] = f"{os.environ.get(JVM_OPTIONS, '')} {options_for(found)}".strip()


def _wanted(environment: Mapping[str, str]) -> bool:
    """Whether this process starts a JVM: spark-submit has started one before it, and a remote Spark has its
    own."""
    started = "PYSPARK_GATEWAY_PORT" in environment or environment.get("SPARK_REMOTE")
    return environment.get(SWITCH, "").lower() != "off" and not started


def options_for(archive: Path) -> str:
    """What a JVM is told. It compares the archive with itself and its jars; if they differ, it says nothing
    and does without."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off'


def find_archive() -> Path | None:
    """The archive that fits this machine's Java and Spark; None: there is none, or only a damaged one."""
    for path in sorted(archive_directory().glob(f"{_identity()}-*{SUFFIX}")):
        with contextlib.suppress(OSError):
            if path.stem.endswith(f"-{checksum(path.read_bytes())}"):
                return path
    return None


def archive_directory() -> Path:
    """Where archives are kept, whether or not there are any."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "jvm"


def _identity() -> str:
    """Which Java and which jars: by names, sizes and times, so that it takes no time to tell."""
    java = shutil.which("java", path=_java_path())
    known = [Path(java).resolve()] if java else []
    known += sorted((spark_home() / "jars").glob("*.jar"))
    # In whole seconds, as a JVM compares them: the layers of an image keep no more.
    told = "\n".join(f"{path} {path.stat().st_size} {int(path.stat().st_mtime)}" for path in known)
    return checksum(told.encode())


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin") if home else None


def spark_home() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    import pyspark

    return Path(pyspark.__file__).parent


def _make_beside() -> None:
    """Start a process that makes the archive, and do not wait for it: it outlives this one if it has to."""
    subprocess.Popen(
        [sys.executable, "-m", "holdfast", "jvm-archive"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def make() -> Path:
    """Make the archive, unless it is there; about half a minute of work. Waits for a process that is making
    one. MachineError: it cannot be made here.
    """
    directory = archive_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Of a process that was killed while it made one.
        for left in directory.glob("making-*"):
            shutil.rmtree(left, ignore_errors=True)
        return find_archive() or _made(directory)


def _made(directory: Path) -> Path:
    identity = _identity()
    with tempfile.TemporaryDirectory(dir=directory, prefix="making-") as place:
        file = Path(place) / f"classes{SUFFIX}"
        try:
            said = _recorded(file, place)
        except subprocess.TimeoutExpired:
            said = f"it was not done after {LONGEST_SECONDS:.0f} s"
        if said or not file.exists():
            raise MachineError(f"no class-data archive could be made here: {said[-500:] or 'Java made none'}")
        others = sorted(directory.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for old in others[: max(0, len(others) - KEPT + 1)]:
            old.unlink()
        return file.rename(directory / f"{identity}-{checksum(file.read_bytes())}{SUFFIX}")


def _recorded(file: Path, place: str) -> str:
    """Run a small job in a JVM that keeps its classes in a file when it ends; what was said if it failed.
    Returns when that JVM has ended, too: it holds on to the output of the process that started it."""
    environment = {
        **os.environ, SWITCH: "off", "TMPDIR": place, JVM_OPTIONS: f'"-XX:ArchiveClassesAtExit={file}"',
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.runtime.jvm_archive_job"],
        cwd=place, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=LONGEST_SECONDS,
    )  # fmt: skip
    return done.stdout.strip() if done.returncode else ""
