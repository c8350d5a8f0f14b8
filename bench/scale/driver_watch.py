"""Where the driver's time goes in an epoch, and what comes to it and leaves it.

Always true: nothing is changed but that calls are timed and bytes are counted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.protection.costs import Used, read_counters
from bench.soak import java_child
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.store.names import COMMITS
from holdfast.runtime.epoch import runner
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.epoch.runner import EpochRunner
from holdfast.storage.local_directory import LocalStorage

PHASES = {
    "plan": (Planner, "next"),
    "run": (EpochRunner, "run"),
    "commit": (Chain, "commit"),
    "publish": (Publishing, "show"),
}
"""Of these calls the driver's time is made; commit and publish go on beside the next epoch's run."""
COUNTED: Mapping[str, tuple[Any, str, Callable[..., int]]] = {
    "result_bytes": (runner, "decode_result", len),
    "commit_bytes": (
        LocalStorage, "put_new", lambda storage, name, data: len(data) * name.startswith(COMMITS),
    ),
}  # fmt: skip
"""Calls, and how many bytes count of their arguments."""


class DriverWatch:
    """Listens to a run from its first epoch on; the first `warm_up` epochs do not count."""

    def __init__(self, warm_up: int, measured: int) -> None:
        self._warm_up, self._measured = warm_up, measured
        self._spent: dict[str, list[float]] = defaultdict(list)
        self._at: list[float] = []
        self._seen: list[hf.Progress] = []
        self._sizes = dict.fromkeys(COUNTED, 0)
        self._counted: list[tuple[Used, dict[str, int]]] = []
        """When the first epoch that counts began, and when the last one ended."""
        for phase, (owner, name) in PHASES.items():
            setattr(owner, name, self._timed(phase, getattr(owner, name)))
        for size, (place, name, bytes_of) in COUNTED.items():
            setattr(place, name, self._counting(size, bytes_of, getattr(place, name)))

    def __call__(self, progress: hf.Progress) -> None:
        """A listener."""
        number = len(self._at)
        if progress.epochs_run <= len(self._seen) or number > self._warm_up + self._measured:
            return
        self._seen.append(progress)
        self._at.append(time.perf_counter())
        if number in (self._warm_up, self._warm_up + self._measured):
            self._counted.append((_used_here(), dict(self._sizes)))

    def figures(self) -> dict[str, Any]:
        """Medians over the epochs, in milliseconds, and how far they were apart."""
        assert len(self._counted) == 2, f"{len(self._at)} epochs are too few"
        counted = slice(self._warm_up, self._warm_up + self._measured)
        gaps = [(ended - begun) * 1_000 for begun, ended in pairwise(self._at)]
        seen = self._seen[counted.start + 1 : counted.stop + 1]
        (used_before, before), (used_after, after) = self._counted
        return {
            "epoch_ms": round(statistics.median(gaps[counted]), 1),
            "epoch_ms_min": round(min(gaps[counted]), 1),
            "epoch_ms_max": round(max(gaps[counted]), 1),
            **{f"{phase}_ms": self._median(phase) for phase in PHASES},
            "task_ms": round(statistics.median(sum(each.timings_ms.values()) for each in seen), 1),
            "driver_cpu_ms": round((used_after - used_before).cpu_seconds * 1_000 / self._measured, 1),
            "delta_bytes": round(statistics.median(each.delta_bytes for each in seen)),
            **{name: round((after[name] - before[name]) / self._measured) for name in COUNTED},
        }

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._spent[phase].append((time.perf_counter() - began) * 1_000)

        return timed

    def _counting(
        self, size: str, bytes_of: Callable[..., int], call: Callable[..., Any]
    ) -> Callable[..., Any]:
        @wraps(call)
        def counting(*arguments: Any) -> Any:
            self._sizes[size] += bytes_of(*arguments)
            return call(*arguments)

        return counting

    def _median(self, phase: str) -> float:
        """Of as many calls as there are epochs, but for those of the warm-up. Sinks have one each."""
        spent = self._spent[phase]
        return round(statistics.median(spent[len(spent) * self._warm_up // max(1, len(self._at)) :]), 1)


def _used_here() -> Used:
    """By this process and its Java part."""
    used = Used()
    for pid in (os.getpid(), java_child()):
        directory = Path(f"/proc/{pid}")
        used += read_counters((directory / "stat").read_text(), (directory / "io").read_text())
    return used
