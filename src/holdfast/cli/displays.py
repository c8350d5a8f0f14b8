"""How a running job is shown: a panel on a terminal, a line now and then in a log, JSON lines for programs.

A display is told of changes from any thread and shows them at its own pace; the last one is always shown.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from holdfast.cli.format import fact_grid, facts, line
from holdfast.cli.terminal_guard import LogFile
from holdfast.clock import Clock
from holdfast.runtime.progress import Progress

JSON_SECONDS = 0.2
"""At most one progress object per this long."""
LINE_SECONDS = 5.0


class Pace:
    """Lets the newest progress through at most once per `seconds`, and at once where `urgent` says so.

    Not safe to use from several threads: `Paced` holds the lock.
    """

    def __init__(self, seconds: float, urgent: Callable[[Progress | None, Progress], bool]) -> None:
        self._seconds, self._urgent = seconds, urgent
        self._waiting: Progress | None = None
        self._shown: Progress | None = None
        self._shown_at: float | None = None

    def offer(self, progress: Progress) -> None:
        """Make this the newest; it takes the place of one that still waits."""
        self._waiting = progress

    def due(self, now: float) -> Progress | None:
        """What is to be shown now, if anything."""
        if self._waiting is None:
            return None
        early = self._shown_at is not None and now - self._shown_at < self._seconds
        if early and not self._urgent(self._shown, self._waiting):
            return None
        return self.take(now)

    def take(self, now: float) -> Progress | None:
        """What still waits, however early it is."""
        taken, self._waiting = self._waiting, None
        if taken is not None:
            self._shown, self._shown_at = taken, now
        return taken


class Paced:
    """A display that writes text at a pace; what waits is written by a thread when its time comes."""

    def __init__(self, pace: Pace, clock: Clock) -> None:
        self._pace, self._clock = pace, clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="holdfast-display", daemon=True)

    def progress(self, progress: Progress) -> None:
        with self._lock:
            self._pace.offer(progress)
            self._show(self._pace.due(self._clock.monotonic()))

    def message(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def __enter__(self) -> Self:
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._ticking.join()
        with self._lock:
            self._show(self._pace.take(self._clock.monotonic()))

    def _tick(self) -> None:
        while not self._closed.wait(JSON_SECONDS):
            with self._lock:
                self._show(self._pace.due(self._clock.monotonic()))

    def _show(self, progress: Progress | None) -> None:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        raise NotImplementedError


class JsonLines(Paced):
    """One JSON object per line: `{"event": "progress", ...}` or `{"event": "message", "text": ...}`."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        super().__init__(Pace(JSON_SECONDS, urgent=lambda shown, newest: False), clock)
        self._out = out

    def _show(self, progress: Progress | None) -> None:
        if progress is not None:
            self._write({"event": "progress", **asdict(progress)})

    def _say(self, text: str) -> None:
        self._write({"event": "message", "text": text})

    def _write(self, thing: dict[str, object]) -> None:
        self._out.write(json.dumps({**thing, "at_ms": self._clock.now_ms()}) + "\n")
        self._out.flush()


class PlainLines(Paced):
    """A line when the phase changes and every few seconds: for logs."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        super().__init__(Pace(LINE_SECONDS, urgent=_other_phase), clock)
        self._out = out

    def _show(self, progress: Progress | None) -> None:
        if progress is not None:
            self._say(line(progress, self._clock.now_ms()))

    def _say(self, text: str) -> None:
        self._out.write(f"holdfast: {text}\n")
        self._out.flush()


class LivePanel:
    """One panel that refreshes in place; messages scroll by above it. `log` takes what others, such as Spark,
    would write across it; it is named at the start, and again when the run ends with an error and something
    is in it.
    """

    def __init__(self, console: Console, clock: Clock, log: LogFile | None = None) -> None:
        self._console, self._clock, self._log = console, clock, log
        self._newest: Progress | None = None
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def progress(self, progress: Progress) -> None:
        self._newest = progress

    def message(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def render(self) -> Panel:
        """The panel as of now."""
        progress = self._newest
        if progress is None:
            return Panel("starting Spark", title="holdfast", expand=False)
        return Panel(
            fact_grid(facts(progress, self._clock.now_ms())),
            title=f"holdfast: {progress.job}",
            expand=False,
            border_style=_colour(progress.phase),
        )

    def __enter__(self) -> Self:
        if self._log is not None:
            self._log.__enter__()
        self._live.__enter__()
        if self._log is not None:
            self.message(f"what Spark logs is in {self._log.path}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.refresh()
        self._live.__exit__(kind, error, trace)
        if self._log is not None:
            self._log.__exit__(kind, error, trace)
            if error is not None and self._log.used:
                self.message(f"what Spark logged is in {self._log.path}")


Display = JsonLines | PlainLines | LivePanel


def _other_phase(shown: Progress | None, newest: Progress) -> bool:
    return shown is None or shown.phase != newest.phase


def _colour(phase: str) -> str:
    return {"running": "green", "failed": "red"}.get(phase, "yellow")
