"""What a run looks like: paced, and with the last word always shown."""

from __future__ import annotations

import io
import json

from rich.console import Console

from holdfast.cli.displays import JsonLines, LivePanel, Pace, PlainLines
from holdfast.cli.format import age, lag, line, size
from holdfast.runtime.progress import Progress
from holdfast.testing.clocks import ManualClock


def at(epoch: int, phase: str = "running") -> Progress:
    return Progress(job="j", phase=phase, epoch=epoch)


def shown(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_changes_within_the_pace_are_held_back_and_the_newest_one_is_shown() -> None:
    pace = Pace(0.2, urgent=lambda shown, newest: False)
    pace.offer(at(1))
    assert pace.due(10.0) == at(1)
    pace.offer(at(2))
    pace.offer(at(3))
    assert pace.due(10.1) is None
    assert pace.due(10.25) == at(3)
    assert pace.due(11.0) is None


def test_an_urgent_change_does_not_wait() -> None:
    pace = Pace(5.0, urgent=lambda shown, newest: shown is None or shown.phase != newest.phase)
    pace.offer(at(1))
    assert pace.due(0.0) == at(1)
    pace.offer(at(1, "stopped"))
    assert pace.due(0.1) == at(1, "stopped")


def test_json_shows_at_most_five_a_second_and_always_the_last() -> None:
    out, clock = io.StringIO(), ManualClock()
    with JsonLines(out, clock) as display:
        for epoch in range(1, 101):
            display.progress(at(epoch))
    epochs = [thing["epoch"] for thing in shown(out.getvalue())]
    assert epochs == [1, 100]


def test_json_holds_every_message() -> None:
    out = io.StringIO()
    with JsonLines(out, ManualClock()) as display:
        display.message("one")
        display.message("two")
    assert [(thing["event"], thing["text"]) for thing in shown(out.getvalue())] == [
        ("message", "one"),
        ("message", "two"),
    ]


def test_json_progress_names_what_it_is() -> None:
    out = io.StringIO()
    with JsonLines(out, ManualClock()) as display:
        display.progress(at(7))
    (thing,) = shown(out.getvalue())
    assert thing["event"] == "progress"
    assert thing["job"] == "j"
    assert thing["epoch"] == 7
    assert isinstance(thing["at_ms"], int)


def test_plain_lines_come_with_each_phase_and_not_with_each_epoch() -> None:
    out = io.StringIO()
    with PlainLines(out, ManualClock()) as display:
        display.progress(at(1))
        display.progress(at(2))
        display.progress(at(3))
        display.progress(at(3, "stopped"))
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["holdfast: j: running", "holdfast: j: stopped"]


def test_the_panel_leaves_the_error_to_the_message_that_tells_it() -> None:
    out = io.StringIO()
    with LivePanel(Console(file=out, width=100), ManualClock()) as panel:
        panel.progress(Progress(job="j", phase="failed", error="key [a] failed"))
        panel.message("FAILURE: key [a] failed")
    assert out.getvalue().count("key [a] failed") == 1


def test_a_line_tells_what_a_person_asks_for() -> None:
    progress = Progress(
        job="j", phase="running", epoch=12, committed_epoch=11, rows=1_234_567, rows_per_second=98_765.4,
        lag_rows=42, state_bytes=12_500_000, committed_ms=9_600, restarts=1, term=3, error="lost storage",
    )  # fmt: skip
    assert line(progress, now_ms=10_000) == (
        "j: running, epoch 12 (committed 11), rows 1,234,567, rows/s 98,765, lag 42 rows, state 12.5 MB, "
        "checkpoint age 0.4 s, restarts 1, term 3"
    )


def test_lag_is_told_in_rows_and_in_files_as_far_as_it_is_known() -> None:
    told = [lag(Progress(job="j", **known)) for known in (
        {}, {"lag_rows": 0}, {"waiting_files": 3, "waiting_bytes": 1_200_000},
        {"lag_rows": 5, "waiting_files": 0, "waiting_bytes": 0},
    )]  # fmt: skip
    assert told == ["unknown", "0 rows", "3 files, 1.2 MB", "5 rows and 0 files, 0 bytes"]


def test_sizes_and_ages_have_fitting_units() -> None:
    assert [size(n) for n in (0, 999, 1_000, 2_500_000)] == ["0 bytes", "999 bytes", "1.0 kB", "2.5 MB"]
    assert [age(0, ms) for ms in (0, 119_000, 180_000, 7_200_000)] == ["0.0 s", "119.0 s", "3 min", "2 h"]
    assert age(None, 5) == "none yet"
