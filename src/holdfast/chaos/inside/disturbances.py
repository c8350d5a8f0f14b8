"""Faults inside the job's own processes: orders of the nemesis, storage that obeys them, a clock that jumps.

An order is a file that waits under `orders/`. The process that it fits takes it by renaming it into `taken/`:
of all processes just one can, once, and the file there is the evidence that the fault took effect.
`HOLDFAST_CHAOS` names the directory of a round; `holdfast.storage.urls` passes every storage that a process
opens through `disturbed`, in the driver and in every Python worker. Only the round's checkpoint is disturbed:
sources and sinks are the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from holdfast.chaos.inside.faulty_storage import Fault, FaultKind, FaultyStorage
from holdfast.clock import SystemClock
from holdfast.storage.contract import Storage

ROUND_VARIABLE = "HOLDFAST_CHAOS"
WRAPPER = f"{__name__}:disturbed"
CHECKPOINT = "ck"
"""The name of the checkpoint in the directory of a round."""
ARM = "arm"
CLOCK = "clock"

_here = "task"


def become_driver() -> None:
    """This process is the driver; all others that import this module are workers."""
    global _here
    _here = "driver"


def stop_at(step: str, token: str | Path) -> str:
    """The setting that kills the first process to reach `step` while `token` does not exist."""
    return f"{step}:1:KILL:{token}"


def disturbed(storage: Storage) -> Storage:
    """The storage, able to suffer orders if it is the checkpoint of the round."""
    directory = os.environ.get(ROUND_VARIABLE)
    if directory is None or storage.url != str(Path(directory, CHECKPOINT)):
        return storage
    return OrderedStorage(storage, Orders(Path(directory)))


class OrderedStorage(FaultyStorage):
    """Suffers the orders that fit its calls, each once, whichever process gets there first."""

    def __init__(self, inner: Storage, orders: Orders) -> None:
        super().__init__(inner, clock=SystemClock())
        self._orders = orders

    def _hits(self, operation: str, name: str) -> Sequence[Fault]:
        hit = []
        for order in self._orders.waiting():
            if not order.fits(_here, operation, name) or not self._orders.take(order):
                continue
            if order.action == ARM:
                os.environ["HOLDFAST_STOP_AT"] = stop_at(order.step, order.token)
            else:
                hit.append(Fault(kind=FaultKind(order.action), seconds=order.seconds))
        return hit


class JumpingClock(SystemClock):
    """The machine's clock, off by what the orders of the round say."""

    def now_ms(self) -> int:
        directory = os.environ.get(ROUND_VARIABLE)
        shift_ms = Orders(Path(directory)).clock_shift_ms() if directory else 0
        return super().now_ms() + shift_ms


@dataclass(frozen=True, kw_only=True)
class Order:
    """`action`: a `FaultKind` of storage, or `arm` to die at `step`. `where`: driver, task or anywhere."""

    id: str
    action: str
    where: str = "anywhere"
    operation: str = "*"
    name: str = "*"
    seconds: float = 0.0
    step: str = ""
    token: str = ""

    def fits(self, where: str, operation: str, name: str) -> bool:
        return (
            self.where in (where, "anywhere")
            and fnmatchcase(operation, self.operation)
            and fnmatchcase(name, self.name)
        )


class Orders:
    """Both ends of it. Nothing is kept in memory: any number of processes may hold one."""

    def __init__(self, directory: Path) -> None:
        self._waiting, self._taken = directory / "orders", directory / "taken"
        self._clock = directory / CLOCK

    def prepare(self) -> None:
        for directory in (self._waiting, self._taken):
            directory.mkdir(parents=True, exist_ok=True)

    def give(self, order: Order) -> None:
        """Let it wait for a call that it fits; one of the same id is replaced."""
        _put(self._waiting / order.id, json.dumps(asdict(order)))

    def withdraw(self, id: str) -> None:
        """Not needed any more. It may have been taken: ask `taken`."""
        with contextlib.suppress(FileNotFoundError):
            (self._waiting / id).unlink()

    def taken(self, id: str) -> bool:
        return (self._taken / id).exists()

    def waiting(self) -> Iterator[Order]:
        for name in os.listdir(self._waiting):
            if name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                yield Order(**json.loads((self._waiting / name).read_text()))

    def take(self, order: Order) -> bool:
        """Whether it is ours now."""
        try:
            os.rename(self._waiting / order.id, self._taken / order.id)
        except FileNotFoundError:
            return False
        return True

    def shift_clock(self, id: str, shift_ms: int) -> None:
        """From now on the driver's wall clock is off by so much."""
        _put(self._clock, json.dumps([id, shift_ms]))

    def clock_shift_ms(self) -> int:
        """How far the clock is off. A process that asks has seen the jump: it counts as taken."""
        try:
            id, shift_ms = json.loads(self._clock.read_text())
        except FileNotFoundError:
            return 0
        evidence = self._taken / str(id)
        if not evidence.exists():
            evidence.touch()
        return int(shift_ms)


def _put(path: Path, text: str) -> None:
    """At one instant: a reader sees the old text or the new."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
