"""Faults inside the job's own processes: storage that obeys orders, and a clock that jumps.

`HOLDFAST_CHAOS` names the directory of a round; `holdfast.storage.urls` passes every storage that a process
opens through `disturbed`, in the driver and in every Python worker. Only the round's checkpoint is disturbed:
sources and sinks are the user's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.chaos.inside.faulty_storage import Fault, FaultKind, FaultyStorage
from holdfast.chaos.inside.orders import Orders
from holdfast.clock import SystemClock
from holdfast.storage.contract import Storage

ROUND_VARIABLE = "HOLDFAST_CHAOS"
WRAPPER = f"{__name__}:disturbed"
CHECKPOINT = "ck"
"""The name of the checkpoint in the directory of a round."""
ARM = "arm"

_here = "task"


def become_driver() -> None:
    """This process is the driver; all others that import this module are workers."""
    global _here
    _here = "driver"


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
                os.environ["HOLDFAST_STOP_AT"] = f"{order.step}:1:KILL:{order.token}"
            else:
                hit.append(Fault(kind=FaultKind(order.action), seconds=order.seconds))
        return hit


class JumpingClock(SystemClock):
    """The machine's clock, off by what the orders of the round say."""

    def now_ms(self) -> int:
        directory = os.environ.get(ROUND_VARIABLE)
        shift_ms = Orders(Path(directory)).clock_shift_ms() if directory else 0
        return super().now_ms() + shift_ms
