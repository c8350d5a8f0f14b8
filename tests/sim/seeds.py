"""What the simulations have in common: a seed, what it finds, and many seeds one after the other."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.errors import HoldfastError
from tests.sim.controls import Control
from tests.sim.scheduler import Scheduler


class Found(AssertionError):
    """A seed whose simulation breaks an invariant; the text says which, and how to run it again."""

    def __init__(self, seed: int, again: str, problem: str, story: list[str]) -> None:
        super().__init__(seed, again, problem, story)
        self.seed, self.again, self.problem, self.story = seed, again, problem, story

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.problem}\nrun it again: {self.again}"


class Simulated(Protocol):
    """The world that a seed leaves."""

    seen: Counter[str]

    def told(self) -> list[str]: ...


class Weathered(Protocol):
    """What processes are up against."""

    @property
    def crash_chance(self) -> float: ...
    @property
    def pause_chance(self) -> float: ...
    @property
    def stay_chance(self) -> float: ...
    @property
    def steps_max(self) -> int: ...


@dataclass(frozen=True)
class Simulation:
    """`run`: one seed, with the safeguard of a control taken away, so many times longer than usual."""

    run: Callable[[int, str, int], Simulated]
    controls: Mapping[str, Control]

    def hunt(self, control: str, seeds: int) -> Found:
        """The first seed that finds out that the safeguard of `control` is gone."""
        for seed in range(seeds):
            try:
                self.run(seed, control, 1)
            except Found as found:
                if self.controls[control].finds not in found.problem:
                    raise
                return found
        raise AssertionError(f"{control} was not found in {seeds} seeds")

    def seen_over(self, seeds: Iterable[int]) -> Counter[str]:
        """What happened over these seeds, all of which must be green."""
        seen: Counter[str] = Counter()
        for seed in seeds:
            seen.update(self.run(seed, "", 1).seen)
        return seen


@contextmanager
def finding(world: Simulated, seed: int, control: str, stretch: int, option: str = "") -> Iterator[None]:
    """Found: what is run in it breaks an invariant."""
    try:
        yield
    except (AssertionError, HoldfastError) as problem:
        again = command(seed, control, stretch, option)
        raise Found(seed, again, str(problem) or repr(problem), world.told()) from problem


def command(seed: int, control: str = "", stretch: int = 1, option: str = "") -> str:
    """What runs one seed again and tells its story, from the top of the repository."""
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    of = f" {option}" if option else ""
    without = f" --control {control}" if control else ""
    longer = f" --stretch {stretch}" if stretch > 1 else ""
    return f"{shown} -m tests.sim{of} --seed {seed}{without}{longer}"


def scheduler_in(weather: Weathered, chance: random.Random) -> Scheduler:
    return Scheduler(
        chance,
        crash_chance=weather.crash_chance,
        pause_chance=weather.pause_chance,
        stay_chance=weather.stay_chance,
        steps_max=weather.steps_max,
    )
