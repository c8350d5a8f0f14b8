"""One round: the job from its first row to its last, started again whenever it ends too early.

Always true: whatever a round started is gone when it ends; a commit is seen from outside, by the record that
appears in storage; waiting is for a condition, with a deadline.
Never here: which fault strikes when (see nemesis).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.chaos.faults import worker_steps
from holdfast.chaos.history import Event, History
from holdfast.chaos.inside.child import PARKED, LifeSettings
from holdfast.chaos.inside.disturbances import CHECKPOINT, ROUND_VARIABLE, WRAPPER, Orders, stop_at
from holdfast.chaos.processes import QUICK_JVM, Life
from holdfast.checkpoint.store import names
from holdfast.errors import UNEXPECTED, FencedOut, RetryableError
from holdfast.steps import Step
from holdfast.storage.urls import WRAPPER_VARIABLE

POLL_SECONDS = 0.05
STALLED_SECONDS = 180.0
"""A job that commits nothing for so long hangs."""
FRUITLESS_LIVES_MAX = 8
"""Lives in a row that commit nothing: the job cannot get on."""
WORTH_ANOTHER_LIFE = (RetryableError.exit_code, UNEXPECTED)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What every life of the job is started with. `command` is followed by the round's directory and the
    settings as JSON.
    """

    command: tuple[str, ...]
    settings: LifeSettings
    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    executors_elsewhere: bool = False
    """On a cluster: the environment of the workers is not inherited, it is a setting."""


