"""Does the faults of a schedule to a round, one after the other, and sees whether each took effect.

Always true: a fault counts only if it was seen to happen: the process was there and is gone, stopped or was
told; the order was taken; the token exists. One that found nothing to strike is told and not counted.
Never here: which faults are due (see faults), or what became of the job (see checker).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.chaos import processes
from holdfast.chaos.faults import RECOVERY_STEPS, Fault, Kind
from holdfast.chaos.inside.disturbances import ARM, CHECKPOINT, Order
from holdfast.chaos.inside.faulty_storage import FaultKind
from holdfast.chaos.processes import Process
from holdfast.chaos.round import Round
from holdfast.chaos.spark_cluster import Cluster
from holdfast.checkpoint.chain.history import History as CheckpointHistory
from holdfast.errors import HoldfastError
from holdfast.storage.urls import open_storage

STEP_SECONDS = 30.0
"""How long a process is waited for at a step; some steps are passed only every few epochs."""
CALL_SECONDS = 12.0
"""How long a storage call that fits is waited for."""
TASK_CALL_SECONDS = 4.0
"""How long tasks are given for one: with small epochs they leave all writing to the driver."""
MEANT = "[!r]*"
"""Any name but `requests/`: the leader looks there all the time, and nothing hangs on it."""
LIFE_SECONDS = 90.0
"""For a life to start and commit, or to end."""
PROGRESS_SECONDS = 180.0
STOP_SECONDS = 2.0
"""For SIGSTOP to take effect."""


@dataclass(frozen=True)
class Outcome:
    """Whether a fault took effect, and what exactly happened."""

    effective: bool
    detail: str = ""


class Nemesis:
    """Strikes one round."""

    def __init__(self, round: Round, cluster: Cluster | None = None) -> None:
        self._round, self._cluster = round, cluster
        self._strikes: dict[Kind, Callable[[Fault], Outcome]] = {
            Kind.KILL_DRIVER: self._kill_driver,
            Kind.KILL_DRIVER_AT_STEP: self._kill_driver_at_step,
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_WORKER_AT_STEP: self._kill_worker_at_step,
            Kind.KILL_EXECUTOR: self._kill_executor,
            Kind.PAUSE_DRIVER: self._pause_driver,
            Kind.TAKE_OVER: self._take_over,
            Kind.STORAGE_ERROR: self._disturb_storage,
            Kind.STORAGE_LATENCY: self._disturb_storage,
            Kind.STORAGE_TIMEOUT: self._disturb_storage,
            Kind.CLOCK_JUMP: self._jump,
            Kind.RESTART: self._restart,
            Kind.RESCALE: self._rescale,
            Kind.DAMAGE_FILE: self._damage,
        }

    def torment(self, faults: Iterable[Fault], until: Callable[[], bool]) -> None:
        """Strike until the round or the schedule is over, or `until` says so."""
        for fault in faults:
            if not self._round.wait(
                partial(self._is_due, self._round.newest + fault.commits), PROGRESS_SECONDS
            ):
                return
            time.sleep(fault.delay)
            self._round.watch()
            if self._round.over or until():
                return
            self._strike(fault)

    def _is_due(self, commit: int) -> bool:
        return self._round.newest >= commit

    def _strike(self, fault: Fault) -> None:
        began = self._round.history.now()
        outcome = self._strikes[fault.kind](fault)
        self._round.watch()
        what = f"{fault}{'; ' + outcome.detail if outcome.detail else ''}"
        event = self._round.tell(
            "nemesis",
            what if outcome.effective else f"{what}: found nothing to strike",
            "fault" if outcome.effective else "missed",
            fault=str(fault.kind),
            number=fault.number,
            began=round(began, 3),
        )
        # The life that took over has committed by then: there is nothing left to get over.
        if outcome.effective and fault.kind is not Kind.TAKE_OVER:
            self._round.suffered(event)

    def _kill_driver(self, fault: Fault) -> Outcome:
        life = self._round.leader
        if not life.running:
            return Outcome(False)
        life.kill()
        return Outcome(True, f"{life.name} is killed after commit {self._round.newest}")

    def _kill_driver_at_step(self, fault: Fault) -> Outcome:
        assert fault.step is not None
        life, token = self._round.leader, self._token(fault)
        if fault.step in RECOVERY_STEPS:
            life.kill()
            self._round.kill_next_life_at(fault.step, token)
            hit = self._round.wait(token.exists, LIFE_SECONDS)
            return Outcome(hit, f"{life.name} is killed, and the next life at {fault.step}")
        order = Order(id=f"f{fault.number}", action=ARM, where="driver", step=fault.step, token=str(token))
        self._round.orders.give(order)
        if not self._round.wait(token.exists, STEP_SECONDS):
            self._round.orders.withdraw(order.id)
            if _taken_first(token):
                return Outcome(False)
        self._round.wait(lambda: self._round.leader is not life, LIFE_SECONDS)
        return Outcome(True, f"{life.name} is killed")

    def _kill_worker(self, fault: Fault) -> Outcome:
        return self._kill_one_of(self._workers, "worker", fault)

    def _kill_worker_at_step(self, fault: Fault) -> Outcome:
        step, token = self._round.worker_step()
        token.unlink()
        if not self._round.wait(token.exists, STEP_SECONDS) and _taken_first(token):
            return Outcome(False, str(step))
        return Outcome(True, f"a worker is killed at {step}")

    def _kill_executor(self, fault: Fault) -> Outcome:
        assert self._cluster is not None
        return self._kill_one_of(self._cluster.executors, "executor", fault)

    def _pause_driver(self, fault: Fault) -> Outcome:
        life, whole = self._round.leader, fault.draw % 2 == 0
        life.pause(whole=whole)
        if not _wait(lambda: processes.is_stopped(life.pid), STOP_SECONDS):
            return Outcome(False)
        time.sleep(fault.seconds)
        life.resume(whole=whole)
        return Outcome(True, "with its JVM and its workers" if whole else "alone")

    def _take_over(self, fault: Fault) -> Outcome:
        zombie, whole = self._round.leader, fault.draw % 2 == 0
        zombie.pause(whole=whole)
        if not _wait(lambda: processes.is_stopped(zombie.pid), STOP_SECONDS):
            return Outcome(False)
        seen = self._round.newest
        rightful = self._round.start()
        self._round.wait(lambda: self._round.newest > seen, LIFE_SECONDS)
        zombie.resume(whole=whole)
        _wait(lambda: not zombie.running, LIFE_SECONDS, meanwhile=self._round.watch)
        ending = f"ended with {zombie.exit_code}" if not zombie.running else "went on, and was ended"
        zombie.close()
        return Outcome(True, f"{rightful.name} took over, {zombie.name} woke up and {ending}")

    def _disturb_storage(self, fault: Fault) -> Outcome:
        action = {
            Kind.STORAGE_ERROR: FaultKind.FAIL,
            Kind.STORAGE_LATENCY: FaultKind.DELAY,
            Kind.STORAGE_TIMEOUT: FaultKind.LOSE_ANSWER if fault.answer_lost else FaultKind.LOSE_REQUEST,
        }[fault.kind]
        order = Order(
            id=f"f{fault.number}",
            action=action,
            where=fault.where,
            operation=fault.operation,
            name=fault.name,
            seconds=fault.seconds,
        )
        orders = self._round.orders
        orders.give(order)
        detail = ""
        if fault.where == "task" and not self._wait_taken(order.id, TASK_CALL_SECONDS):
            orders.withdraw(order.id)
            if not orders.taken(order.id):
                order = Order(id=f"f{fault.number}-any", action=action, name=MEANT, seconds=fault.seconds)
                orders.give(order)
                detail = "no task called, so whoever called first"
        if self._wait_taken(order.id, CALL_SECONDS):
            return Outcome(True, detail)
        orders.withdraw(order.id)
        return Outcome(orders.taken(order.id), detail)

    def _jump(self, fault: Fault) -> Outcome:
        id = f"f{fault.number}"
        self._round.orders.shift_clock(id, fault.shift_ms)
        seen = self._wait_taken(id, CALL_SECONDS)
        self._round.wait(lambda: False, fault.seconds)
        self._round.orders.shift_clock(f"{id}-back", 0)
        return Outcome(seen, f"for {fault.seconds:.1f} s")

    def _restart(self, fault: Fault) -> Outcome:
        life = self._round.leader
        life.stop()
        if not _wait(lambda: not life.running, LIFE_SECONDS):
            life.kill()
            return Outcome(True, f"{life.name} did not stop in {LIFE_SECONDS:.0f} s, and was killed")
        return Outcome(True, f"{life.name} stopped by itself with {life.exit_code}")

    def _rescale(self, fault: Fault) -> Outcome:
        before = self._round.parallelism
        self._round.parallelism = (
            fault.parallelism if fault.parallelism != before else fault.parallelism % 4 + 1
        )
        outcome = self._restart(fault)
        return Outcome(outcome.effective, f"{outcome.detail}, goes on with {self._round.parallelism} shards")

    def _damage(self, fault: Fault) -> Outcome:
        """The file is one that the next life needs: what it could read instead is taken away."""
        life = self._round.leader
        life.kill()
        life.close()
        shutil.rmtree(self._round.directory / "working", ignore_errors=True)
        (self._round.directory / "working").mkdir()
        victim = _needed_file(self._round.directory / CHECKPOINT, fault.draw)
        if victim is None:
            return Outcome(False)
        path, offset = victim
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x10
        path.write_bytes(bytes(data))
        return Outcome(True, f"a bit of {path.name} is turned")

    def _workers(self) -> list[Process]:
        found = processes.python_workers(self._round.leader.pid)
        return found + (self._cluster.python_workers() if self._cluster else [])

    def _kill_one_of(self, candidates: Callable[[], list[Process]], role: str, fault: Fault) -> Outcome:
        """Of those that are there, or come soon."""
        found: list[Process] = []

        def there() -> bool:
            found[:] = candidates()
            return bool(found)

        if not self._round.wait(there, CALL_SECONDS):
            return Outcome(False)
        victim = sorted(found, key=lambda process: process.pid)[fault.draw % len(found)]
        processes.kill(victim.pid)
        return Outcome(True, f"{role} {victim.pid} is killed")

    def _wait_taken(self, id: str, seconds: float) -> bool:
        return self._round.wait(lambda: self._round.orders.taken(id), seconds)

    def _token(self, fault: Fault) -> Path:
        return self._round.directory / "tokens" / f"fault-{fault.number}"


def _wait(
    condition: Callable[[], bool], seconds: float, meanwhile: Callable[[], None] = lambda: None
) -> bool:
    """Whether the condition came to hold in time. Does not watch the round, unless `meanwhile` does."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        meanwhile()
        time.sleep(0.02)
    return True


def _taken_first(token: Path) -> bool:
    """Take a token away from those who would die by it. False: one of them was quicker."""
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _needed_file(checkpoint: Path, draw: int) -> tuple[Path, int] | None:
    """A file that holds state which the newest commit needs, and a byte in it; none without which no retained
    commit is whole, because a job that has nothing to go back to is rightly refused."""
    try:
        history = CheckpointHistory(open_storage(str(checkpoint)))
        view = history.load()
        needed_by_all = history.view_at(max(view.retained_from, 1)).objects() if view.number else set()
    except HoldfastError:
        return None
    places = []
    for operator in view.operators:
        deltas = view.live_deltas(operator.uid)
        if deltas and deltas[-1].extent.object not in needed_by_all:
            extent = deltas[-1].extent
            places.append((checkpoint / extent.object, extent.offset + extent.length // 2))
        if snapshots := view.snapshots.get(operator.uid):
            file = snapshots[-1]
            places.append((checkpoint / file.object, file.length // 2))
    return places[draw % len(places)] if places else None
