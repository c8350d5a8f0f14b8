"""What befalls the processes of a job in parts, drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.sim.habits import Habits
from tests.sim.parts.shapes import SHAPES, WINDOWED, Shape


@dataclass(frozen=True)
class JobWeather:
    """Chances are per call to the world outside."""

    shape: Shape
    leaders: tuple[int, int] = (1, 2)
    """Of each part: at least and at most."""
    savepoints: int = 0
    stops: int = 0
    """With a savepoint, one after the other; after each the job is started again."""
    interval: float = 0.0
    """Of barriers that come by themselves, in seconds; 0: none do."""
    align_seconds: float = 4.0
    steps_max: int = 900
    stay_chance: float = 0.7
    crash_chance: float = 0.0
    pause_chance: float = 0.003
    fault_chance: float = 0.0
    linger_chance: float = 0.0
    ghost_chance: float = 0.0
    """Of a commit whose number is taken being written again much later."""
    calm_chance: float = 0.3
    vote: bool = False
    """Whether members of sets of replicas vote."""
    limit: int = 0
    """Of epochs that wait in a channel; 0: any."""
    habits: Habits = field(default_factory=Habits)


def drawn(chance: random.Random, season: str = "") -> JobWeather:
    """`season`: that one; empty: any."""
    weather = SEASONS[season or chance.choice(list(SEASONS))](chance)
    limit = weather.limit or chance.choice((1, 2, 4))
    links = {uid: replace(link, limit=limit) for uid, link in weather.shape.links.items()}
    return replace(weather, shape=replace(weather.shape, links=links))


def stretched(weather: JobWeather, times: int) -> JobWeather:
    habits = replace(weather.habits, lives=weather.habits.lives * times)
    return replace(weather, steps_max=weather.steps_max * times, habits=habits)


def _shape(chance: random.Random, *names: str) -> Shape:
    return {**SHAPES, **WINDOWED}[chance.choice(names or tuple(SHAPES))]


def _mixed(chance: random.Random) -> JobWeather:
    return JobWeather(
        shape=_shape(chance),
        savepoints=chance.choice((0, 4)),
        steps_max=chance.choice((500, 900)),
        stay_chance=chance.choice((0.5, 0.8)),
        crash_chance=chance.choice((0.0, 0.002, 0.005)),
        pause_chance=chance.choice((0.002, 0.01)),
        fault_chance=chance.choice((0.0, 0.01, 0.03)),
        linger_chance=chance.choice((0.0, 0.2)),
        habits=Habits(
            retain=chance.choice((1, 2, 3)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=4,
            epochs=chance.choice((8, 30)),
            rewind_chance=chance.choice((0.0, 0.3)),
            recode_chance=chance.choice((0.0, 0.3)),
            rows=chance.choice((6, 12)),
        ),
    )


def _rewinds(chance: random.Random) -> JobWeather:
    """Parts go back again and again, each in its own time."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain", "diamond"),
        leaders=(1, 1),
        savepoints=chance.choice((0, 3)),
        crash_chance=chance.choice((0.0, 0.002)),
        habits=Habits(
            retain=chance.choice((2, 3, 4)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=8,
            epochs=chance.choice((6, 14)),
            barrier_chance=chance.choice((0.3, 0.8)),
            rewind_chance=0.5,
            recode_chance=chance.choice((0.0, 0.3)),
            rows=8,
        ),
    )


def _savepoints(chance: random.Random) -> JobWeather:
    """Barrier after barrier goes through the job, while parts die and come back."""
    return JobWeather(
        shape=_shape(chance, "chain", "diamond", "diamond", "joined"),
        savepoints=chance.choice((0, 10)),
        interval=chance.choice((0.0, 1.0, 2.0)),
        align_seconds=chance.choice((2.0, 6.0)),
        steps_max=1_000,
        stay_chance=0.5,
        crash_chance=chance.choice((0.0, 0.001, 0.003)),
        pause_chance=chance.choice((0.0, 0.005)),
        habits=Habits(
            retain=chance.choice((1, 2, 4)),
            lives=4,
            epochs=chance.choice((15, 40)),
            barrier_chance=chance.choice((0.3, 0.8)),
            rewind_chance=chance.choice((0.0, 0.2)),
            rows=14,
        ),
    )


