"""Holdfast beside its peers: how fast rows went through, whose sums count, and who is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench import report
from bench.peers import comparison
from bench.peers import environments as environments_module
from bench.peers.contenders import BYTEWAX, PYFLINK, Contender, Trial, check_sums
from bench.peers.environments import Environment, LeftOut, last_error
from bench.peers.marks import Mark, merged, pace, read_marks
from bench.workload import Workload
from holdfast.chaos.processes import Life

SMALL = Workload(keys=10, rows=100)


def test_marks_of_several_writers_add_up(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("1.0 0\n3.0 10\n5.0 20\n")
    (tmp_path / "1.txt").write_text("2.0 0\n4.0 5\n")
    assert [(mark.at, mark.rows) for mark in read_marks(tmp_path)] == [
        (1.0, 0), (2.0, 0), (3.0, 10), (4.0, 15), (5.0, 25),
    ]  # fmt: skip
    assert merged([]) == []


def test_the_first_quarter_of_the_rows_does_not_count() -> None:
    marks = [Mark(10.0, 0), Mark(18.0, 100), Mark(19.0, 200), Mark(21.0, 400)]
    found = pace(marks, rows=400, started=4.0)
    assert found.first_row_s == 6.0
    assert found.rows_per_s == 300 / 3
    assert found.rows_per_s_with_warm_up == 400 / 11


def test_a_run_that_lost_rows_has_no_pace() -> None:
    with pytest.raises(LeftOut, match="99 of 100 rows"):
        pace([Mark(1.0, 0), Mark(2.0, 99)], rows=100, started=0.0)
    with pytest.raises(LeftOut, match="0 of 100 rows"):
        pace([], rows=100, started=0.0)


def written(trial: Trial, wrong: int = 0) -> None:
    """The last sums, as lines of text."""
    rows = pq.read_table(trial.slices_in).group_by("k").aggregate([("value", "sum")])
    (trial.out / "part-0.csv").write_text(
        "".join(
            f"{row['k']},{max(0, row['value_sum'] - before) + wrong}\n"
            for before in (1, 0)
            for row in rows.to_pylist()
        )
    )


def test_sums_are_compared_with_those_of_the_rows(tmp_path: Path) -> None:
    trial = Trial(tmp_path, SMALL, slices=2)
    trial.prepare()
    written(trial)
    check_sums(trial, "csv")
    written(trial, wrong=1)
    with pytest.raises(LeftOut, match="its sums are wrong"):
        check_sums(trial, "csv")


def contender(name: str, wrong: int = 0, environment: Environment | None = BYTEWAX) -> Contender:
    def run(trial: Trial) -> None:
        rows = trial.workload.rows * trial.slices
        (trial.marks / "0.txt").write_text(f"1.0 0\n2.0 {rows // 2}\n4.0 {rows}\n")
        written(trial, wrong)

    return Contender(name, run, output="csv", slices=1, environment=environment)


def test_no_figures_of_wrong_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = comparison.measure(contender("bytewax", wrong=1), quick=True, rounds=1)
    assert left_out["left_out"].startswith("its sums are wrong")
    assert "rows_per_s" not in left_out
    with pytest.raises(LeftOut):
        comparison.measure(contender("holdfast process", wrong=1, environment=None), quick=True, rounds=1)

    monkeypatch.setattr(
        comparison, "CONTENDERS", [contender("holdfast process", environment=None), contender("x", wrong=1)]
    )
    found = comparison.run(quick=True, rounds=1)
    assert found["ratios"] == {}
    assert [each.get("left_out") is None for each in found["results"]] == [True, False]


def test_ratios_say_how_many_times_as_fast() -> None:
    results = [
        {"name": "holdfast process", "rows_per_s": 400},
        {"name": "holdfast aggregate", "rows_per_s": 600},
        {"name": "bytewax", "rows_per_s": 200},
        {"name": "PyFlink", "left_out": "no wheel"},
    ]
    assert comparison.ratios(results) == {
        "holdfast process / bytewax": 2.0,
        "holdfast aggregate / bytewax": 3.0,
    }


def test_a_peer_that_cannot_be_installed_is_left_out_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environments_module, "HERE", tmp_path)
    (tmp_path / "nothing-requirements.txt").write_text("holdfast-no-such-package==1\n")
    made = Environment("nothing", "holdfast-no-such-package")
    tried: list[list[str]] = []

    def without_network(self: Environment, command: list[str]) -> None:
        """What is to become the environment is made, and then nothing can be installed into it."""
        if "venv" in command:
            Path(command[-1]).mkdir()
        else:
            tried.append(command)
            raise LeftOut("it cannot be installed here: no network")

    monkeypatch.setattr(Environment, "_run", without_network)
    for _ in range(2):
        with pytest.raises(LeftOut, match="no network"):
            made.python()
    assert len(tried) == 2

    monkeypatch.setattr(Environment, "_make", lambda self, place: place.mkdir())
    assert made.python().is_relative_to(tmp_path / "cache/holdfast/peers")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environments_module, "HERE", tmp_path)
    made.python()


def test_a_peer_of_which_one_process_fails_is_ended_and_left_out(tmp_path: Path) -> None:
    waiting = Life("a", [sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path / "a.log")
    failing = Life("b", [sys.executable, "-c", "raise ValueError('no port')"], {}, tmp_path / "b.log")
    with pytest.raises(LeftOut, match="it failed: ValueError: no port"):
        Trial(tmp_path, SMALL, slices=1).await_end([waiting, failing])
    assert not waiting.running


def test_versions_are_those_of_the_requirements() -> None:
    for environment in (BYTEWAX, PYFLINK):
        assert environment.version.count(".") == 2


def test_the_last_error_is_the_line_that_tells_most() -> None:
    assert last_error("WARNING: retrying\nERROR: no matching distribution\nhint: look\n").startswith("ERROR")
    java = (
        "RuntimeError: no thread mode\n  at java\nException: Python process exits with code: 1\n ... 15 more"
    )
    assert last_error(java) == "RuntimeError: no thread mode"
    assert last_error("one\ntwo\n") == "two"
    assert last_error("") == "it said nothing"


def test_a_peer_that_was_left_out_is_in_the_report_with_the_reason() -> None:
    found = {
        "results": [
            {
                "name": "bytewax", "version": "0.21.1", "rows": 1_000, "rows_per_s": 5, "first_row_s": 0.5,
                "rows_per_s_min": 3, "rows_per_s_max": 6, "rows_per_s_with_warm_up": 4, "wall_s": 2.0,
            },
            {"name": "PyFlink", "version": "2.3.0", "left_out": "no wheel"},
        ],
        "ratios": {},
    }  # fmt: skip
    lines = report._peers({"peers": found})
    assert "| bytewax 0.21.1 | 1,000 | 5 | 3 to 6 | 4 | 0.5 | 2.0 |" in lines
    assert lines[-1] == "| PyFlink 2.3.0 | no wheel | - | - | - | - | - |"
