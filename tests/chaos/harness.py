"""Runs the crash-test job in child processes, hurts them, and starts them again until the job is done.

Always true: waiting is for a condition, with a deadline; whatever a scenario started is gone when it ends,
also when it fails; only processes that it started are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from holdfast.chaos.history import History
from holdfast.checkpoint.store import names
from tests.chaos import nemesis
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Verdict, check
from tests.chaos.nemesis import Action, Fault

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = float(os.environ.get("HOLDFAST_CHAOS_DEADLINE", "240"))
"""For one process to get where it should. Far beyond what it takes: only a hang comes near."""
POLL_SECONDS = 0.1
KILLED = -signal.SIGKILL


def wait_until(condition: Callable[[], bool], what: str, history: History | None = None) -> None:
    """Wait for `condition`; after the deadline, fail with the story so far."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            story = history.story() if history else ""
            raise AssertionError(f"waited {DEADLINE_SECONDS:.0f} s in vain for: {what}{story}")
        time.sleep(POLL_SECONDS)


def show(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print a line of figures or progress at once, also where pytest captures what tests print."""
    with capsys.disabled():
        print(f"\n{text}", end="", flush=True)


class Driver:
    """One life of the job: a process, with its JVM and its Python workers, in a session of its own."""

    def __init__(
        self, scenario: Scenario, name: str, fault: Fault | None, arguments: Sequence[str], shape: Shape
    ) -> None:
        self.name, self.fault = name, fault
        self._scenario = scenario
        self._token = scenario.place.root / f"token-{name}"
        self._log = scenario.place.root / f"{name}.log"
        command = [sys.executable, "-m", scenario.app, str(scenario.place.root)]
        if scenario.place.elsewhere is not None:
            command += ["--outputs", str(scenario.place.elsewhere)]
        command += ["--shape", json.dumps(asdict(shape)), *scenario.arguments, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["HOLDFAST_WORKING_DIR"] = str(scenario.place.working)
        environment.update(fault.setting(self._token) if fault else {})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=scenario.place.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._tell(f"started as {self.pid}" + (f", to suffer {fault}" if fault else ""))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def hit(self) -> bool:
        """Whether its fault has happened."""
        return self._token.exists()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """All it wrote."""
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        """Its last error; Spark's daemons may go on talking after it."""
        lines = [line for line in self.said().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["nothing"])[-1]

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        wait_until(lambda: not self.running, f"{self.name} to end", self._scenario.history)
        code = self._process.returncode
        self._tell(f"ended with {code}; last words: {self.last_words()}")
        return code

    def wait_stopped(self) -> None:
        """Wait until its fault has stopped it."""
        wait_until(
            lambda: (self.hit and nemesis.is_stopped(self.pid)) or not self.running,
            f"{self.name} to be stopped", self._scenario.history,
        )  # fmt: skip
        assert self.running, f"{self.name} ended instead of being stopped{self._scenario.history.story()}"
        self._tell("is stopped")

    def pause_all(self) -> None:
        """Stop its JVM and its Python workers as well, whatever they are at: a machine that is frozen."""
        for process in nemesis.members(self.pid):
            nemesis.pause(process.pid)
        self._tell("is stopped with all that belongs to it")

    def resume(self) -> None:
        """Let it go on, and all that belongs to it."""
        self._tell("is resumed")
        for process in nemesis.members(self.pid):
            nemesis.resume(process.pid)

    def kill(self) -> None:
        """From outside, at whatever it is doing."""
        self._tell("is killed")
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and everything it started."""
        nemesis.end_session(self.pid)
        self._process.wait()

    def _tell(self, what: str) -> None:
        self._scenario.history.add(self.name, what)


@dataclass
class Scenario:
    """One job and what is done to it. Use as a context: at its end every process is gone."""

    place: Place
    shape: Shape = field(default_factory=Shape)
    arguments: tuple[str, ...] = ()
    app: str = "tests.chaos.apps"
    """The module that is run."""
    history: History = field(default_factory=History)
    drivers: list[Driver] = field(default_factory=list)

    def __enter__(self) -> Scenario:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.drivers:
            driver.close()

    def start(
        self, fault: Fault | None = None, arguments: Sequence[str] = (), *, shards: int | None = None
    ) -> Driver:
        """Start the job; the process suffers `fault` when it gets there."""
        shape = replace(self.shape, shards=shards or self.shape.shards)
        driver = Driver(self, f"driver-{len(self.drivers) + 1}", fault, arguments, shape)
        self.drivers.append(driver)
        return driver

    def suffer(self, fault: Fault, *, shards: int | None = None) -> None:
        """One life that ends by the fault."""
        assert fault.action is Action.KILL
        driver = self.start(fault, shards=shards)
        code = driver.wait()
        assert driver.hit, f"{fault} never happened{self.history.story()}"
        assert code == KILLED, f"the driver ended with {code}, not by the kill{self.history.story()}"
        driver.close()

    def finish(self) -> Driver:
        """One life without a fault, to the end of the input; then everything must be right."""
        driver = self.start()
        code = driver.wait()
        assert code == 0, f"the last driver failed with {code}: {driver.last_words()}{self.history.story()}"
        self.expect_exactly_once()
        return driver

    def expect_exactly_once(self) -> None:
        """State and sinks are what a run without faults gives."""
        finding = check(self.place, self.shape)
        self.history.add("checker", str(finding))
        assert finding.verdict is Verdict.TRUE, self.history.story()

    def commits(self) -> list[int]:
        """The numbers of the commit records in storage."""
        directory = self.place.checkpoint / names.COMMITS
        return sorted(int(path.name) for path in directory.iterdir()) if directory.exists() else []

    def wait_for_commit(self, number: int, driver: Driver) -> None:
        """Wait until the chain has got to `number`, which `driver` must live to do."""
        wait_until(
            lambda: max(self.commits(), default=0) >= number or not driver.running,
            f"commit {number}", self.history,
        )  # fmt: skip
        found = max(self.commits(), default=0)
        assert found >= number, f"{driver.name} ended at commit {found}{self.history.story()}"
