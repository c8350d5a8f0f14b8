"""For tests: functions without Spark, checks for connectors of one's own (`holdfast.testing.conformance`), a
clock that moves when told to, and storage that fails."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from holdfast.testing.harness import Harness
from holdfast.testing.sqlite_lanes import SqliteLaneSink

__all__ = ["Fault", "FaultKind", "FaultyStorage", "Harness", "ManualClock", "SqliteLaneSink"]


def __dir__() -> list[str]:
    return sorted(__all__)