def _stops(chance: random.Random) -> JobWeather:
    """The whole job is stopped with a savepoint again and again, while leaders die at its barriers."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain", "diamond", "joined", "apart", "apart"),
        leaders=(1, 1),
        stops=8,
        interval=chance.choice((0.0, 1.0)),
        align_seconds=chance.choice((4.0, 8.0)),
        steps_max=1_400,
        stay_chance=0.5,
        crash_chance=chance.choice((0.002, 0.004)),
        pause_chance=chance.choice((0.0, 0.005)),
        fault_chance=chance.choice((0.0, 0.03)),
        calm_chance=0.4,
        habits=Habits(
            retain=chance.choice((2, 4)), lives=20, epochs=60, barrier_chance=chance.choice((0.3, 0.8)),
            rows=chance.choice((8, 20)), rewind_chance=chance.choice((0.0, 0.7)),
        ),
    )  # fmt: skip


def _ends(chance: random.Random) -> JobWeather:
    """Input ends, and there is more of it when the part begins again."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain", "diamond"),
        leaders=(1, 1),
        savepoints=chance.choice((0, 8)),
        interval=chance.choice((0.0, 0.6)),
        align_seconds=4.0,
        steps_max=chance.choice((600, 900)),
        crash_chance=chance.choice((0.0, 0.002)),
        pause_chance=chance.choice((0.002, 0.01)),
        habits=Habits(
            retain=2,
            lives=12,
            epochs=12,
            barrier_chance=0.7,
            rows=chance.choice((2, 4)),
            rest=chance.choice((0, 60, 200)),
        ),
    )


def _sleepers(chance: random.Random) -> JobWeather:
    """Leaders and readers wake up when what they knew was retired long ago."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain"),
        leaders=(2, 2),
        savepoints=chance.choice((0, 3)),
        steps_max=900,
        linger_chance=chance.choice((0.1, 0.3)),
        pause_chance=0.01,
        calm_chance=0.1,
        limit=50,
        habits=Habits(
            retain=1,
            manifest_every=chance.choice((1, 2)),
            lives=3,
            epochs=40,
            rows=30,
            barrier_chance=0.9,
            nap_chance=0.05,
        ),
    )


def _ghosts(chance: random.Random) -> JobWeather:
    """Commits that came too late are written when their numbers are used and retired; readers oversleep."""
    return JobWeather(
        shape=_shape(chance, "pair"),
        leaders=(2, 2),
        steps_max=900,
        stay_chance=0.6,
        ghost_chance=1.0,
        calm_chance=0.1,
        limit=50,
        habits=Habits(
            retain=1, manifest_every=1, lives=8, epochs=chance.choice((8, 20)), rows=16, barrier_chance=1.0,
            nap_chance=0.3,
        ),
    )  # fmt: skip


def _losses(chance: random.Random) -> JobWeather:
    """The last part loses its newest commit between lives, after the parts before have seen it."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain", "diamond", *WINDOWED),
        leaders=(1, 1),
        crash_chance=chance.choice((0.0, 0.003)),
        habits=Habits(
            retain=3,
            manifest_every=chance.choice((1, 2, 4)),
            lives=8,
            epochs=chance.choice((8, 14)),
            rows=8,
            lose_last_chance=0.7,
        ),
    )


