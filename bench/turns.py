"""Contenders that take turns: median, spread and ratio of each, with the machine and its load before.

Taking turns lets what slows the machine down for a while slow all of them down. Whoever begins a round
changes from one to the next.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


def over_turns(turns: Sequence[Mapping[str, Any]], *figures: str) -> dict[str, Any]:
    """What one contender's turns come to: of these figures the medians, and the least and the most."""
    found = {**turns[0], "turns": len(turns)}
    for figure in figures:
        taken = [turn[figure] for turn in turns]
        found |= {figure: median(taken), f"{figure}_min": min(taken), f"{figure}_max": max(taken)}
    return found


def machine() -> str:
    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
        f"load at the start: {load}"
    )


@dataclass
class Turns:
    """`before` is called with a contender's name before each of its turns, outside of its time."""

    contenders: Mapping[str, Callable[[], object]]
    before: Callable[[str], object] = lambda name: None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, rounds: int, warm_up: int = 1) -> None:
        names = list(self.contenders)
        for number in range(-warm_up, rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                self.before(name)
                begun = time.perf_counter()
                self.contenders[name]()
                took = time.perf_counter() - begun
                if number >= 0:
                    self.seconds.setdefault(name, []).append(took)

    def ratio(self, name: str, base: str) -> float:
        """How many times as fast as the base, by medians."""
        return median(self.seconds[base]) / median(self.seconds[name])

    def show(self, rows: int, base: str) -> None:
        """A line for each contender."""
        wide = max(map(len, self.seconds))
        for name, seconds in self.seconds.items():
            print(
                f"{name:{wide}}  {median(seconds):8.3f} s ({min(seconds):.3f} to {max(seconds):.3f}, "
                f"{len(seconds)} turns)  {rows / median(seconds):12,.0f} rows/s  "
                f"{self.ratio(name, base):5.2f}x of {base}"
            )
