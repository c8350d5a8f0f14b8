"""`holdfast chaos` itself: it lets good jobs pass, finds bad ones out, and says when it cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.cli.chaos import EXIT_CODES
from tests.chaos.harness import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

JOBS = Path(__file__).parent / "jobs"
KILLS = ("--kinds", "kill-driver")


def chaos(job: str, out: Path, *options: str, rows: int = 6_000) -> dict[str, Any]:
    """Run the tool as a user would; its report."""
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "chaos",
        str(JOBS / f"{job}.py"),
        "--json",
        "--out",
        str(out),
    ]
    command += ["--seed", "7", "--minutes", "5", "--max-rows-per-epoch", "200", *options]
    environment = {**os.environ, "CHAOS_ROWS": str(rows), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr[-3_000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == EXIT_CODES[report["verdict"]]
    return report


def test_a_good_job_is_found_good_and_all_of_it_is_written_down(tmp_path: Path) -> None:
    kinds = "kill-driver,kill-worker,pause-driver,storage-error,storage-latency,storage-timeout,clock-jump"
    report = chaos("ledger", tmp_path / "out", "--kinds", kinds, "--faults", "9", rows=16_000)
    assert report["verdict"] == "true", report
    assert report["fault_count"] >= 9
    assert report["tally"]["rows"] >= 16_000
    assert (report["tally"]["lost"], report["tally"]["doubled"], report["seed"]) == (0, 0, 7)
    history = [json.loads(line) for line in (tmp_path / "out" / "history.jsonl").read_text().splitlines()]
    struck = [event for event in history if event["kind"] == "fault"]
    assert len(struck) == report["fault_count"]
    ElementTree.parse(tmp_path / "out" / "timeline.svg")


def test_a_source_that_does_not_replay_is_found_out(tmp_path: Path) -> None:
    report = chaos("forgetful_source", tmp_path / "out", *KILLS, "--faults", "1")
    assert report["verdict"] == "false", report
    assert report["tally"]["changed"] + report["tally"]["lost"] > 0


def test_a_sink_that_repeats_is_found_out_by_a_check_of_what_it_shows(tmp_path: Path) -> None:
    check = ("--check", "tests.chaos.jobs.repeating_sink:nothing_is_repeated")
    report = chaos("repeating_sink", tmp_path / "out", *KILLS, "--faults", "3", "--real-sinks", *check)
    assert report["verdict"] == "false", report
    assert "rows more than it should" in str(report["reasons"])


def test_a_safeguard_that_is_gone_is_found_out(tmp_path: Path) -> None:
    kinds = ("--kinds", "kill-driver-at-step", "--steps", "before-publish")
    report = chaos("unpublished", tmp_path / "out", *kinds, "--faults", "2")
    assert report["verdict"] == "false", report
    assert report["tally"]["lost"] > 0
    assert "never published" in str(report["reasons"])


def test_the_same_kills_do_no_harm_with_the_safeguard_in_place(tmp_path: Path) -> None:
    kinds = ("--kinds", "kill-driver-at-step", "--steps", "before-publish")
    report = chaos("ledger", tmp_path / "out", *kinds, "--faults", "2")
    assert report["verdict"] == "true", report


def test_a_job_with_other_results_each_time_is_judged_by_its_own_check_alone(tmp_path: Path) -> None:
    report = chaos("marked", tmp_path / "unchecked", *KILLS, "--faults", "1")
    assert report["verdict"] == "unknown", report
    assert "two runs without faults differ" in str(report["reasons"])
    check = ("--check", "tests.chaos.matrix:marks_agree")
    report = chaos("marked", tmp_path / "checked", *KILLS, "--faults", "1", *check)
    assert report["verdict"] == "true", report


def test_windows_and_timers_are_judged_by_what_they_show_last(tmp_path: Path) -> None:
    kinds = ("--kinds", "kill-driver-at-step,rescale,kill-worker-at-step")
    report = chaos("windows", tmp_path / "out", *kinds, "--faults", "3")
    assert report["verdict"] == "true", report
    assert report["tally"]["rows"] > 0


def test_windows_that_are_told_twice_are_found_out(tmp_path: Path) -> None:
    report = chaos("doubled_windows", tmp_path / "out", *KILLS, "--faults", "1", rows=3_000)
    assert report["verdict"] == "false", report
    assert report["tally"]["doubled"] > 0
    assert "rows too often" in str(report["reasons"])


def test_what_follows_from_the_clock_is_not_held_against_the_job(tmp_path: Path) -> None:
    report = chaos("clocked", tmp_path / "out", "--kinds", "clock-jump", "--faults", "2")
    assert report["verdict"] == "unknown", report
    assert "two runs without faults differ" in str(report["reasons"])