def _damage(chance: random.Random) -> JobWeather:
    """Files in channels are damaged, before they are read and after."""
    return JobWeather(
        shape=_shape(chance, "pair", "chain", "diamond"),
        leaders=chance.choice(((1, 1), (1, 2))),
        steps_max=1_200,
        crash_chance=chance.choice((0.0, 0.002)),
        fault_chance=chance.choice((0.0, 0.01)),
        calm_chance=0.5,
        habits=Habits(
            retain=chance.choice((2, 4, 6)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=6,
            epochs=chance.choice((14, 40)),
            rows=10,
            barrier_chance=chance.choice((0.5, 0.9)),
            rewind_chance=chance.choice((0.0, 0.2)),
            nap_chance=0.05,
            spoil_chance=chance.choice((0.1, 0.3)),
        ),
    )


def _repairs(chance: random.Random) -> JobWeather:
    """Damaged files are soon restored, while readers that have asked for them go back behind that."""
    return JobWeather(
        shape=_shape(chance, "pair"),
        leaders=chance.choice(((1, 1), (1, 2))),
        steps_max=1_200,
        stay_chance=0.5,
        pause_chance=0.01,
        calm_chance=0.2,
        habits=Habits(
            retain=chance.choice((4, 8)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=14,
            epochs=chance.choice((4, 8)),
            rows=14,
            barrier_chance=0.9,
            rewind_chance=0.6,
            nap_chance=0.05,
            spoil_chance=0.4,
        ),
    )


def _replays(chance: random.Random) -> JobWeather:
    """A part saves no state: whenever it begins, it reads again what its open windows are made of."""
    return JobWeather(
        shape=_shape(chance, *WINDOWED),
        leaders=chance.choice(((1, 1), (1, 2))),
        savepoints=chance.choice((0, 0, 4)),
        interval=chance.choice((0.0, 0.0, 1.0)),
        steps_max=1_400,
        crash_chance=chance.choice((0.0, 0.002, 0.004)),
        fault_chance=chance.choice((0.0, 0.01)),
        calm_chance=0.4,
        habits=Habits(
            retain=chance.choice((1, 2, 4)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=8,
            epochs=chance.choice((8, 14)),
            barrier_chance=chance.choice((0.4, 0.8)),
            rewind_chance=chance.choice((0.0, 0.3)),
            recode_chance=chance.choice((0.0, 0.3)),
            rows=10,
        ),
    )


def _damaged_replays(chance: random.Random) -> JobWeather:
    """Files are damaged in channels that a part without saved state reads and fills."""
    weather = _replays(chance)
    habits = replace(
        weather.habits,
        retain=chance.choice((2, 4, 6)),
        nap_chance=0.05,
        spoil_chance=chance.choice((0.1, 0.3)),
    )
    return replace(weather, savepoints=0, interval=0.0, habits=habits)


def _removals(chance: random.Random) -> JobWeather:
    """The job is without the channels of a part for a while, and then has them again."""
    return JobWeather(
        shape=_shape(chance, "pair", "diamond"),
        leaders=chance.choice(((1, 1), (1, 2))),
        crash_chance=chance.choice((0.0, 0.002)),
        fault_chance=chance.choice((0.0, 0.01)),
        calm_chance=0.0,
        habits=Habits(
            retain=chance.choice((1, 3)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=8,
            epochs=chance.choice((6, 14)),
            rows=8,
            rest=chance.choice((0, 60)),
            nap_chance=chance.choice((0.0, 0.1)),
            without_chance=0.3,
        ),
    )


def _replicas(chance: random.Random) -> JobWeather:
    """One part is led by a set of replicas: it sends into channels, reads from them, or both."""
    shape = _shape(chance, "pair", "chain", "diamond")
    vote = chance.random() < 0.3
    replicated = chance.choice(shape.parts)
    return JobWeather(
        shape=replace(shape, members={replicated: 3 if vote else 2}),
        leaders=(1, 1),
        vote=vote,
        savepoints=chance.choice((0, 4)),
        interval=chance.choice((0.0, 0.0, 1.0)),
        steps_max=1_200,
        stay_chance=chance.choice((0.5, 0.8)),
        crash_chance=chance.choice((0.0, 0.002, 0.004)),
        pause_chance=chance.choice((0.002, 0.01)),
        fault_chance=chance.choice((0.0, 0.01)),
        linger_chance=chance.choice((0.0, 0.1)),
        calm_chance=0.5,
        habits=Habits(
            retain=chance.choice((1, 2, 4)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=5,
            epochs=chance.choice((8, 20)),
            rewind_chance=chance.choice((0.0, 0.3)),
            recode_chance=chance.choice((0.0, 0.2)),
            rows=chance.choice((6, 12)),
        ),
    )


SEASONS: dict[str, Callable[[random.Random], JobWeather]] = {
    "mixed": _mixed,
    "rewinds": _rewinds,
    "savepoints": _savepoints,
    "stops": _stops,
    "ends": _ends,
    "sleepers": _sleepers,
    "ghosts": _ghosts,
    "losses": _losses,
    "damage": _damage,
    "repairs": _repairs,
    "replays": _replays,
    "damaged-replays": _damaged_replays,
    "removals": _removals,
    "replicas": _replicas,
}
