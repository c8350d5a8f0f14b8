"""Metrics as a Prometheus server reads them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from holdfast.dashboard.metrics import EPOCH_SECONDS, PHASES, Metrics
from holdfast.runtime.progress import Monitor, Progress
from holdfast.testing.clocks import ManualClock

NOW = 1_760_000_000_000
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


class Watched:
    """A monitored run and its metrics."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.monitor = Monitor("orders", self.clock, [], [])
        self.metrics = Metrics("orders", self.clock)
        self.monitor.listen(self.metrics.observe)

    def samples(self) -> dict[tuple[str, str], float]:
        """Sample name and its label beside `job` -> value."""
        found = {}
        for family in text_string_to_metric_families(self.metrics.text()):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("job") == "orders", sample
                key = (sample.name, ",".join(labels.values()) if sample.name != "holdfast_info" else "")
                assert key not in found, f"twice: {key}"
                found[key] = sample.value
        return found

    def value(self, name: str, label: str = "") -> float:
        return self.samples()[name, label]


def test_counters_count_what_this_process_did() -> None:
    watched = Watched()
    watched.monitor.update(phase="running", epoch=40, commit=12, rows=1_000)
    for epoch in (41, 42):
        watched.monitor.epoch_done(epoch, rows=10, seconds=0.2)
        watched.monitor.update(commit=epoch - 28)
    assert watched.value("holdfast_epochs_total") == 2
    assert watched.value("holdfast_rows_total") == 20
    assert watched.value("holdfast_commits_total") == 2
    assert watched.value("holdfast_epoch") == 42


def test_the_commit_with_which_a_member_comes_to_run_counts() -> None:
    watched = Watched()
    watched.monitor.update(phase="restoring")
    watched.monitor.update(phase="joining", commit=12)
    watched.monitor.update(commit=13)
    watched.monitor.update(phase="running")
    watched.monitor.update(commit=14)
    assert watched.value("holdfast_commits_total") == 2
    assert watched.value("holdfast_phase", "joining") == 0


def test_counters_never_go_back_whatever_a_recovery_does() -> None:
    watched = Watched()
    watched.monitor.update(phase="running", epoch=40, commit=12, rows=1_000, restarts=3)
    watched.monitor.epoch_done(41, rows=10, seconds=0.2)
    before = watched.samples()
    watched.monitor.update(phase="restarting", error="the disk is full")
    watched.monitor.update(phase="running", epoch=35, committed_epoch=35, commit=13, rows=900, error=None)
    watched.monitor.epoch_done(36, rows=10, seconds=0.2)
    after = watched.samples()
    counted = [key for key in before if re.search("_(total|count|sum|bucket)$", key[0])]
    assert len(counted) > 8
    assert not [key for key in counted if after[key] < before[key]]
    assert after["holdfast_rows_total", ""] == 20
    assert after["holdfast_epoch", ""] == 36


def test_progress_that_another_thread_overtook_is_passed_over() -> None:
    watched = Watched()
    newer = Progress(job="orders", phase="running", epochs_run=2, rows_run=20, commit=5)
    older = Progress(job="orders", phase="running", epochs_run=1, rows_run=10, commit=5)
    watched.metrics.observe(newer)
    watched.metrics.observe(older)
    assert watched.value("holdfast_epochs_total") == 2
    assert watched.value("holdfast_rows_total") == 20
    assert watched.value("holdfast_epoch_duration_seconds_count") == 2


