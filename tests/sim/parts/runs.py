"""One simulation of a job in parts, from a seed.

First a storm, then sometimes a quiet end: every part has a new leader, nothing fails any more, and all rows
must come through all parts, however little room the channels have, and a barrier with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from holdfast.runtime.epoch import publisher
from holdfast.runtime.parts import channel_source, coordinator, outlets
from holdfast.storage.checksums import read_extent
from tests.sim.event_time import Violation
from tests.sim.habits import Habits
from tests.sim.parts.contents import Content
from tests.sim.parts.controls import CONTROLS, Control
from tests.sim.parts.job_world import JobWorld, PartWorld
from tests.sim.parts.part_leaders import STEPS_PER_SECOND, JobClock, PartLeader
from tests.sim.parts.part_members import PartMember
from tests.sim.parts.savers import Saver
from tests.sim.parts.weather import JobWeather, drawn, stretched
from tests.sim.scheduler import Process, Scheduler
from tests.sim.seeds import Simulation, finding, scheduler_in
from tests.sim.threads import simulated_threads

SOUND = Control("")
QUIET_STEPS_MAX = 40_000


def simulate(seed: int, control: str = "", stretch: int = 1) -> JobWorld:
    """Run one seed, with the safeguard of `control` taken away. Found: an invariant does not hold."""
    setup = CONTROLS[control] if control else SOUND
    chance = random.Random(seed)
    weather = stretched(drawn(chance, setup.season), stretch)
    job = _job(chance, weather)
    with finding(job, seed, control, stretch, "--parts"), setup.applied(), _standing_in(job):
        _storm(job, weather, setup)
        if chance.random() < weather.calm_chance:
            _calm(job, setup)
    return job


SIMULATION = Simulation(simulate, CONTROLS)


def _job(chance: random.Random, weather: JobWeather) -> JobWorld:
    scheduler = scheduler_in(weather, chance)
    job = JobWorld(
        weather.shape, weather.interval, scheduler, chance, fault_chance=weather.fault_chance,
        linger_chance=weather.linger_chance,
    )  # fmt: skip
    job.ghost_chance, job.removes = weather.ghost_chance, weather.habits.without_chance > 0
    return job


def _storm(job: JobWorld, weather: JobWeather, setup: Control) -> None:
    scheduler = job.scheduler
    for part, world in job.parts.items():
        world.vote = weather.vote and world.members > 2
        for seat in range(1, world.members + 1) if world.members > 1 else ():
            member = PartMember(world, f"{part}{seat}", setup.parts, weather.habits, seat)
            scheduler.spawn(Process(f"{part}{seat}", job.chance.choice((0, 0, 30))), member)
        for name in "abc"[: job.chance.randint(*weather.leaders)] if world.members == 1 else "":
            asleep = Process(f"{part}{name}", job.chance.choice((0, 30, 80)))
            scheduler.spawn(asleep, PartLeader(world, f"{part}{name}", setup.parts, weather.habits))
    if weather.savepoints:
        savepoints = Saver(job, "s", weather.savepoints, weather.align_seconds)
        scheduler.spawn(Process("s", 40), savepoints)
    if weather.stops:
        stops = Saver(job, "s", weather.stops, weather.align_seconds, stops=True)
        scheduler.spawn(Process("s", 40), stops)
    scheduler.run()
    job.seen["pause"] += scheduler.pauses
    job.seen["crash"] += scheduler.crashes


def _calm(job: JobWorld, setup: Control) -> None:
    job.seen["quiet end"] += 1
    job.calm(Scheduler(job.chance, steps_max=job.scheduler.steps + QUIET_STEPS_MAX))
    # A turn takes a step at least: a part that never comes to its end uses up the steps first.
    to_the_end = Habits(lives=1, epochs=QUIET_STEPS_MAX)
    for part, world in job.parts.items():
        world.available += 1
        if world.members > 1:
            _calm_set(job, world, setup)
            continue
        leader = PartLeader(world, f"{part}z", setup.parts, to_the_end)
        job.scheduler.spawn(Process(f"{part}z"), leader)
    last = Saver(job, "t", 100, 100.0, once=True)
    job.scheduler.spawn(Process("t"), last)
    job.scheduler.run()
    if job.scheduler.over:
        raise Violation("nothing fails any more, but the job does not come to its end")
    job.check_end()
    if not last.taken:
        raise Violation("nothing fails any more, but no barrier comes through all parts")


def _calm_set(job: JobWorld, world: PartWorld, setup: Control) -> None:
    """As few members as suffice."""
    to_the_end = Habits(lives=5, epochs=QUIET_STEPS_MAX, rows=0)
    for seat in range(1, world.members // 2 + 2 if world.vote else 2):
        member = PartMember(world, f"{world.part}z{seat}", setup.parts, to_the_end, seat)
        job.scheduler.spawn(Process(f"{world.part}z{seat}"), member)


@contextmanager
def _standing_in(job: JobWorld) -> Iterator[None]:
    """Give the engine simulated threads, storage and time, and simulated rows of staged files."""

    def load(url: str, extent: Any) -> Content:
        return Content.of(read_extent(job.storage(url), extent))

    instead: list[tuple[Any, str, Any]] = [
        (publisher, "load_extent", load),
        (channel_source, "open_storage", job.storage),
        (channel_source, "SystemClock", partial(JobClock, job)),
        (coordinator, "LASTS_SECONDS", 6.0),
        (outlets, "open_storage", job.storage),
    ]
    with ExitStack() as standing, simulated_threads(lambda: job.scheduler, STEPS_PER_SECOND):
        for where in instead:
            standing.enter_context(patch.object(*where))
        yield
