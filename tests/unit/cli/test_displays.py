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
    assert [line.split(",")[0] for line in lines] == [
        "1970-01-01 00:00:00Z holdfast: j: running",
        "1970-01-01 00:00:00Z holdfast: j: stopped",
    ]


def test_no_part_swallows_what_another_tells() -> None:
    out, lines = io.StringIO(), io.StringIO()
    clock = ManualClock()
    with JsonLines(out, clock) as programs, PlainLines(lines, clock) as people:
        for display in (programs, people):
            for epoch in (1, 2):
                for part in ("fraud.main", "fraud.scoring"):
                    display.progress(Progress(job=part, phase="running", epoch=epoch))
    told = [(thing["job"], thing["epoch"]) for thing in shown(out.getvalue())]
    assert told == [("fraud.main", 1), ("fraud.scoring", 1), ("fraud.main", 2), ("fraud.scoring", 2)]
    assert [line.split(": ")[1] for line in lines.getvalue().splitlines()] == [
        "fraud.main", "fraud.scoring", "fraud.main", "fraud.scoring",
    ]  # fmt: skip


def drawn(*told: Progress) -> str:
    console = Console(file=io.StringIO(), width=140)
    panel = LivePanel(console, ManualClock())
    for progress in told:
        panel.progress(progress)
    with console.capture() as captured:
        console.print(panel.render())
    return captured.get()


def test_the_panel_has_a_row_for_each_part_and_what_waits_between_them() -> None:
    waits = {"part": "scoring", "epochs": 2, "rows": 20, "bytes": 1_500, "kept_bytes": 0, "full": True}
    text = drawn(
        Progress(job="fraud.main", phase="running", epoch=1),
        Progress(job="fraud.scoring", phase="restoring"),
        Progress(job="fraud.main", phase="running", epoch=7, channels={"clicks-in": waits}),
    )
    lines = text.splitlines()
    assert "holdfast: fraud " in lines[0]
    assert [line.split()[1:3] for line in lines[2:4]] == [["main", "running"], ["scoring", "restoring"]]
    assert "7 (committed 0)" in lines[2]
    assert "main: channel clicks-in  20 rows of 2 epochs, 1.5 kB wait for scoring; FULL" in text


def test_jobs_of_a_node_are_not_taken_for_parts() -> None:
    lines = drawn(Progress(job="orders"), Progress(job="fraud.main")).splitlines()
    assert " holdfast " in lines[0]
    assert [line.split()[1] for line in lines[1:4]] == ["job", "orders", "fraud.main"]


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
        {}, {"epochs_run": 1}, {"lag_rows": 0}, {"waiting_files": 3, "waiting_bytes": 1_200_000},
        {"lag_rows": 5, "waiting_files": 0, "waiting_bytes": 0},
    )]  # fmt: skip
    assert told == ["not known yet", "unknown", "0 rows", "3 files, 1.2 MB", "5 rows and 0 files, 0 bytes"]


def test_sizes_and_ages_have_fitting_units() -> None:
    assert [size(n) for n in (0, 999, 1_000, 2_500_000)] == ["0 bytes", "999 bytes", "1.0 kB", "2.5 MB"]
    assert [age(0, ms) for ms in (0, 119_000, 180_000, 7_200_000)] == ["0.0 s", "119.0 s", "3 min", "2 h"]
    assert age(None, 5) == "none yet"