def test_epochs_fall_into_buckets_by_their_duration() -> None:
    watched = Watched()
    for seconds in (0.05, 0.06, 7.0, 1_000.0):
        watched.monitor.epoch_done(1, rows=1, seconds=seconds)
    name = "holdfast_epoch_duration_seconds_bucket"
    counts = [watched.value(name, end) for end in [*map(str, EPOCH_SECONDS), "+Inf"]]
    assert counts == [1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    assert watched.value("holdfast_epoch_duration_seconds_count") == 4
    assert watched.value("holdfast_epoch_duration_seconds_sum") == 1_007.11


def test_each_failure_is_counted_once() -> None:
    watched = Watched()
    for _ in range(2):
        watched.monitor.update(phase="restarting", error="the disk is full")
        watched.monitor.update(phase="running", error=None)
    watched.monitor.update(phase="restarting", error="the disk is full")
    watched.monitor.update(phase="failed", error="the disk is full")
    assert watched.value("holdfast_failures_total") == 3


def test_restarts_are_those_that_storage_knows_of() -> None:
    watched = Watched()
    watched.monitor.update(restarts=4, term=5)
    assert watched.value("holdfast_restarts_total") == 4
    assert watched.value("holdfast_term") == 5


def test_the_age_of_the_newest_commit_grows() -> None:
    watched = Watched()
    assert ("holdfast_commit_age_seconds", "") not in watched.samples()
    watched.monitor.update(committed_ms=NOW)
    watched.clock.sleep(2.5)
    assert watched.value("holdfast_commit_age_seconds") == 2.5


def test_an_unknown_lag_is_left_out() -> None:
    watched = Watched()
    assert ("holdfast_source_lag_rows", "") not in watched.samples()
    assert ("holdfast_source_waiting_files", "") not in watched.samples()
    watched.monitor.update(lag_rows=0, waiting_files=3, waiting_bytes=70)
    assert watched.value("holdfast_source_lag_rows") == 0
    assert watched.value("holdfast_source_waiting_files") == 3
    assert watched.value("holdfast_source_waiting_bytes") == 70


def test_one_phase_is_on_even_one_that_is_new_here() -> None:
    watched = Watched()
    for phase in (*PHASES, "dancing"):
        watched.monitor.update(phase=phase)
        on = [
            label for (name, label), value in watched.samples().items() if name == "holdfast_phase" and value
        ]
        assert on == [phase]


def test_each_sink_has_its_published_epoch() -> None:
    watched = Watched()
    watched.monitor.update(published_through={"files": 7, 'a "b"\n': 6})
    assert watched.value("holdfast_published_epoch", "files") == 7
    assert watched.value("holdfast_published_epoch", 'a "b"\n') == 6


def test_a_sink_shows_what_it_shows_now_and_not_what_the_newest_commit_says() -> None:
    """A run that waits for input commits nothing: by the commits it would be one epoch behind for ever."""
    watched = Watched()
    one = {"epochs": 0, "bytes": 0, "full": False, "unavailable": None, "refused": None, "latency": None}
    # Of a sink that is not asked yet, as at a start, the commit knows more.
    sinks = {"files": {**one, "through": 8}, "asked later": {**one, "through": 0}}
    watched.monitor.update(published_through={"files": 7, "asked later": 7, "gone": 3}, sinks=sinks)
    for sink, epoch in {"files": 8, "asked later": 7, "gone": 3}.items():
        assert watched.value("holdfast_published_epoch", sink) == epoch


def test_every_metric_that_the_page_would_alert_on_is_one_of_the_table() -> None:
    page = PAGE.read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    table = {name for row in rows for name in re.findall(r"`(holdfast_\w+)`", row)}
    (alerts,) = re.findall(r"Worth an alert:\n\n```\n(.*?)```", page, re.DOTALL)
    named = set(re.findall(r"\bholdfast_\w+", alerts))
    assert {"holdfast_sink_refused", "holdfast_sink_full", "holdfast_sink_unavailable_seconds"} <= named
    assert named <= table


def test_every_metric_is_named_and_documented_as_prometheus_wants_it() -> None:
    watched = Watched()
    watched.monitor.update(lag_rows=1, committed_ms=NOW, published_through={"files": 1})
    families = list(text_string_to_metric_families(watched.metrics.text()))
    page = PAGE.read_text()
    for family in families:
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram"}
        exposed = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert exposed == {f"{family.name}_total"}
        told = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{told}`" in page, f"docs/metrics.md lacks {told}"
    assert len(families) >= 15


def test_keys_that_are_saved_on_their_own_are_counted_by_operator_and_outcome() -> None:
    watched = Watched()
    counted = {"saved": 5, "failed": 1, "fetched": 2, "evicted": 3, "unsaved": 7, "lost": 4}
    watched.monitor.update(own_keys={"carts": counted})
    assert watched.value("holdfast_key_saves_total", "carts,saved") == 5
    assert watched.value("holdfast_key_saves_total", "carts,held_back") == 0
    assert watched.value("holdfast_key_fetches_total", "carts,fetched") == 2
    assert watched.value("holdfast_keys_evicted_total", "carts") == 3
    assert watched.value("holdfast_events_unsaved", "carts") == 7
    assert watched.value("holdfast_events_lost_total", "carts") == 4


def test_sources_tell_what_they_set_aside_what_drifts_and_who_is_silent() -> None:
    run = Watched()
    quiet = {"set_aside": 0, "reason": None, "undeclared": {}, "rows_ms": NOW, "silent": True}
    dirty = {"set_aside": 7, "reason": "r", "undeclared": {"x": "1.json"}, "rows_ms": None, "silent": False}
    run.monitor.update(sources={"quiet": quiet, "dirty": dirty})
    samples = run.samples()
    assert samples["holdfast_source_rows_set_aside_total", "dirty"] == 7
    assert samples["holdfast_source_undeclared_columns", "dirty"] == 1
    assert samples["holdfast_source_silent", "quiet"] == 1
    assert ("holdfast_source_silent", "dirty") not in samples


def test_channels_tell_what_waits_in_them() -> None:
    watched = Watched()
    assert not [name for name, _ in watched.samples() if "channel" in name]
    waits = {"part": "scoring", "epochs": 2, "rows": 20, "bytes": 1_500, "kept_bytes": 700, "full": True}
    watched.monitor.update(channels={"clicks-in": waits})
    told = {name: value for (name, label), value in watched.samples().items() if label == "clicks-in"}
    assert told == {
        "holdfast_channel_waiting_rows": 20, "holdfast_channel_waiting_epochs": 2,
        "holdfast_channel_waiting_bytes": 1_500, "holdfast_channel_kept_bytes": 700,
        "holdfast_channel_full": 1,
    }  # fmt: skip
    assert all(f"`{name}`" in PAGE.read_text() for name in told)


def test_event_time_is_shown_by_operator_with_how_far_it_is_behind_and_idle_sources() -> None:
    watched = Watched()
    assert not [name for name, _ in watched.samples() if "watermark" in name or "idle" in name]
    watched.monitor.update(watermarks={"a": NOW - 5_000, "b": None}, idle_sources=("slow",))
    assert watched.value("holdfast_watermark_seconds", "a") == (NOW - 5_000) / 1_000
    assert watched.value("holdfast_watermark_lag_seconds", "a") == 5
    assert watched.value("holdfast_source_idle", "slow") == 1
    assert ("holdfast_watermark_seconds", "b") not in watched.samples()
    page = PAGE.read_text()
    for name in ("holdfast_watermark_seconds", "holdfast_watermark_lag_seconds", "holdfast_source_idle"):
        assert f"`{name}`" in page


def test_sinks_tell_what_waits_for_them_and_for_how_long_their_server_is_away() -> None:
    clock = ManualClock(10_000)
    metrics = Metrics("job", clock)
    away = {"since_ms": 4_000, "tries": 3, "reason": "no", "next_try_ms": 11_000}
    dead = {"through": 2, "epochs": 5, "bytes": 100, "full": True, "unavailable": away, "refused": None}
    alive = {
        "through": 7,
        "epochs": 0,
        "bytes": 0,
        "full": False,
        "unavailable": None,
        "refused": {"since_ms": 0},
    }
    metrics.observe(Progress(job="job", sinks={"dead": dead, "alive": alive}))
    text = metrics.text()
    for line in (
        'holdfast_sink_waiting_epochs{job="job",sink="dead"} 5.0',
        'holdfast_sink_waiting_bytes{job="job",sink="dead"} 100.0',
        'holdfast_sink_full{job="job",sink="dead"} 1.0',
        'holdfast_sink_full{job="job",sink="alive"} 0.0',
        'holdfast_sink_unavailable_seconds{job="job",sink="dead"} 6.0',
        'holdfast_sink_unavailable_seconds{job="job",sink="alive"} 0.0',
        'holdfast_sink_refused{job="job",sink="dead"} 0.0',
        'holdfast_sink_refused{job="job",sink="alive"} 1.0',
    ):
        assert line in text.splitlines()


def test_latency_is_a_summary_by_sink_with_quantiles_where_rows_were_shown_lately() -> None:
    metrics = Metrics("job", ManualClock(10_000))
    told = {"through": 2, "epochs": 0, "bytes": 0, "full": False, "unavailable": None, "refused": None}
    busy = {"p50": 0.4, "p95": 0.9, "p99": 1.1, "rows": 70, "seconds": 30.5}
    quiet = {"p50": None, "p95": None, "p99": None, "rows": 7, "seconds": 3.5}
    sinks = {"busy": {**told, "latency": busy}, "quiet": {**told, "latency": quiet}}
    metrics.observe(Progress(job="job", sinks={**sinks, "silent": {**told, "latency": None}}))
    found = [line for line in metrics.text().splitlines() if "holdfast_latency" in line]
    assert found == [
        "# HELP holdfast_latency_seconds From the arrival of a row until a sink shows it.",
        "# TYPE holdfast_latency_seconds summary",
        'holdfast_latency_seconds{job="job",quantile="0.5",sink="busy"} 0.4',
        'holdfast_latency_seconds{job="job",quantile="0.95",sink="busy"} 0.9',
        'holdfast_latency_seconds{job="job",quantile="0.99",sink="busy"} 1.1',
        'holdfast_latency_seconds_count{job="job",sink="busy"} 70.0',
        'holdfast_latency_seconds_sum{job="job",sink="busy"} 30.5',
        'holdfast_latency_seconds_count{job="job",sink="quiet"} 7.0',
        'holdfast_latency_seconds_sum{job="job",sink="quiet"} 3.5',
    ]
    assert "`holdfast_latency_seconds`" in PAGE.read_text()
