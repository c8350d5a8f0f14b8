"""For tests: a clock that moves when told to, storage that fails, and storage whose power can be cut."""

from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from holdfast.testing.page_cache import PageCacheStorage, SyncOf

__all__ = ["Fault", "FaultKind", "FaultyStorage", "ManualClock", "PageCacheStorage", "SyncOf"]


def __dir__() -> list[str]:
    return sorted(__all__)
