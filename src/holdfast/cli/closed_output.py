"""Standard output whose reader has gone, as with `| head -1`: the command ends there, without a word."""

from __future__ import annotations

import errno
import os
import select
import sys

from rich.console import Console

CLOSED_OUTPUT = 141
"""The exit code then: what a shell says of a program that SIGPIPE ended."""


class OutputConsole(Console):
    """A console on standard output. BrokenPipeError: its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def reader_has_gone() -> bool:
    """Whether standard output leads to a reader that has gone; a broken pipe may be another one."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    found = select.poll()
    found.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in found.poll(0))


def write_no_more() -> None:
    """What is still written to standard output, at the latest when Python ends, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