class Round:
    """Use as a context. `watch` must be called often: it sees commits and starts the next life."""

    def __init__(self, stage: Stage, directory: Path, seed: int, number: int, history: History) -> None:
        self.directory, self.number, self.history = directory, number, history
        self.orders = Orders(directory)
        self.lives: list[Life] = []
        self.newest = 0
        self.finished = False
        self.failed = ""
        self.stalled = False
        self.restarts = 0
        self.parallelism: int | None = stage.settings.options.get("parallelism")
        self._stage = stage
        self._steps: Iterator[Step] = worker_steps(seed)
        self._worker_tokens: dict[str, tuple[Step, Path]] = {}
        self._next_stop_at: str | None = None
        self._fruitless = 0
        self._progress_at = time.monotonic()
        self._unrecovered: list[tuple[Event, int]] = []

    def __enter__(self) -> Round:
        for name in ("tokens", "logs", "spark", "working"):
            (self.directory / name).mkdir(parents=True)
        self.orders.prepare()
        self.tell("round", f"begins in {self.directory.name}", "round")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for life in self.lives:
            life.close()
        self.tell("round", self._ending(), "round-end", finished=self.finished, restarts=self.restarts)

    @property
    def leader(self) -> Life:
        return self.lives[-1]

    @property
    def over(self) -> bool:
        return self.finished or bool(self.failed)

    def tell(self, who: str, what: str, kind: str = "note", **facts: object) -> Event:
        return self.history.add(who, what, kind, round=self.number, **facts)

    def start(self) -> Life:
        """A new life, beside whatever runs: the newest leads."""
        name = f"driver-{len(self.lives) + 1}"
        step = next(self._steps)
        token = self.directory / "tokens" / f"worker-{name}"
        token.touch()  # as long as it is there, no worker dies at the step
        self._worker_tokens[name] = (step, token)
        inner = {
            ROUND_VARIABLE: str(self.directory),
            WRAPPER_VARIABLE: WRAPPER,
            "HOLDFAST_STOP_AT": stop_at(step, token),
        }
        own = {PARKED: self._next_stop_at} if self._next_stop_at else {}
        self._next_stop_at = None
        options = {**self._stage.settings.options}
        if self.parallelism is not None:
            options["parallelism"] = self.parallelism
        settings = msgspec.json.encode(replace(self._stage.settings, options=options)).decode()
        life = Life(
            name,
            [*self._stage.command, str(self.directory), settings],
            {**inner, **own, **self._spark_environment(inner)},
            self.directory / "logs" / f"{name}.log",
        )
        self.lives.append(life)
        self.tell(name, f"starts as process {life.pid}", "start")
        return life

    def watch(self) -> None:
        """See what has happened since."""
        newest = self._newest_commit()
        if newest > self.newest:
            self._note_commit(newest)
        leader = self.leader
        if not leader.running and not self.over:
            self._after(leader)
        if time.monotonic() - self._progress_at > STALLED_SECONDS and not self.over:
            self.stalled, self.failed = True, f"no commit for {STALLED_SECONDS:.0f} s"

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Watch until the condition holds (True), the time is over, or the round is (what it is then)."""
        give_up = time.monotonic() + seconds
        while not condition():
            if self.over or time.monotonic() > give_up:
                return condition()
            self.watch()
            time.sleep(POLL_SECONDS)
        return True

    def suffered(self, event: Event) -> None:
        """A fault took effect: the next commit says when the job had got over it."""
        self._unrecovered.append((event, self.newest))

    def kill_next_life_at(self, step: Step, token: Path) -> None:
        self._next_stop_at = stop_at(step, token)

    def worker_step(self) -> tuple[Step, Path]:
        """The step at which the leader's workers die when the token is taken away, and the token."""
        return self._worker_tokens[self.leader.name]

    def _newest_commit(self) -> int:
        try:
            found = os.listdir(self.directory / CHECKPOINT / names.COMMITS)
        except FileNotFoundError:
            return 0
        return max((int(name) for name in found if name.isdecimal()), default=0)

    def _note_commit(self, newest: int) -> None:
        event = self.tell("job", f"commit {newest}", "commit", commit=newest)
        self.newest, self._progress_at, self._fruitless = newest, time.monotonic(), 0
        for fault, before in self._unrecovered:
            seconds = event.seconds - fault.seconds
            self.tell(
                "job",
                f"got over fault {fault.facts['number']} in {seconds:.1f} s",
                "recovered",
                fault=fault.facts["fault"],
                number=fault.facts["number"],
                commits_before=before,
                took=round(seconds, 3),
            )
        self._unrecovered.clear()
        for life in self.lives[:-1]:
            if not life.running:
                life.close()

    def _after(self, life: Life) -> None:
        """The leader has ended: that was the end of the job, or another life follows."""
        code = life.exit_code
        assert code is not None
        words = "" if code == 0 else f"; last words: {life.last_words()}"
        self.tell(life.name, f"ended with {code}{words}", "end", code=code)
        if code == 0 and not life.told_to_stop:
            self.finished = True
        elif code == FencedOut.exit_code:
            self.failed = f"{life.name} was fenced out, and nobody else led: {life.last_words()}"
        elif code > 0 and code not in WORTH_ANOTHER_LIFE:
            self.failed = f"{life.name} ended with {code}: {life.last_words()}"
        elif self._fruitless >= FRUITLESS_LIVES_MAX:
            self.failed = f"{self._fruitless} lives in a row committed nothing: {life.last_words()}"
        else:
            self._fruitless += 1
            self.restarts += 1
            self.start()

    def _spark_environment(self, inner: Mapping[str, str]) -> dict[str, str]:
        """Before there is a session, Spark's own variable is the public way to configure it."""
        conf = {
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self.directory / "spark"),
            "spark.sql.warehouse.dir": str(self.directory / "spark" / "warehouse"),
            **self._stage.conf,
        }
        if self._stage.executors_elsewhere:
            conf |= {f"spark.executorEnv.{name}": value for name, value in inner.items()}
        given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        settings = shlex.join(part for item in conf.items() for part in ("--conf", "=".join(item)))
        master = shlex.quote(self._stage.master)
        return {
            "PYSPARK_SUBMIT_ARGS": f"--master {master} {settings} {given}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def _ending(self) -> str:
        if self.finished:
            return f"ends after {self.restarts} restarts, at commit {self.newest}"
        return f"is broken off at commit {self.newest}: {self.failed or 'its time is over'}"
