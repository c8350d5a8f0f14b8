"""What is measured of protections: from times of commits, from counters, from windows; and how it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.protection import __main__ as command
from bench.protection import report
from bench.protection.cases import CASES, FIRST_MS, MAIN_SEAT, PART_SEAT, job_of
from bench.protection.cluster import in_place, next_move
from bench.protection.commits import (
    Commit,
    Epoch,
    Wrong,
    bringing,
    gap,
    latencies,
    lost_events,
    middle_and_bad,
    replayed,
    rows_of,
    within,
    wrong_in_windows,
)
from bench.protection.costs import TICKS_PER_SECOND, Used, per_row, read_counters, used_by
from bench.protection.measure import shown_windows
from holdfast.graph.validate import check


def commit(at: float, *epochs: int, term: int = 1, rows: int = 10) -> Commit:
    """Of epochs that were planned a second before each other, the last of them at that time."""
    planned = [Epoch(epoch, at - (epochs[-1] - epoch), rows) for epoch in epochs]
    return Commit(at, term, tuple(planned))


def test_the_gap_is_the_largest_distance_around_the_kill_less_the_usual_one() -> None:
    times = [0.0, 20.0, 21.0, 22.0, 29.5, 30.5, 31.5, 60.0]
    assert gap(times, killed=22.4, until=30.5, usual=1.0) == 6.5
    assert gap(times, killed=22.4, until=29.0, usual=1.0) == 6.5, "the commit that ends it comes later"
    assert gap(times, killed=22.4, until=70.0, usual=1.0) == 27.5
    assert gap([1.0, 2.0, 3.0], killed=1.5, until=2.5, usual=1.2) == 0.0
    with pytest.raises(AssertionError, match="no commit was seen"):
        gap([1.0, 2.0], killed=2.5, until=3.0, usual=1.0)


def test_commits_of_epochs_that_are_run_again_bring_nothing() -> None:
    seen = [commit(1, 1, 2), commit(2), commit(3, 3), commit(4, 2, term=2), commit(5, 3, 4, term=2)]
    brought = bringing(seen)
    assert [(each.at, [epoch.number for epoch in each.epochs]) for each in brought] == [
        (1, [1, 2]), (3, [3]), (5, [4]),
    ]  # fmt: skip
    assert rows_of(within(brought, begin=1, end=5)) == 20
    assert latencies(brought[:2]) == [1.0, 0.0, 0.0]


def test_rows_are_replayed_that_had_been_planned_and_are_run_by_a_later_term() -> None:
    before = [commit(1, 1), commit(2, 2)]
    after = [commit(9, 2, term=2), commit(10, 3, 4, term=2), commit(11, 5, term=2)]
    assert replayed([*before, *after], term=1, newest_plan=4) == 30
    assert replayed([*before, *after], term=1, newest_plan=1) == 0
    assert replayed([*before, commit(3, 3), commit(4, 4)], term=1, newest_plan=4) == 0, "replicas go on"


def test_of_lost_events_the_newest_word_of_each_shard_counts() -> None:
    told = [{("totals", 0): 3, ("totals", 64): 1}, {("totals", 0): 5}, {}]
    commits = [Commit(at, 1, (), lost) for at, lost in enumerate(told)]
    assert lost_events(commits) == 6


def test_middle_and_bad() -> None:
    assert middle_and_bad([n / 100 for n in range(1, 101)]) == {"p50": 0.505, "p95": 0.95}
    assert middle_and_bad([2.0]) == {"p50": 2.0, "p95": 2.0}


def test_windows_lack_rows_or_have_too_many() -> None:
    whole = {100: 20, 110: 20, 120: 20}
    assert wrong_in_windows(whole, first=100, size=10, rows=20) == Wrong(0, 0)
    assert wrong_in_windows({}, first=100, size=10, rows=20) == Wrong(0, 0)
    assert wrong_in_windows({110: 20, 120: 15}, first=100, size=10, rows=20) == Wrong(25, 0)
    assert wrong_in_windows({**whole, 110: 23, 125: 4}, first=100, size=10, rows=20) == Wrong(0, 7)


def test_counters_are_those_of_a_process_and_of_its_children_that_ended() -> None:
    stat = "7 (a) b) S 1 7 7 0 -1 4194304 500 900 0 0 " + "30 20 40 10 20 0 5 0 99 1000 20"
    io = (
        "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n"
    )
    assert read_counters(stat, io) == Used(100 / TICKS_PER_SECOND, 4096)


def test_what_rows_cost() -> None:
    used = Used(12.5, 9_000) - Used(10.0, 1_000) + Used(0.5, 0)
    assert per_row(used, rows=2_000) == {"cpu_ms_per_1000_rows": 1_500.0, "bytes_per_row": 4.0}
    with pytest.raises(AssertionError, match="no rows"):
        per_row(used, rows=0)


def test_all_processes_of_a_session_are_counted() -> None:
    """A child that has ended, too: it burns its time and is collected before its parent says so."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    program = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
        "print('burnt', flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        # Each counter is cut to whole ticks; the parent alone uses far less.
        assert used_by([process.pid]).cpu_seconds >= 0.3 - 4 / TICKS_PER_SECOND
        assert used_by([]) == Used()
    finally:
        process.kill()
        process.communicate()


