"""`holdfast run` as a process: what it prints, how it ends, and that functions reach Spark's workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos.processes import members

APP = """
import holdfast as hf
from neighbour import FACTOR

def scaled(value):
    return FACTOR * value

class Sum(hf.KeyedFunction):
    output = "key long, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.total.value += scaled(row.value)
        yield row.key, self.total.value

job = hf.Job("sums")
numbers = job.source(
    hf.GeneratorSource({{"key": "id % 3", "value": "id"}}, schema="key long, value long", {limits}),
    uid="numbers",
)
numbers.key_by("key").process(Sum(), uid="sums").sink(hf.FileSink("out", format="json"), uid="out")

if __name__ == "__main__":
    raise SystemExit("the command line must not run this")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "apps").mkdir()
    # Beside the file, not in the working directory: found as it is for a script.
    (tmp_path / "apps" / "neighbour.py").write_text("FACTOR = 10\n")
    return tmp_path


def start(place: Path, limits: str, *, text: str = APP, in_group: bool = False) -> subprocess.Popen[str]:
    """`in_group`: of its own, with Spark's processes."""
    (place / "apps" / "app.py").write_text(text.format(limits=limits))
    command = [sys.executable, "-m", "holdfast", "run", "apps/app.py", "--checkpoint", "ck", "--json"]
    command += ["--master", "local[2]", "--until", "exhausted", "--working-dir", "working"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=in_group,
    )  # fmt: skip


def said(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def newest(place: Path) -> dict[int, int]:
    lines = [line for file in sorted((place / "out").glob("*.json")) for line in file.open()]
    totals: dict[int, int] = {}
    for row in map(json.loads, lines):
        totals[row["key"]] = max(row["total"], totals.get(row["key"], 0))
    return totals


def test_a_file_runs_to_its_end_with_its_functions_and_neighbours(place: Path) -> None:
    out, err = start(place, "total=30").communicate()
    last = said(out)[-1]
    assert (last["phase"], last["rows"], last["published_through"]) == ("stopped", 30, {"out": 1}), err
    assert newest(place) == {key: 10 * sum(range(key, 30, 3)) for key in range(3)}


def test_sigterm_ends_a_run_cleanly_and_the_next_run_goes_on(place: Path) -> None:
    process = start(place, "rows_per_second=500, total=1_000_000")
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("committed_epoch", 0) >= 2:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 0, err
    last = said(out)[-1]
    assert last["phase"] == "stopped"
    assert last["committed_epoch"] == last["epoch"] == last["published_through"]["out"]

    done, err = start(place, f"rows_per_second=500, total={last['rows']}").communicate()
    after = said(done)[-1]
    assert (after["phase"], after["rows"], after["term"]) == ("stopped", last["rows"], 2), err
    assert newest(place) == {key: 10 * sum(range(key, last["rows"], 3)) for key in range(3)}


def test_a_stop_that_reaches_spark_as_well_ends_the_run_and_loses_nothing(place: Path) -> None:
    """As `timeout`, a service manager or a shell ends all processes of a group."""
    process = start(place, "rows_per_second=500, total=1_000_000", in_group=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("committed_epoch", 0) >= 2:
            break
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate()
    # Between two epochs there is nothing to finish.
    assert process.returncode in (0, 75), err
    if process.returncode:
        (told,) = [text for text in err.splitlines() if text.startswith("error: ")]
        assert "the run was told to stop, and could not finish what it had in hand" in told
    assert not any("starts again" in each.get("text", "") for each in said(out))

    committed = max(each.get("rows", 0) for each in said(out))
    done, err = start(place, f"total={committed}").communicate()
    after = said(done)[-1]
    assert (after["phase"], after["term"]) == ("stopped", 2), err
    assert after["rows"] >= committed, "a plan that was left is followed"
    assert newest(place) == {key: 10 * sum(range(key, after["rows"], 3)) for key in range(3)}


def test_an_error_of_the_function_ends_the_run_with_its_code_and_one_line(place: Path) -> None:
    process = start(
        place, "total=30", text=APP.replace("return FACTOR * value", "return FACTOR // (value - 7)")
    )
    out, err = process.communicate()
    assert process.returncode == 3
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "'sums'" in line
    assert "ZeroDivisionError" in line
    # Spark's own daemon may print one of its own while it is being ended; ours must not.
    assert not [text for text in err.splitlines() if text.strip().startswith("File ") and "holdfast/" in text]
    assert said(out)[-1]["phase"] == "failed"
    assert not list((place / "out").glob("*.json"))


def test_a_run_whose_jvm_dies_begins_anew_under_its_pid(place: Path) -> None:
    total = 9_000
    process = start(place, f"rows_per_second=300, total={total}")
    assert process.stdout is not None
    before = ""
    for line in process.stdout:
        before += line
        if json.loads(line).get("committed_epoch", 0) >= 2:
            break
    own = members(os.getsid(process.pid))
    (jvm,) = [each.pid for each in own if each.parent == process.pid and "org.apache.spark" in each.command]
    os.kill(jvm, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    told = [event.get("text", "") for event in said(before + out)]
    assert any("this process starts again" in text for text in told), told
    last = said(out)[-1]
    assert (last["phase"], last["rows"], last["term"]) == ("stopped", total, 2), err
    assert newest(place) == {key: 10 * sum(range(key, total, 3)) for key in range(3)}
