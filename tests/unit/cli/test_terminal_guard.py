"""The panel on a real (pseudo) terminal, while others write to the standard streams that they inherited."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

COLUMNS = 61

APP = """
import os, subprocess, sys
from holdfast.cli.run import _display
from holdfast.runtime.progress import Progress

try:
    with _display(as_json=False) as display:
        display.progress(Progress(job="sums", phase="running", epoch=7))
        for _ in range({times}):
            # As a JVM does: by the descriptors, past everything that Python knows of.
            subprocess.run("echo NOISE-OUT; echo NOISE-ERR >&2", shell=True, check=True)
            os.write(2, b"NOISE-OWN\\n")
            display._live.refresh()
        print("said by the app itself")
        display.message("a message")
        {ending}
except ValueError:
    print("AFTER", file=sys.stderr)
print("at the end")
"""


def seen(
    tmp_path: Path,
    ending: str,
    *,
    times: int = 50,
    stderr: Path | None = None,
    size: tuple[int, int] = (24, COLUMNS),
) -> str:
    """What a person sees of it, escape sequences left out; `stderr` goes to a file if one is given."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    (tmp_path / "app.py").write_text(APP.format(ending=ending, times=times))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm"}
    errors = follower if stderr is None else os.open(stderr, os.O_CREAT | os.O_WRONLY)
    # Standard input is no terminal, as under some supervisors: the width must come from elsewhere.
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "app.py")],
        stdin=subprocess.DEVNULL, stdout=follower, stderr=errors, env=environment,
    )  # fmt: skip
    os.close(follower)
    out = b""
    try:
        while data := os.read(leader, 65_536):
            out += data
    except OSError:
        pass  # how a terminal says that everybody has left
    assert process.wait() == 0, out.decode()
    os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.decode()).replace("\r", "\n")


def log_of(tmp_path: Path) -> str:
    (log,) = tmp_path.glob("holdfast-*.log")
    return log.read_text()


def test_nothing_that_others_write_reaches_the_terminal(tmp_path: Path) -> None:
    screen = seen(tmp_path, ending="pass")
    assert "NOISE" not in screen
    assert list(tmp_path.glob("holdfast-*.log")) == [], "a run that ended well leaves no log"
    for text in ("said by the app itself", "a message", "holdfast: sums", "at the end"):
        assert text in screen
    assert screen.replace("\n", "").count(f"what Spark logs is in {tmp_path}/holdfast-") == 1
    assert max(len(line) for line in screen.splitlines()) <= COLUMNS


def test_an_error_names_the_log_and_the_streams_are_there_again(tmp_path: Path) -> None:
    screen = seen(tmp_path, ending="raise ValueError")
    assert f"what Spark logged is in {tmp_path}/holdfast-" in screen.replace("\n", "")
    assert "AFTER" in screen
    log = log_of(tmp_path)
    assert "AFTER" not in log
    assert [log.count(f"NOISE-{who}") for who in ("OUT", "ERR", "OWN")] == [50, 50, 50]


def test_a_terminal_that_does_not_know_its_size_shows_the_panel(tmp_path: Path) -> None:
    """As of a console of a container, or of a command that a supervisor gives a terminal."""
    screen = seen(tmp_path, ending="pass", times=1, size=(0, 0))
    for text in ("holdfast: sums", "running", "a message"):
        assert text in screen


def test_a_mistake_before_anything_was_logged_leaves_no_log(tmp_path: Path) -> None:
    assert "what Spark logged" not in seen(tmp_path, ending="raise ValueError", times=0)
    assert list(tmp_path.glob("holdfast-*.log")) == []


def test_a_stream_that_leads_elsewhere_stays_there(tmp_path: Path) -> None:
    screen = seen(tmp_path, ending="raise ValueError", stderr=tmp_path / "errors")
    assert "NOISE" not in screen
    assert (tmp_path / "errors").read_text().count("NOISE-ERR") == 50
    assert "NOISE-ERR" not in log_of(tmp_path)
