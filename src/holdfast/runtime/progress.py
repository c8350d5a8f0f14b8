"""What a run is doing, as numbers: shown by the command line, the dashboard and `handle.status()`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.clock import Clock
from holdfast.runtime.latency import Latency

WINDOW_SECONDS = 10.0
"""Rates are taken over the last epochs of about this long."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One moment of a run. Times in milliseconds of the wall clock, durations in seconds."""

    job: str
    phase: str = "starting"
    """What the run is doing: then restoring, joining (a member of a set of replicas that is not warm yet),
    running, restarting after a failure, stopped or failed."""
    term: int = 0
    epoch: int = 0
    committed_epoch: int = 0
    commit: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    lag_rows: int | None = None
    waiting_files: int | None = None
    """Files that wait at the sources; None: no source tells, or one has not looked yet."""
    waiting_bytes: int | None = None
    state_bytes: int = 0
    epoch_seconds: float = 0.0
    delta_bytes: int = 0
    """State changes that the last epoch wrote to checkpoint storage."""
    timings_ms: dict[str, float] = field(default_factory=dict)
    """Where the last epoch's slowest tasks spent their time: open, compute, stage, delta, apply, verify."""
    combined: tuple[str, ...] = ()
    """Operators whose rows the last epoch combined before they went to their shards."""
    arrivals: dict[str, int] = field(default_factory=dict)
    """How the shards of the last epoch came by their state: there, moved or rebuilt -> how many shards."""
    executors: dict[str, str] = field(default_factory=dict)
    """Operator and shard, as `uid/shard`, -> where it ran in the last epoch."""
    committed_ms: int | None = None
    published_through: dict[str, int] = field(default_factory=dict)
    parallelism: int = 0
    restarts: int = 0
    """How often the job was tried again after a failure, over all starts on this checkpoint: a start is not a
    restart. Never goes back.
    """
    error: str | None = None
    own_keys: dict[str, dict[str, int]] = field(default_factory=dict)
    """Operators whose keys are saved on their own -> keys saved, failed, fetched, ... since this process
    started, and events `unsaved` now and `lost` (at most) so far.
    """
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sources with something to tell -> `set_aside` (rows in this run) and the newest `reason`; `undeclared`
    (column -> file that had it first); `rows_ms` (when rows last came, or the run began; None: not watched)
    and whether it is `silent`.
    """
    watermarks: dict[str, int | None] = field(default_factory=dict)
    """Operators that event time reaches -> their watermark in the newest epoch; None: not known yet."""
    late_rows: dict[str, int] = field(default_factory=dict)
    """Operators over windows -> rows that came after their windows were closed, in this run."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Lookups -> the copy of their table in use: its `rows`, `read_ms`, and the `error` with which a newer
    one could not be made (None: none was due, or it could)."""
    idle_sources: tuple[str, ...] = ()
    """Sources that have had no rows for so long that event time does not wait for them."""
    channels: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Channels that leave this part -> the `part` that reads them, the `epochs`, `rows` and `bytes` that wait
    after its newest commit, the `kept_bytes` that it has read and may go back to, and whether it is `full`.
    """
    sinks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sinks -> the epoch that each shows now (`through`), the `epochs` and `bytes` that are committed and
    wait for it, whether it is `full`, so that nothing is read, and `unavailable`: None, or of its server that
    is waited for `since_ms`, the last `reason`, the number of `tries`, and `next_try_ms`; `refused`: None, or
    the same without a next try, of a sink that refuses an epoch and waits for a person.
    `latency`: None, or how long rows took from their arrival until this sink showed them: `p50`, `p95` and
    `p99` of the last minute (None: it showed none), and the sum of `seconds` over all `rows` that this
    process has shown.
    """
    target_latency: float | None = None
    """How long rows may take by the settings of the run, in seconds; None: they say nothing of that."""
    divergences: int = 0
    """How often this member of a set of replicas has come to other results than were committed."""
    epochs_run: int = 0
    rows_run: int = 0
    """What this process ran, thrown away or not: only grows, whereas `epoch` and `rows` may go back."""


Listener = Callable[[Progress], None]
Message = Callable[[str], None]


class Monitor:
    """Holds the newest progress and tells listeners of every change. Safe to use from several threads."""

    def __init__(self, job: str, clock: Clock, listeners: list[Listener], messages: list[Message]) -> None:
        self._clock = clock
        self._listeners, self._messages = listeners, messages
        self._lock = threading.Lock()
        self._progress = Progress(job=job)
        self._recent: list[tuple[float, int]] = []
        self.latency = Latency(clock)
        """Outlives failures, as the progress does."""

    @property
    def progress(self) -> Progress:
        return self._progress

    def listen(self, listener: Listener) -> None:
        """Tell this listener too, from now on, and at once how things stand."""
        self._listeners.append(listener)
        listener(self.progress)

    def update(self, **changes: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **changes)
            now = self._progress
        for listener in self._listeners:
            listener(now)

    def epoch_done(self, epoch: int, rows: int, seconds: float, **more: Any) -> None:
        """An epoch's results were chosen; `rows` is its own number, `more` further fields of Progress."""
        now = self._clock.monotonic()
        self._recent = [(at, n) for at, n in self._recent if now - at <= WINDOW_SECONDS] + [(now, rows)]
        span = now - self._recent[0][0] + (seconds if len(self._recent) == 1 else 0.0)
        counted = sum(n for _, n in self._recent[1:]) if len(self._recent) > 1 else rows
        self.update(
            epoch=epoch,
            rows=self._progress.rows + rows,
            epochs_run=self._progress.epochs_run + 1,
            rows_run=self._progress.rows_run + rows,
            rows_per_second=counted / span if span > 0 else 0.0,
            epoch_seconds=seconds,
            **more,
        )

    def say(self, text: str) -> None:
        """Something a person should read: a recovery, a rewind, a fall-back."""
        for message in self._messages:
            message(text)
