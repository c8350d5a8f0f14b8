"""A real job under control: through storage, over HTTP, and when its leader is killed in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.checkpoint.log.requests import Requests, State, ask, read_asked
from holdfast.storage.local_directory import LocalStorage

APP = """
import holdfast as hf

job = hf.Job("totals")
numbers = job.source(
    hf.GeneratorSource({"key": "id % 7", "value": "id"}, schema="key long, value long"), uid="numbers"
)
numbers.key_by("key").aggregate(uid="totals", n=hf.count()).sink(hf.FileSink("out", format="json"), uid="out")
"""
TOKEN = "a-token-of-some-length"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Running:
    """`holdfast run --http` as a process."""

    def __init__(self, place: Path) -> None:
        self.place = place
        command = [sys.executable, "-m", "holdfast", "run", "app.py", "--checkpoint", "ck", "--json"]
        command += ["--master", "local[2]", "--max-rows-per-epoch", "500", "--working-dir", "working"]
        command += ["--http", "127.0.0.1:0", "--http-token-file", "token"]
        # Into files: a pipe that nobody reads would hold the job up.
        self._out = place / f"out-{time.monotonic_ns()}"
        with open(self._out, "w") as out, open(place / "log", "a") as log:
            self.process = subprocess.Popen(command, cwd=place, stdout=out, stderr=log)
        self.url = self._url()

    def _url(self) -> str:
        deadline = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < deadline:
            for line in self._out.read_text().splitlines(keepends=True):
                text = str(json.loads(line).get("text", "")) if line.endswith("\n") else ""
                if text.startswith("the control API is at "):
                    return text.rpartition(" ")[2]
            time.sleep(0.1)
        raise AssertionError(f"it never said where the API is: {(self.place / 'log').read_text()}")

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, headers=HEADERS).json()

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Wait until the job's status fulfils a condition."""
        deadline = time.monotonic() + 120
        while not condition(status := dict(self.get("/status"))):
            assert time.monotonic() < deadline, f"waited until {what}, but: {status}"
            time.sleep(0.1)
        return status

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(timeout=120)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path


@pytest.fixture
def start(place: Path) -> Iterator[Callable[[], Running]]:
    started: list[Running] = []

    def begin() -> Running:
        started.append(Running(place))
        return started[-1]

    yield begin
    for running in started:
        running.process.kill()
        running.process.wait()


def holdfast(place: Path, *arguments: str) -> dict[str, Any]:
    """A command of another process, as JSON."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--checkpoint", "ck", "--json"]
    done = subprocess.run(command, cwd=place, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_job_is_watched_rescaled_saved_and_stopped_from_outside(
    place: Path, start: Callable[[], Running]
) -> None:
    running = start()
    before = running.wait_for(lambda s: s["committed_epoch"] >= 2, "two epochs are committed")
    assert httpx.get(f"{running.url}/ready").status_code == 200
    assert httpx.post(f"{running.url}/stop", json={}).status_code == 401

    told = holdfast(place, "status")
    assert told["progress"]["phase"] == "running"
    assert told["leader"]["pid"] == running.process.pid

    shards = 3 if before["parallelism"] != 3 else 2
    assert holdfast(place, "rescale", "--parallelism", str(shards))["state"] == "done"
    running.wait_for(lambda s: s["parallelism"] == shards, "it goes on with other shards")

    saved = httpx.post(f"{running.url}/savepoints", json={"url": str(place / "sp")}, headers=HEADERS)
    id = saved.json()["request"]
    running.wait_for(lambda s: running.get(f"/requests/{id}")["state"] == "done", "the savepoint is complete")
    assert (place / "sp" / "savepoint").exists()

    point = running.get("/state/totals?key=3")
    assert point["found"]
    metrics = httpx.get(f"{running.url}/metrics", headers=HEADERS).text
    counts = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.labels == {"job": "totals"}
    }
    assert counts["holdfast_epochs_total"] >= 2
    assert counts["holdfast_rows_total"] == 500 * counts["holdfast_epochs_total"]
    assert counts["holdfast_commits_total"] >= 2

    assert holdfast(place, "stop", "--savepoint", "last")["state"] == "done"
    assert running.ended() == 0
    assert (place / "last" / "savepoint").exists()
    after = holdfast(place, "status")
    assert after["progress"] is None
    assert after["checkpoint"]["last_epoch"] >= before["committed_epoch"]
    storage = LocalStorage(place / "ck")
    kept = [read_asked(storage, entry.name.removeprefix("requests/")) for entry in storage.list("requests/")]
    assert [asked.request.verb for asked in kept if asked.request] == ["rescale", "savepoint", "stop"]
    assert {asked.state for asked in kept} == {State.DONE}


def test_a_leader_killed_in_the_middle_of_a_request_leaves_it_failed_not_repeated(
    place: Path, start: Callable[[], Running]
) -> None:
    first = start()
    first.wait_for(lambda s: s["committed_epoch"] >= 1, "an epoch is committed")
    os.kill(first.process.pid, signal.SIGSTOP)
    # As it stands when a leader dies between its claim and its answer.
    storage = LocalStorage(place / "ck")
    now_ms = int(time.time() * 1_000)
    id = ask(storage, "stop", {}, token="0a1b2c3d", asked_by="test", now_ms=now_ms).id
    Requests(storage, term=1).claim(id, now_ms)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()

    second = start()
    second.wait_for(lambda s: read_asked(storage, id).state is State.FAILED, "the request is answered")
    assert "the leader of term 1 ended while at it" in second.get(f"/requests/{id}")["error"]
    epoch = second.get("/status")["committed_epoch"]
    second.wait_for(lambda s: s["committed_epoch"] > epoch, "the job goes on, it was not stopped")
    second.process.send_signal(signal.SIGTERM)
    assert second.ended() == 0