def test_windows_are_read_from_the_files_of_all_epochs(tmp_path: Path) -> None:
    assert shown_windows(tmp_path) == {}
    for number, counts in enumerate(([5, 7], [8])):
        starts = pa.array([FIRST_MS * 1_000] * len(counts)).cast(pa.timestamp("us", tz="UTC"))
        epoch = pa.table({"k": counts, "window_start": starts, "n": counts})
        pq.write_table(epoch, tmp_path / f"{number}.parquet")
    assert shown_windows(tmp_path) == {FIRST_MS: 20}


@pytest.mark.parametrize("slug", list(CASES))
def test_the_job_of_a_case_is_in_order(slug: str, tmp_path: Path) -> None:
    check(job_of(slug, 200, tmp_path).graph())


def test_replicas_have_a_seat_each() -> None:
    assert CASES["active-2"].seats == (PART_SEAT, f"{PART_SEAT}~2", f"{PART_SEAT}~3")
    assert CASES["passive-2s"].seats == (PART_SEAT,)


def test_main_is_brought_to_its_node_and_the_part_to_others() -> None:
    case, second = CASES["active-1"], f"{PART_SEAT}~2"
    main_here, main_there = {MAIN_SEAT: "home"}, {MAIN_SEAT: "a"}
    assert next_move({**main_there, PART_SEAT: "home"}, ["home", "a", "b"], "home") == (MAIN_SEAT, "home")
    assert next_move({**main_here, second: "home"}, ["home", "a"], "home") == (second, "a")
    assert next_move({**main_here, PART_SEAT: "a", second: "home"}, ["home", "a"], "home") is None, (
        "none idle"
    )
    right = {**main_here, PART_SEAT: "a", second: "b"}
    assert next_move(right, ["home", "a", "b", "c"], "home") is None
    assert in_place(right, case, "home")
    assert not in_place({**right, second: "home"}, case, "home")
    assert not in_place({**main_here, PART_SEAT: "a"}, case, "home"), "a seat is free"
    assert not in_place({**right, MAIN_SEAT: "c"}, case, "home")


def measured(slug: str, cpu: float, latency: float, gap: float, **more: Any) -> dict[str, Any]:
    case = CASES[slug]
    cost = {"cpu_ms_per_1000_rows": cpu, "bytes_per_row": 300.0}
    kill = {"gap_seconds": gap, "replayed_rows": 2_000, "protected_seconds": gap + 1}
    steady = {
        "latency_seconds": {"p50": latency, "p95": 2 * latency}, "kept_up": 1.0, "part": cost, "all": cost,
    }  # fmt: skip
    result = {
        "title": case.title, "kind": case.kind, "baseline": case.baseline, "load_before": 0.1,
        "steady": steady, "kills": [kill, kill], "lost_rows": 0, "doubled_rows": 0,
    }  # fmt: skip
    return {**result, **more}


def test_latency_is_told_against_the_case_without_more_protection() -> None:
    cases = {
        "rollback": measured("rollback", 300, 0.4, 12.0),
        "active-1": measured("active-1", 600, 0.5, 0.0, doubled_rows=3),
        "uncoordinated": measured("uncoordinated", 200, 0.3, 9.0, lost_rows=1_234),
    }
    rollback, active, uncoordinated = report.table(cases)
    assert rollback[4:6] == ("400", "800")
    assert active[4:6] == ("500 (+100)", "1,000 (+200)")
    assert uncoordinated[4:6] == ("300", "600"), "its baseline was not measured"
    assert (active[9], uncoordinated[9]) == ("0 (doubled: 3)", "1,234")
    assert len({len(line) for line in report.as_text(cases).splitlines()}) == 1


def test_the_page_says_what_was_measured_and_what_is_doubtful(tmp_path: Path) -> None:
    slow = measured("active-2", 900, 0.9, 0.2)
    slow["steady"]["kept_up"] = 0.8
    found = {
        "about": {
            "machine": "2 cores", "started": "2026-01-01",
            "settings": {"rate": 2_000, "session": 6.0, "warm_up": 45.0, "stretch": 60.0, "kills": 5},
        },
        "cases": {"rollback": measured("rollback", 300, 0.4, 12.0), "active-2": slow},
    }  # fmt: skip
    report.write(found, tmp_path)
    page = (tmp_path / "protection.md").read_text()
    assert "| rollback | 300 | 300 | 300 | 400 | 800 | 12.0 | 12.0 | 2,000 | 0 | 13.0 |" in page
    assert "active replicas, k=2: counted 80% of the rows that were due" in page
    assert "{" not in page
    assert (tmp_path / report.PICTURE).read_text().count("<svg") == 1


def test_figures_of_other_settings_are_not_kept(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert command.known_cases(out, {"settings": {"rate": 1}}) == {}
    out.write_text(json.dumps({"about": {"settings": {"rate": 1}}, "cases": {"rollback": 1}}))
    assert command.known_cases(out, {"settings": {"rate": 1}}) == {"rollback": 1}
    assert command.known_cases(out, {"settings": {"rate": 2}}) == {}
