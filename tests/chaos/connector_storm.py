"""A storm over a job and the server that it writes to: strikes in random order, until the job is done.

Always true: a strike is felt (a process died, a connection was refused, the job said that it waits) or the
storm fails; a life of the job ends by our kill or at the end of its input, never by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.chaos.checker import Verdict
from holdfast.chaos.processes import python_workers, terminate
from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Finding, Row, judge_rows
from tests.chaos.cluster import Cluster
from tests.chaos.connector_feeds import FedSystem
from tests.chaos.connector_jobs import DYING_SECONDS_MAX, give_order
from tests.chaos.connector_systems import System
from tests.chaos.harness import KILLED, Scenario, wait_until

WAITING, AGAIN = "WAITING for the server of ", " is there again, after "
PAUSE_SECONDS_MAX = 0.4
"""A strike comes this long after an epoch, at most: at whatever the job is doing then."""


class Strike(StrEnum):
    DRIVER = "kills the driver"
    WRITER = "kills whoever writes, in the middle of it"
    EXECUTOR = "kills an executor"
    SERVER = "kills the server and starts it again"
    BREAK = "breaks all connections"
    REFUSE = "refuses all connections"
    LOSE = "loses the answer to what the server has done"
    VANISH = "has the server away once it has done what was asked"
    FILL = "leaves the server no room"


@dataclass
class Storm:
    """`strikes`: what may happen, each as often as it is named. Everything else follows from the seed."""

    system: System
    place: Place
    shape: Shape
    seed: int
    strikes: Sequence[Strike]
    arguments: tuple[str, ...] = ()
    cluster: Cluster | None = None
    """Where the job has its executors. Without it its tasks run in the process of the driver's Spark."""
    struck: Counter[Strike] = field(default_factory=Counter)
    repeated: int = 0
    """Rows that are shown more than once."""

    def rage(self) -> Finding:
        """Run the job through the storm, to its end, and judge what the system shows then."""
        chance = random.Random(self.seed)
        order = list(self.strikes)
        chance.shuffle(order)
        with Scenario(self.place, self.shape, self._given(), "tests.chaos.connector_jobs") as self._lives:
            self._start(chance)
            for strike in order:
                self._await_commits(chance.choice((0, 1, 1, 2)), chance)
                time.sleep(chance.random() * PAUSE_SECONDS_MAX)
                self._tell(strike)
                self._strike(strike, chance)
                self.struck[strike] += 1
            finding = self._ended(chance)
            self._lives.history.add("checker", str(finding))
            self.story = self._lives.history.story()
        return finding

    def _ended(self, chance: random.Random) -> Finding:
        """Let the job come to its end."""
        while self._ends_by_order():
            self._start(chance)
        return self._judge(self.system.rows())

    def _given(self) -> tuple[str, ...]:
        # What is not committed before it is shown may be computed again.
        marks = "random" if self.system.exactly_once else "fixed"
        where = json.dumps(self.system.at)
        return ("--sink", self.system.name, "--at", where, "--marks", marks, *self.arguments)

    def _start(self, chance: random.Random) -> None:
        """Every other life, about, has its lanes written by tasks; on a cluster every one."""
        by_tasks = ["--by-tasks"] if self.cluster is not None or chance.random() < 0.5 else []
        self._driver = self._lives.start(arguments=by_tasks)
        self._tell(f"has lanes written {'by tasks' if by_tasks else 'by the driver'}")

    def _tell(self, what: str) -> None:
        self._lives.history.add("nemesis", what)

    def _strike(self, strike: Strike, chance: random.Random) -> None:
        match strike:
            case Strike.DRIVER:
                self._driver.kill()
                self._start(chance)
            case Strike.WRITER:
                taken = give_order(self.place.root, chance.random() * DYING_SECONDS_MAX)
                self._until(taken.exists, "someone to write", chance)
            case Strike.EXECUTOR:
                self._kill_an_executor(chance)
            case Strike.SERVER:
                self.system.restart()
            case Strike.BREAK:
                self.system.cable.refuse()
                self.system.cable.restore()
            case Strike.REFUSE:
                felt = chance.choice((self._refused(), self._waits(chance)))
                self.system.cable.refuse()
                self._until(felt, "the job to be refused", chance)
                self.system.cable.restore()
            case Strike.LOSE:
                self._lose_an_answer(chance)
            case Strike.VANISH:
                felt = self._waits(chance)
                self._lose_an_answer(chance)
                self.system.cable.refuse()
                self._until(felt, "the job to wait for its server", chance)
                self.system.cable.restore()
            case Strike.FILL:
                felt = self._waits(chance)
                self.system.fill()
                self._until(felt, "the job to wait for room", chance)
                self.system.make_room()

    def _kill_an_executor(self, chance: random.Random) -> None:
        assert self.cluster is not None
        executors = self.cluster.executors
        self._until(lambda: bool(executors()), "an executor", chance)
        killed = chance.choice(executors()).pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)
        self._until(
            lambda: killed not in {each.pid for each in executors()}, "the executor to be gone", chance
        )

    def _lose_an_answer(self, chance: random.Random) -> None:
        cable = self.system.cable
        lost = cable.answers_lost
        cable.lose_answers_to = self.system.asks
        self._until(lambda: cable.answers_lost > lost, "an answer to be lost", chance)
        cable.lose_answers_to = b""

    def _refused(self) -> Callable[[], bool]:
        """Whether anyone has asked, from now on."""
        cable = self.system.cable
        asked = cable.requests
        return lambda: cable.requests > asked

    def _waits(self, chance: random.Random) -> Callable[[], bool]:
        """Whether the job has said, from now on, that it waits: it says so once, so that what it waited for
        before has to be there again. Another life begins another log."""
        self._until(self._has_its_server, "the job to have its server again", chance)
        driver, before = self._driver, self._driver.said().count(WAITING)
        return lambda: self._driver.said().count(WAITING) > (before if self._driver is driver else 0)

    def _has_its_server(self) -> bool:
        said = self._driver.said()
        return said.count(WAITING) == said.count(AGAIN)

    def _await_commits(self, count: int, chance: random.Random) -> None:
        """Strikes need not wait for the one before: the job may just be starting."""
        wanted = max(self._lives.commits(), default=0) + count
        self._until(lambda: max(self._lives.commits(), default=0) >= wanted, f"commit {wanted}", chance)

    def _until(self, condition: Callable[[], bool], what: str, chance: random.Random) -> None:
        """Wait for it, through all lives that an order to whoever writes has ended."""

        def come() -> bool:
            if condition():
                return True
            if not self._driver.running:
                assert self._ends_by_order(), f"the job ended before {what}: give it more epochs"
                self._start(chance)
            return False

        self._wait(come, what)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, self._lives.history)
        except AssertionError as hangs:
            raise AssertionError(f"{hangs}\n{self._driver_hangs_at()}") from None

    def _driver_hangs_at(self) -> str:
        """The stacks of its threads, and of those Python workers that have written."""
        for pid in (self._driver.pid, *(each.pid for each in python_workers(self._driver.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        return self._driver.said()[-6000:]

    def _ends_by_order(self) -> bool:
        """Wait for the end of a life: whether it was ended by an order, and the job has to go on."""
        self._wait(lambda: not self._driver.running, f"{self._driver.name} to end")
        code = self._driver.wait()
        assert code in (0, KILLED), (
            f"{self._driver.name} ended by itself, with {code}: {self._driver.said()[-3000:]}"
            f"{self._lives.history.story()}"
        )
        return code == KILLED

    def _judge(self, rows: list[Row]) -> Finding:
        if self.system.latest:
            return latest_of_each_key(rows, self.shape)
        once = rows
        if not self.system.exactly_once:
            once = [dict(items) for items in dict.fromkeys(tuple(sorted(row.items())) for row in rows)]
            self.repeated = len(rows) - len(once)
        if not self.system.ordered:
            once = sorted(once, key=lambda row: (row["key"], row["seq"]))
        return judge_rows(once, self.shape)


class SourceStorm(Storm):
    """The same over a job that reads from the system: numbers are sent all the while, and the files that it
    writes must hold each of them."""

    system: FedSystem

    def _given(self) -> tuple[str, ...]:
        return ("--source", self.system.name, "--at", json.dumps(self.system.at), *self.arguments)

    def _ended(self, chance: random.Random) -> Finding:
        """All was sent: a job that has taken all that it can is stopped, as its user would."""
        self.system.end_feed()
        self._until(self._all_is_taken, "the job to take all", chance)
        terminate(self._driver.pid)
        assert not self._ends_by_order()
        count = Counter(self._shown())
        wrong = [f"number {each} is lost" for each in range(self.system.fed) if each not in count]
        wrong += [f"number {each} is there {times} times" for each, times in count.items() if times > 1]
        return Finding(Verdict.FALSE if wrong else Verdict.TRUE, tuple(wrong[:8]), count.total())

    def _all_is_taken(self) -> bool:
        """As many are shown as were sent; which they are is judged later."""
        return len(self._shown()) >= self.system.fed

    def _shown(self) -> list[int]:
        paths = sorted(self.place.sink("out").glob("out-*.json"))
        return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]


def latest_of_each_key(rows: list[Row], shape: Shape) -> Finding:
    """Each key once, with the row that its newest event left."""
    expected: dict[int, tuple[int, int, int]] = {}
    for event in range(shape.events):
        _, seq, total = expected.get(shape.key_of(event), (0, 0, 0))
        expected[shape.key_of(event)] = (event, seq + 1, total + shape.value_of(event))
    found = {row["key"]: (row["event"], row["seq"], row["total"]) for row in rows}
    wrong = [
        f"key {key} shows {found.get(key)}, not {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if found.get(key) != expected.get(key)
    ]
    if len(found) < len(rows):
        wrong.append(f"{len(rows) - len(found)} keys are there more than once")
    return Finding(Verdict.FALSE if wrong else Verdict.TRUE, tuple(wrong[:8]), len(rows))
