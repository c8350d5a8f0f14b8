"""For tests: a clock that moves when told to, and storage that fails."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage

__all__ = ["Fault", "FaultKind", "FaultyStorage", "ManualClock"]


def __dir__() -> list[str]:
    return sorted(__all__)
