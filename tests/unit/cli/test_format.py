"""What commands print, for people and for programs."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.format import answer, behind, counted, facts, new_table, print_rows
from holdfast.runtime.progress import Progress


def shown(capsys: pytest.CaptureFixture[str], found: list[str], *, as_json: bool, empty: str | None) -> str:
    print_rows(
        found,
        as_json=as_json,
        plain=lambda one: {"name": one},
        cells=lambda one: (one,),
        table=new_table("things", "name"),
        empty=empty,
    )
    return capsys.readouterr().out


def test_rows_are_a_table_or_a_json_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, ["a", "[b]"], as_json=True, empty=None)
    assert [json.loads(line) for line in out.splitlines()] == [{"name": "a"}, {"name": "[b]"}]
    assert "│ [b]  │" in shown(capsys, ["a", "[b]"], as_json=False, empty=None)


def test_no_rows_are_an_empty_table_or_a_word_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name" in shown(capsys, [], as_json=False, empty=None)
    assert shown(capsys, [], as_json=False, empty="no things") == "no things\n"
    assert shown(capsys, [], as_json=False, empty="") == shown(capsys, [], as_json=True, empty="no") == ""


def test_what_does_not_fit_a_column_goes_on_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = shown(capsys, ["s3://bucket/a/long/name"], as_json=False, empty=None)
    cells = [line.strip("│ ") for line in out.splitlines() if line.startswith("│")]
    assert "".join(cells) == "s3://bucket/a/long/name"


def test_an_answer_is_lines_or_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer(False, {"n": 1}, "one", "two")
    answer(True, {"n": 1}, "one", "two")
    assert capsys.readouterr().out == 'one\ntwo\n{"n": 1}\n'


def test_one_is_singular() -> None:
    assert [counted(n, "file") for n in (0, 1, 2_000)] == ["0 files", "1 file", "2,000 files"]


def test_a_source_is_shown_once_it_has_something_to_tell() -> None:
    fine = {"set_aside": 0, "reason": None, "undeclared": {}, "rows_ms": 0, "silent": False}
    worse = {"set_aside": 2, "reason": "file 'a', line 3: why", "undeclared": {"x": "b"}, "silent": True}
    progress = Progress(job="job", sources={"fine": fine, "worse": fine | worse})
    told = dict(facts(progress, now_ms=420_000))
    assert "source fine" not in told
    assert told["source worse"] == (
        "SILENT for 7 min; 2 rows set aside; the newest: file 'a', line 3: why; "
        "new column 'x' first seen in file 'b'"
    )


@pytest.mark.parametrize(
    ("watermark_ms", "text"),
    [
        (None, "not known yet"),
        (0, "1970-01-01 00:00:00 UTC, 5.0 s behind"),
        (9_000, "1970-01-01 00:00:09 UTC"),
        (10**18, "1000000000000000000 ms since 1970"),
    ],
)
def test_event_time_is_told_with_how_far_it_is_behind(watermark_ms: int | None, text: str) -> None:
    assert behind(watermark_ms, 5_000) == text


def test_a_run_tells_event_time_and_sources_that_are_idle() -> None:
    told = facts(Progress(job="j", watermarks={"op": 0}, idle_sources=("slow",)), 5_000)
    assert ("watermark of op", "1970-01-01 00:00:00 UTC, 5.0 s behind") in told
    assert ("idle sources", "slow; event time does not wait for them") in told
    assert not [name for name, _ in facts(Progress(job="j"), 0) if name.startswith(("watermark", "idle"))]


def test_the_copy_of_a_table_is_told_with_what_stands_against_a_newer_one() -> None:
    copy = {"rows": 3, "read_ms": 1_000, "error": None}
    told = dict(facts(Progress(job="job", tables={"prices": copy}), 31_000))
    assert told["table of prices"] == "3 rows, read 30.0 s ago"
    stale = {**copy, "error": "it is gone"}
    told = dict(facts(Progress(job="job", tables={"prices": stale}), 31_000))
    assert told["table of prices"] == "3 rows, read 30.0 s ago; no newer copy could be made: it is gone"


def test_a_sink_is_told_of_when_it_is_behind_or_its_server_is_away() -> None:
    away = {"since_ms": 4_000, "tries": 3, "reason": "no connection", "next_try_ms": 11_000}
    dead = {"through": 2, "epochs": 5, "bytes": 100, "full": True, "unavailable": away, "refused": None}
    alive = {"through": 7, "epochs": 0, "bytes": 0, "full": False, "unavailable": None, "refused": None}
    found = dict(facts(Progress(job="j", sinks={"dead": dead, "alive": alive}), 10_000))
    assert "sink alive" not in found
    assert found["sink dead"] == (
        "WAITING for its server for 6.0 s: no connection (tried 3 times, again in 1 s); 5 epochs, 100 bytes, "
        "committed and not shown; FULL: nothing is read"
    )


def test_a_sink_that_refuses_is_told_with_the_way_to_have_it_tried_again() -> None:
    refused = {"since_ms": 4_000, "tries": 1, "reason": "no such table"}
    sink = {"through": 2, "epochs": 1, "bytes": 5, "full": False, "unavailable": None, "refused": refused}
    assert dict(facts(Progress(job="j", sinks={"out": sink}), 10_000))["sink out"] == (
        "REFUSED for 6.0 s: no such table (tried 1 time, again by `holdfast sinks retry`); 1 epoch, 5 bytes, "
        "committed and not shown"
    )


def test_latency_is_told_of_each_sink_that_knows_it() -> None:
    told = {"through": 2, "epochs": 0, "bytes": 0, "full": False, "unavailable": None}
    busy = {"p50": 0.412, "p95": 0.9, "p99": 1_100.5, "rows": 70, "seconds": 30.5}
    quiet = {"p50": None, "p95": None, "p99": None, "rows": 7, "seconds": 3.5}
    sinks = {"a": {**told, "latency": busy}, "b": {**told, "latency": quiet}, "c": {**told, "latency": None}}
    found = dict(facts(Progress(job="j", sinks={**sinks, "older": told}), 10_000))
    assert found["latency to a"] == "p50 0.41 s, p95 0.90 s, p99 1,100.50 s"
    assert found["latency to b"] == "no rows in the last minute"
    assert not {"latency to c", "latency to older"} & found.keys()


def test_the_target_of_the_latency_is_told_where_there_is_one() -> None:
    assert ("target latency", "2.5 s") in facts(Progress(job="j", target_latency=2.5), 0)
    assert "target latency" not in dict(facts(Progress(job="j"), 0))
