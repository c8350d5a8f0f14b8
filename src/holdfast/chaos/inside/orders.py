"""What the nemesis, outside, tells the processes of the job to suffer, inside: files in a directory.

An order waits under `orders/`. Whoever it fits takes it by renaming it into `taken/`: of all processes just
one can, once, and that it is there is the evidence that the fault took effect.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

CLOCK = "clock"


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
        """How far the clock is off. Who asks has seen the jump: it counts as taken."""
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
