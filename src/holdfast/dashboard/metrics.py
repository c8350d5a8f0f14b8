"""A run as Prometheus metrics.

Always true: counters never go back, whatever a recovery does to epochs; all but the restarts, which storage
knows, count from the start of the process. A scrape shows one moment, and reads nothing but memory.
"""

from __future__ import annotations

import platform
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from holdfast.clock import Clock
from holdfast.runtime.progress import Progress

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PHASES = ("starting", "restoring", "joining", "running", "restarting", "stopped", "failed")
LEADING = {"joining", "running"}
"""The phases in which commits come from this run."""
SAVES = ("saved", "failed", "rejected", "superseded", "held_back")
FETCHES = ("fetched", "absent", "unanswered", "bypassed", "repeated")
EPOCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper ends of the histogram's buckets. An epoch aims at one second."""

QUANTILES = (0.5, 0.95, 0.99)


class Metrics(Collector):
    """Listens to a run's progress and gives it out as text. Safe to use from several threads."""

    def __init__(self, job: str, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self._lock = threading.Lock()
        self._newest = Progress(job=job)
        self._commits = 0
        self._restarts = 0
        self._failures = 0
        self._buckets = [0] * (len(EPOCH_SECONDS) + 1)
        self._seconds_sum = 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, progress: Progress) -> None:
        """Take in a change. One that another thread has overtaken brings no news and is passed over."""
        with self._lock:
            before = self._newest
            if progress.epochs_run < before.epochs_run or progress.commit < before.commit:
                return
            self._newest = progress
            epochs = progress.epochs_run - sum(self._buckets)
            if epochs > 0:
                self._buckets[bisect_left(EPOCH_SECONDS, progress.epoch_seconds)] += epochs
                self._seconds_sum += progress.epoch_seconds * epochs
            if {before.phase, progress.phase} <= LEADING and progress.commit > before.commit:
                self._commits += progress.commit - before.commit
            self._restarts = max(self._restarts, progress.restarts)
            if progress.error is not None and progress.error != before.error:
                self._failures += 1

    def text(self) -> str:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Metric]:
        """One moment of the run. Called by the registry."""
        with self._lock:
            yield from self._counters()
            yield self._epoch_seconds()
            yield from self._gauges(self._newest)
            if self._newest.sources:
                yield from self._sources(self._newest.sources)
            if self._newest.channels:
                yield from self._channels(self._newest.channels)
            if self._newest.sinks:
                yield from self._sinks(self._newest.sinks)
            if self._newest.own_keys:
                yield from self._uncoordinated(self._newest.own_keys)

    def _counters(self) -> Iterator[Metric]:
        newest = self._newest
        for name, text, value in (
            ("holdfast_epochs", "Epochs that this process ran, thrown away or not.", newest.epochs_run),
            ("holdfast_rows", "Rows in the epochs that this process ran.", newest.rows_run),
            ("holdfast_commits", "Commit records that this process added.", self._commits),
            ("holdfast_restarts", "Times the job was tried again after a failure.", self._restarts),
            ("holdfast_failures", "Times the run failed in this process.", self._failures),
        ):
            family = CounterMetricFamily(name, text, labels=["job"])
            family.add_metric([self._job], value)
            yield family

    def _uncoordinated(self, operators: dict[str, dict[str, int]]) -> Iterator[Metric]:
        """Of operators whose keys are saved on their own."""
        for name, text, outcomes in (
            ("holdfast_key_saves", "Keys that were to be saved, by what came of it.", SAVES),
            ("holdfast_key_fetches", "Keys whose saves were asked for, by what came of it.", FETCHES),
        ):
            family = CounterMetricFamily(name, text, labels=["job", "operator", "outcome"])
            for uid, numbers in sorted(operators.items()):
                for outcome in outcomes:
                    family.add_metric([self._job, uid, outcome], numbers.get(outcome, 0))
            yield family
        for name, text, what in (
            ("holdfast_keys_evicted", "Keys that left the working state.", "evicted"),
            ("holdfast_events_lost", "Events lost with working state, at most.", "lost"),
        ):
            counter = CounterMetricFamily(name, text, labels=["job", "operator"])
            for uid, numbers in sorted(operators.items()):
                counter.add_metric([self._job, uid], numbers.get(what, 0))
            yield counter
        unsaved = {uid: numbers.get("unsaved", 0) for uid, numbers in operators.items()}
        yield self._by_label("holdfast_events_unsaved", "Events that are in no save.", "operator", unsaved)

    def _sources(self, sources: dict[str, dict[str, Any]]) -> Iterator[Metric]:
        """Of sources with something to tell."""
        aside = CounterMetricFamily(
            "holdfast_source_rows_set_aside", "Rows that could not be parsed.", labels=["job", "source"]
        )
        for uid, one in sorted(sources.items()):
            aside.add_metric([self._job, uid], one["set_aside"])
        yield aside
        columns = {uid: len(one["undeclared"]) for uid, one in sources.items()}
        text = "Columns that were seen and are not declared."
        yield self._by_label("holdfast_source_undeclared_columns", text, "source", columns)
        watched = {uid: one for uid, one in sources.items() if one["rows_ms"] is not None}
        silent = {uid: int(one["silent"]) for uid, one in watched.items()}
        text = "1 while no rows have come for as long as stalled_after says."
        yield self._by_label("holdfast_source_silent", text, "source", silent)
        yield self._away("source", sources)

    def _sinks(self, sinks: dict[str, dict[str, Any]]) -> Iterator[Metric]:
        """Of sinks, and of what waits for them."""
        for name, text, what in (
            ("holdfast_sink_waiting_epochs", "Epochs that are committed and not shown.", "epochs"),
            ("holdfast_sink_waiting_bytes", "Bytes of their rows.", "bytes"),
            ("holdfast_sink_full", "1 while nothing is read because of this sink.", "full"),
        ):
            yield self._by_label(name, text, "sink", {uid: int(one[what]) for uid, one in sinks.items()})
        yield self._away("sink", sinks)
        text = "1 while the sink refuses an epoch and waits for a person."
        refused = {uid: int(one["refused"] is not None) for uid, one in sinks.items()}
        yield self._by_label("holdfast_sink_refused", text, "sink", refused)
        yield self._latency({uid: one["latency"] for uid, one in sinks.items() if one.get("latency")})

    def _latency(self, sinks: dict[str, dict[str, float | None]]) -> Metric:
        """Quantiles are those of the last minute, where a sink has shown rows in it."""
        name = "holdfast_latency_seconds"
        family = Metric(name, "From the arrival of a row until a sink shows it.", "summary")
        for uid, one in sorted(sinks.items()):
            labels = {"job": self._job, "sink": uid}
            for quantile in QUANTILES:
                value = one[f"p{round(quantile * 100)}"]
                if value is not None:
                    family.add_sample(name, {**labels, "quantile": str(quantile)}, value)
            family.add_sample(f"{name}_count", labels, one["rows"] or 0)
            family.add_sample(f"{name}_sum", labels, one["seconds"] or 0)
        return family

    def _away(self, kind: str, told: dict[str, dict[str, Any]]) -> Metric:
        """Since when the servers of sources or sinks are waited for."""
        now_ms = self._clock.now_ms()
        away = {uid: one["unavailable"] for uid, one in told.items() if one.get("unavailable")}
        seconds = {uid: (now_ms - away[uid]["since_ms"]) / 1_000 if uid in away else 0 for uid in told}
        text = f"Seconds since the server of the {kind} was last there; 0: it is."
        return self._by_label(f"holdfast_{kind}_unavailable_seconds", text, kind, seconds)

    def _channels(self, channels: dict[str, dict[str, Any]]) -> Iterator[Metric]:
        """Of the channels that leave this part."""
        for name, text, what in (
            ("holdfast_channel_waiting_rows", "Rows that the part after has not read.", "rows"),
            ("holdfast_channel_waiting_epochs", "Epochs that these rows are of.", "epochs"),
            ("holdfast_channel_waiting_bytes", "Bytes of these rows.", "bytes"),
            ("holdfast_channel_kept_bytes", "Bytes that were read and may be read again.", "kept_bytes"),
            ("holdfast_channel_full", "1 while this part waits for the part after.", "full"),
        ):
            values = {uid: int(one[what]) for uid, one in channels.items()}
            yield self._by_label(name, text, "channel", values)

    def _epoch_seconds(self) -> Metric:
        family = HistogramMetricFamily(
            "holdfast_epoch_duration_seconds", "From the start of an epoch to its results.", labels=["job"]
        )
        ends = [*map(str, EPOCH_SECONDS), "+Inf"]
        counts = [sum(self._buckets[: place + 1]) for place in range(len(ends))]
        family.add_metric(
            [self._job], buckets=list(zip(ends, counts, strict=True)), sum_value=self._seconds_sum
        )
        return family

    def _gauges(self, newest: Progress) -> Iterator[Metric]:
        age = None
        if newest.committed_ms is not None:
            age = max(0, self._clock.now_ms() - newest.committed_ms) / 1_000
        for name, text, value in (
            ("holdfast_commit_age_seconds", "Since the newest commit of this process.", age),
            ("holdfast_epoch", "The newest epoch that was run.", newest.epoch),
            ("holdfast_committed_epoch", "The newest epoch that is final.", newest.committed_epoch),
            ("holdfast_checkpoint_delta_bytes", "State changes in the last epoch.", newest.delta_bytes),
            ("holdfast_state_bytes", "Working state of all shards.", newest.state_bytes),
            ("holdfast_source_lag_rows", "Rows that wait at the sources.", newest.lag_rows),
            ("holdfast_source_waiting_files", "Files that wait at the sources.", newest.waiting_files),
            ("holdfast_source_waiting_bytes", "Bytes in these files.", newest.waiting_bytes),
            ("holdfast_term", "The term under which this process leads; 0: none yet.", newest.term),
        ):
            if value is not None:
                yield self._gauge(name, text, value)
        text = "The newest epoch that a sink shows."
        yield self._by_label("holdfast_published_epoch", text, "sink", _shown(newest))
        yield from self._event_time(newest)
        # A phase that is new here is shown too, rather than none at all.
        phases = {phase: int(phase == newest.phase) for phase in (*PHASES, newest.phase)}
        yield self._by_label("holdfast_phase", "1 for the phase that the run is in.", "phase", phases)
        info = InfoMetricFamily("holdfast", "What runs here.", labels=["job"])
        versions = {name: version(name) for name in ("holdfast", "pyspark")}
        info.add_metric(
            [self._job],
            {
                "version": versions["holdfast"],
                "pyspark": versions["pyspark"],
                "python": platform.python_version(),
            },
        )
        yield info

    def _event_time(self, newest: Progress) -> Iterator[Metric]:
        if not newest.watermarks:
            return
        known = {uid: at / 1_000 for uid, at in newest.watermarks.items() if at is not None}
        now = self._clock.now_ms() / 1_000
        for name, text, values in (
            ("holdfast_watermark_seconds", "How far event time is, in s since 1970.", known),
            (
                "holdfast_watermark_lag_seconds",
                "How far event time is behind the clock.",
                {uid: now - at for uid, at in known.items()},
            ),
        ):
            yield self._by_label(name, text, "operator", values)
        late = CounterMetricFamily(
            "holdfast_late_rows",
            "Rows that came after their windows were closed.",
            labels=["job", "operator"],
        )
        for uid, rows in sorted(newest.late_rows.items()):
            late.add_metric([self._job, uid], rows)
        yield late
        idle = dict.fromkeys(newest.idle_sources, 1)
        yield self._by_label("holdfast_source_idle", "Event time does not wait for it.", "source", idle)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["job"])
        family.add_metric([self._job], value)
        return family

    def _by_label(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["job", label])
        for key, value in sorted(values.items()):
            family.add_metric([self._job, key], value)
        return family


def _shown(newest: Progress) -> dict[str, int]:
    """Sink -> the newest epoch that it shows. The newest commit is older than what was shown since, and a run
    that waits for input adds none; before a sink was asked, all that is known of it is what the commit says.
    """
    now = {uid: one["through"] for uid, one in newest.sinks.items()}
    known = newest.published_through
    return {uid: max(known.get(uid, 0), now.get(uid, 0)) for uid in {**known, **now}}
