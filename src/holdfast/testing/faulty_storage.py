"""Storage that fails on purpose, for tests: the one that `holdfast chaos` uses, over a clock that tests hold.

Power cuts are in `page_cache`.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.chaos.inside.faulty_storage import Fault, FaultKind
from holdfast.chaos.inside.faulty_storage import FaultyStorage as _FaultyStorage
from holdfast.clock import Clock
from holdfast.storage.contract import Storage
from holdfast.testing.clocks import ManualClock

__all__ = ["Fault", "FaultKind", "FaultyStorage"]


class FaultyStorage(_FaultyStorage):
    """Delays pass at once, unless a clock is given."""

    def __init__(
        self, inner: Storage, faults: Iterable[Fault] = (), *, clock: Clock | None = None, seed: int = 0
    ) -> None:
        super().__init__(inner, faults, clock=clock or ManualClock(), seed=seed)
