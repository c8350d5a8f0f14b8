"""A clock that moves only when told to."""

from __future__ import annotations

import threading
from datetime import timedelta


class ManualClock:
    """Time stands still until `advance` or `sleep`; sleeping returns at once. Threads may share it."""

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed = timedelta()
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed // timedelta(milliseconds=1)

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def sleep(self, seconds: float) -> None:
        self.advance(timedelta(seconds=seconds))

    def advance(self, by: timedelta) -> None:
        assert by >= timedelta(), f"time does not go back: {by}"
        with self._lock:
            self._elapsed += by

    def jump(self, by: timedelta) -> None:
        """Move the wall clock alone, either way, as an administrator or NTP may."""
        with self._lock:
            self._start_ms += by // timedelta(milliseconds=1)
