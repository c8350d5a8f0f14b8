"""One simulation of a set of replicas, from a seed.

First a storm, then sometimes a quiet end: nothing fails any more, and as few members as suffice must come to
the end of the input: one, or most of those that vote.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from holdfast.runtime.epoch import publisher
from tests.sim.event_time import Violation
from tests.sim.habits import Habits
from tests.sim.leaders import loader
from tests.sim.replicas.controls import CONTROLS, SOUND, Control
from tests.sim.replicas.members import STEPS_PER_SECOND, Member
from tests.sim.replicas.set_world import SetWorld
from tests.sim.replicas.weather import SetWeather, drawn, stretched
from tests.sim.scheduler import Process, Scheduler
from tests.sim.seeds import Simulation, finding, scheduler_in
from tests.sim.threads import simulated_threads

CALM_STEPS_MAX = 20_000


def simulate(seed: int, control: str = "", stretch: int = 1) -> SetWorld:
    """Run one seed, with the safeguard of `control` taken away. Found: an invariant does not hold."""
    setup = CONTROLS[control] if control else SOUND
    chance = random.Random(seed)
    weather = stretched(drawn(chance, setup.season), stretch)
    world = _world(chance, weather)
    with finding(world, seed, control, stretch, "--replicas"), setup.applied():
        _storm(world, weather, setup)
        if chance.random() < weather.calm_chance:
            _calm(world, weather, setup)
    return world


SIMULATION = Simulation(simulate, CONTROLS)


def _world(chance: random.Random, weather: SetWeather) -> SetWorld:
    scheduler = scheduler_in(weather, chance)
    return SetWorld(
        scheduler, chance, fault_chance=weather.fault_chance, linger_chance=weather.linger_chance,
        members=weather.members, vote=weather.vote,
        liar=chance.randint(1, weather.members) if weather.liar else 0,
    )  # fmt: skip


def _storm(world: SetWorld, weather: SetWeather, setup: Control) -> None:
    scheduler, chance = world.scheduler, world.chance
    seats = [*range(1, weather.members + 1), *([0] if weather.spare else [])]
    with _standing_in(world):
        for seat in seats:
            name = "spare"[:1] if not seat else "abcdefgh"[seat - 1]
            member = Member(world, name, setup.parts, weather.habits, seat)
            scheduler.spawn(Process(name, seat * chance.choice((0, 0, 30))), member)
        scheduler.run()
    world.seen["pause"] += scheduler.pauses
    world.seen["crash"] += scheduler.crashes


def _calm(world: SetWorld, weather: SetWeather, setup: Control) -> None:
    steps, chance = world.scheduler.steps, world.chance
    world.seen["quiet end"] += 1
    world.scheduler = Scheduler(chance, steps_max=steps + CALM_STEPS_MAX)
    world.scheduler.steps = steps
    world.fault_chance, world.linger_chance, world.is_calm = 0.0, 0.0, True
    world.calm_from = len(world.chain)
    world.story.append((steps, "", "the storm is over", ""))
    for _, name, data in world.late:
        world.create(name, data)
    world.late = []
    world.available += 1
    to_the_end = Habits(
        lives=5, epochs=1_000, close_chance=1.0, news_chance=weather.habits.news_chance, rows=0, retain=50
    )
    with _standing_in(world):
        for seat in _living(world):
            name = f"z{seat}"
            member = Member(world, name, setup.parts, to_the_end, seat)
            asleep = steps
            if chance.random() < 0.2:
                # At first, or when the others wait for its vote.
                member.founds, member.shards = True, 2
                asleep += chance.choice((0, 80, 200))
            world.scheduler.spawn(Process(name, asleep), member)
        world.scheduler.run()
        if world.scheduler.over:
            raise Violation("nothing fails any more, but the members do not come to the end")
        world.check_end()


def _living(world: SetWorld) -> list[int]:
    """The seats of those that live: as few as suffice, or all."""
    seats = list(range(1, world.members + 1))
    if world.chance.random() < 0.4:
        return seats
    honest = [seat for seat in seats if seat != world.liar or not world.vote]
    world.chance.shuffle(honest)
    return honest[: world.members // 2 + 1 if world.vote else 1]


@contextmanager
def _standing_in(world: SetWorld) -> Iterator[None]:
    """Give the engine simulated threads, and simulated rows of staged files."""
    instead: list[tuple[Any, str, Any]] = [
        (publisher, "load_extent", loader(world)),
    ]
    with ExitStack() as standing, simulated_threads(lambda: world.scheduler, STEPS_PER_SECOND):
        for where in instead:
            standing.enter_context(patch.object(*where))
        yield
