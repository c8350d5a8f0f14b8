"""One simulation from a seed, and many of them.

First a storm: leaders and copiers are paused and crash, storage fails. Then some simulations are taken to a
quiet end: every lost write has landed, nothing fails any more, and a new leader must be able to go on, to the
end of the input.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast.checkpoint.chain.history import History
from holdfast.runtime.epoch import publisher
from tests.sim.controls import CONTROLS, SOUND, Control
from tests.sim.copiers import Copier
from tests.sim.event_time import Violation
from tests.sim.habits import Habits
from tests.sim.leaders import Leader, loader
from tests.sim.scheduler import Process, Scheduler
from tests.sim.seeds import Simulation, finding, scheduler_in
from tests.sim.storage import SimStorage
from tests.sim.threads import simulated_threads
from tests.sim.weather import Weather, drawn, plain, stretched
from tests.sim.world import World


def simulate(seed: int, control: str = "", stretch: int = 1) -> World:
    """Run one seed, with the safeguard of `control` taken away. Found: an invariant does not hold.

    `stretch`: how many times longer than usual; the seed then tells another story.
    """
    setup = {**CONTROLS, **SOUND}[control]
    chance = random.Random(seed)
    weather = stretched(drawn(chance, setup.season), stretch)
    weather = plain(weather) if setup.plain else weather
    world = _world(chance, weather, setup)
    with finding(world, seed, control, stretch), setup.applied():
        _storm(world, weather, setup)
        if chance.random() < weather.calm_chance:
            _calm(world, setup)
    return world


SIMULATION = Simulation(simulate, CONTROLS)


def _world(chance: random.Random, weather: Weather, setup: Control) -> World:
    scheduler = scheduler_in(weather, chance)
    return setup.world(
        scheduler, chance, fault_chance=weather.fault_chance, linger_chance=weather.linger_chance
    )


def _storm(world: World, weather: Weather, setup: Control) -> None:
    scheduler = world.scheduler
    with _standing_in(world):
        for number, name in enumerate("abc"[: weather.leaders]):
            # One after the other: a first leader gets somewhere before the next takes over.
            asleep = Process(name, number * world.chance.choice((0, 30, 80)))
            scheduler.spawn(asleep, Leader(world, name, setup.parts, weather.habits))
        if weather.copies:
            scheduler.spawn(Process("p"), Copier(world, "p", copies=weather.copies))
        scheduler.run()
    world.seen["pause"] += scheduler.pauses


def _calm(world: World, setup: Control) -> None:
    steps, before = world.scheduler.steps, len(world.chain)
    world.seen["quiet end"] += 1
    world.scheduler = Scheduler(world.chance)
    world.scheduler.steps = steps
    world.fault_chance = world.linger_chance = 0.0
    world.away_until = world.refuses_until = 0
    world.story.append((steps, "", "the storm is over", ""))
    for _, name, data in world.late:
        world.create(name, data)
    world.late = []
    with _standing_in(world):
        world.available += 1
        to_the_end = Habits(lives=1, epochs=1_000, close_chance=1.0)
        world.scheduler.spawn(Process("z"), Leader(world, "z", setup.parts, to_the_end))
        world.scheduler.run()
        if len(world.chain) == before:
            raise Violation("nothing fails any more, but the last leader has committed nothing")
        world.check_whole()
        if not setup.plain:
            world.scheduler.spawn(Process("check"), lambda: _check_readable(world))
            world.scheduler.run()


def _check_readable(world: World) -> None:
    history = History(SimStorage(world))
    newest = history.load()
    for number in range(newest.retained_from, newest.number + 1):
        if history.view_at(number) != world.views[number]:
            raise Violation(f"commit {number} reads back as another checkpoint than was committed")


@contextmanager
def _standing_in(world: World) -> Iterator[None]:
    """Give the engine simulated threads, and simulated rows of staged files."""
    with simulated_threads(lambda: world.scheduler), patch.object(publisher, "load_extent", loader(world)):
        yield
