"""How a running job is shown: a panel on a terminal, a line now and then in a log, JSON lines for programs.

A display is told of changes from any thread and shows them at its own pace. Several jobs, or parts of one,
may tell the same display: each has a pace of its own, and the last word of each is always shown.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import asdict
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from holdfast.cli.format import fact_grid, facts, line, moment, several_jobs
from holdfast.cli.terminal_guard import LogFile
from holdfast.clock import Clock
from holdfast.runtime.progress import Progress

JSON_SECONDS = 0.2
"""At most one progress object of a job per this long."""
LINE_SECONDS = 5.0


class Pace:
    """Lets the newest progress of one job through at most once per `seconds`, and at once where `urgent` says
    so.

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
    """A display that writes text, each job's at the pace that `new_pace` gives; what waits is written by a
    thread when its time comes."""

    def __init__(self, new_pace: Callable[[], Pace], clock: Clock) -> None:
        self._new_pace, self._clock = new_pace, clock
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="holdfast-display", daemon=True)

    def progress(self, progress: Progress) -> None:
        with self._lock:
            if progress.job not in self._paces:
                self._paces[progress.job] = self._new_pace()
            self._paces[progress.job].offer(progress)
            self._show_due()

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
            for pace in self._paces.values():
                if (left := pace.take(self._clock.monotonic())) is not None:
                    self._show(left)

    def _tick(self) -> None:
        while not self._closed.wait(JSON_SECONDS):
            with self._lock:
                self._show_due()

    def _show_due(self) -> None:
        for pace in self._paces.values():
            if (due := pace.due(self._clock.monotonic())) is not None:
                self._show(due)

    def _show(self, progress: Progress) -> None:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        raise NotImplementedError


class JsonLines(Paced):
    """One JSON object per line: `{"event": "progress", ...}` or `{"event": "message", "text": ...}`."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        super().__init__(lambda: Pace(JSON_SECONDS, urgent=lambda shown, newest: False), clock)
        self._out = out

    def _show(self, progress: Progress) -> None:
        self._write({"event": "progress", **asdict(progress)})

    def _say(self, text: str) -> None:
        self._write({"event": "message", "text": text})

    def _write(self, thing: dict[str, object]) -> None:
        self._out.write(json.dumps({**thing, "at_ms": self._clock.now_ms()}) + "\n")
        self._out.flush()


class PlainLines(Paced):
    """A line of a job when its phase changes and every few seconds: for logs."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        super().__init__(lambda: Pace(LINE_SECONDS, urgent=_other_phase), clock)
        self._out = out

    def _show(self, progress: Progress) -> None:
        self._say(line(progress, self._clock.now_ms()))

    def _say(self, text: str) -> None:
        self._out.write(f"{moment(self._clock.now_ms())}Z holdfast: {text}\n")
        self._out.flush()


class LivePanel:
    """One panel that refreshes in place, with a row for each job where there are several; messages scroll by
    above it. `log` takes what others, such as Spark,
    would write across it; it is named at the start, and again when the run ends with an error and something
    is in it.
    """

    def __init__(self, console: Console, clock: Clock, log: LogFile | None = None) -> None:
        self._console, self._clock, self._log = console, clock, log
        self._newest: dict[str, Progress] = {}
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def progress(self, progress: Progress) -> None:
        # A new dict: the thread that draws may be walking through this one.
        self._newest = {**self._newest, progress.job: progress}

    def message(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def render(self) -> Panel:
        """The panel as of now."""
        told, now_ms = [*self._newest.values()], self._clock.now_ms()
        if not told:
            return Panel("starting Spark", title="holdfast", expand=False)
        colour = _colour({progress.phase for progress in told})
        if len(told) > 1:
            title, drawn = several_jobs(told, now_ms)
            return Panel(drawn, title=f"holdfast: {title}" if title else "holdfast", border_style=colour)
        title, grid = f"holdfast: {told[0].job}", fact_grid(facts(told[0], now_ms))
        return Panel(grid, title=title, expand=False, border_style=colour)

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


def _colour(phases: Collection[str]) -> str:
    if "failed" in phases:
        return "red"
    return "green" if {*phases} == {"running"} else "yellow"
