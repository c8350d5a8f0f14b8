"""The terminal, kept for the panel alone.

Spark's JVM, its Python workers and libraries write to the standard output and standard error that they
inherit. While a panel is drawn both lead to a file; the panel has a way to the terminal of its own.

Always true: only what was the terminal is led elsewhere, and only for as long as the `with` block runs; what
processes that were started meanwhile still write later goes to the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions

from holdfast.errors import DefinitionError

STANDARD = (1, 2)
"""Standard output and standard error, as children inherit them."""
UNKNOWN_SIZE = ConsoleDimensions(80, 25)


class OwnConsole(Console):
    """A console on a terminal of its own, as wide as that is now: rich would ask the standard streams."""

    def __init__(self, terminal: int) -> None:
        super().__init__(file=os.fdopen(terminal, "w", encoding="utf-8", errors="replace"))

    @property
    def size(self) -> ConsoleDimensions:
        try:
            columns, lines = os.get_terminal_size(self.file.fileno())
        except OSError:
            return super().size
        # Some terminals do not know: of consoles in containers and jobs both are 0.
        return ConsoleDimensions(columns or UNKNOWN_SIZE.width, lines or UNKNOWN_SIZE.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise AttributeError("a terminal has the size that it has")


class LogFile:
    """While its `with` block runs, what others write to the terminal goes to the file `path` instead. The
    file stays if the block ends with an error and something is in it."""

    def __init__(self) -> None:
        try:
            self._log, self.path = tempfile.mkstemp(prefix="holdfast-", suffix=".log")
        except OSError as cause:
            raise DefinitionError(
                f"no file for Spark's log can be made in {tempfile.gettempdir()} ({cause.strerror}); "
                "set TMPDIR to a directory that can be written to"
            ) from cause
        self._kept: dict[int, int] = {}
        self.used = False
        """Whether anything was written, as of the end of the block."""

    def __enter__(self) -> Self:
        _flush()
        self._kept = {number: os.dup(number) for number in STANDARD if os.isatty(number)}
        for number in self._kept:
            os.dup2(self._log, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _flush()
        for number, terminal in self._kept.items():
            os.dup2(terminal, number)
            os.close(terminal)
        self._kept = {}
        self.used = os.fstat(self._log).st_size > 0
        if error is None or not self.used:
            os.unlink(self.path)


def own_console() -> OwnConsole | None:
    """A console on the terminal that standard output is; None: it is none."""
    return OwnConsole(os.dup(1)) if os.isatty(1) else None


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
