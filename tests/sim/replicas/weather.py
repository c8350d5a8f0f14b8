"""What befalls the members of a set of replicas, drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.sim.habits import Habits


@dataclass(frozen=True)
class SetWeather:
    """Chances are per call to the world outside."""

    members: int = 2
    vote: bool = False
    liar: bool = False
    spare: bool = False
    """One more machine, which takes any seat, also one that is held."""
    steps_max: int = 500
    stay_chance: float = 0.7
    crash_chance: float = 0.0
    pause_chance: float = 0.01
    fault_chance: float = 0.0
    linger_chance: float = 0.0
    calm_chance: float = 0.4
    habits: Habits = field(default_factory=Habits)


def drawn(chance: random.Random, season: str = "") -> SetWeather:
    """`season`: that one; empty: any."""
    return SEASONS[season or chance.choice(list(SEASONS))](chance)


def stretched(weather: SetWeather, times: int) -> SetWeather:
    habits = replace(weather.habits, lives=weather.habits.lives * times)
    return replace(weather, steps_max=weather.steps_max * times, habits=habits)


def _mixed(chance: random.Random) -> SetWeather:
    vote = chance.random() < 0.3
    return SetWeather(
        members=3 if vote else chance.choice((2, 2, 3)),
        vote=vote,
        spare=chance.random() < 0.4,
        steps_max=chance.choice((300, 600)),
        stay_chance=chance.choice((0.5, 0.8)),
        crash_chance=chance.choice((0.0, 0.002, 0.005)),
        pause_chance=chance.choice((0.005, 0.02)),
        fault_chance=chance.choice((0.0, 0.01, 0.03)),
        linger_chance=chance.choice((0.0, 0.2)),
        habits=Habits(
            retain=chance.choice((1, 2, 3)),
            manifest_every=chance.choice((1, 2, 4)),
            sweep_every=chance.choice((1, 2)),
            lives=chance.choice((2, 4)),
            epochs=chance.choice((8, 20)),
            rewind_chance=chance.choice((0.0, 0.0, 0.2)),
            recode_chance=chance.choice((0.0, 0.2)),
            rescale_chance=chance.choice((0.0, 0.2)),
            snapshot_chance=chance.choice((0.0, 0.4)),
            rows=12,
            news_chance=chance.choice((0.0, 0.1)),
            forget_chance=chance.choice((0.0, 0.2)),
            sink_knows=chance.random() < 0.5,
        ),
    )


def _together(chance: random.Random) -> SetWeather:
    """Members run side by side for long, and little befalls them."""
    return SetWeather(
        members=chance.choice((2, 3)),
        steps_max=800,
        stay_chance=chance.choice((0.3, 0.7)),
        pause_chance=chance.choice((0.0, 0.01)),
        habits=Habits(
            retain=chance.choice((2, 3)), lives=2, epochs=40, rows=40, news_chance=chance.choice((0.0, 0.2)),
            forget_chance=0.3, snapshot_chance=0.3,
        ),
    )  # fmt: skip


def _sleepers(chance: random.Random) -> SetWeather:
    """Members wake up when what they were about to write was retired long ago."""
    return SetWeather(
        members=3,
        spare=chance.random() < 0.5,
        steps_max=900,
        linger_chance=chance.choice((0.2, 0.4)),
        fault_chance=chance.choice((0.0, 0.005)),
        habits=Habits(
            retain=1, manifest_every=chance.choice((1, 2)), lives=3, epochs=40, rows=60,
            news_chance=chance.choice((0.0, 0.1)),
        ),
    )  # fmt: skip


def _rewinds(chance: random.Random) -> SetWeather:
    """A member finds damage and takes history back while the others go on."""
    vote = chance.random() < 0.3
    return SetWeather(
        members=3 if vote else 2,
        vote=vote,
        steps_max=700,
        crash_chance=chance.choice((0.0, 0.003)),
        pause_chance=chance.choice((0.005, 0.02)),
        habits=Habits(
            retain=chance.choice((2, 3, 4)),
            manifest_every=chance.choice((1, 2)),
            lives=6,
            epochs=chance.choice((4, 10)),
            rewind_chance=0.4,
            recode_chance=chance.choice((0.0, 0.2)),
            rescale_chance=chance.choice((0.0, 0.3)),
            rows=8,
            news_chance=chance.choice((0.0, 0.1)),
            sink_knows=chance.random() < 0.5,
        ),
    )


def _votes(chance: random.Random) -> SetWeather:
    """Members vote, and one of them may lie."""
    return SetWeather(
        members=chance.choice((3, 3, 4)),
        vote=True,
        liar=chance.random() < 0.7,
        spare=chance.random() < 0.3,
        steps_max=900,
        crash_chance=chance.choice((0.0, 0.002)),
        pause_chance=chance.choice((0.0, 0.01)),
        fault_chance=chance.choice((0.0, 0.01)),
        calm_chance=0.7,
        habits=Habits(
            lives=4, epochs=20, rows=10, news_chance=chance.choice((0.0, 0.1)),
            rescale_chance=chance.choice((0.0, 0.3)), recode_chance=chance.choice((0.0, 0.3)),
            rewind_chance=chance.choice((0.0, 0.1)),
        ),
    )  # fmt: skip


def _lies(chance: random.Random) -> SetWeather:
    """Members do not vote, and one of them lies: its results may count, and the others are told."""
    return SetWeather(
        members=chance.choice((2, 3)), liar=True, steps_max=600, crash_chance=chance.choice((0.0, 0.002)),
        habits=Habits(lives=3, epochs=20, rows=20, news_chance=chance.choice((0.0, 0.1))),
    )  # fmt: skip


def _ends(chance: random.Random) -> SetWeather:
    """The input ends again and again, and more of it comes."""
    vote = chance.random() < 0.3
    return SetWeather(
        members=3 if vote else chance.choice((2, 3)),
        vote=vote,
        spare=chance.random() < 0.3,
        steps_max=600,
        crash_chance=chance.choice((0.0, 0.005)),
        pause_chance=chance.choice((0.005, 0.03)),
        habits=Habits(
            lives=8,
            epochs=12,
            close_chance=0.9,
            rows=chance.choice((2, 5)),
            news_chance=chance.choice((0.0, 0.2)),
            rescale_chance=chance.choice((0.0, 0.2)),
            snapshot_chance=0.3,
            sink_knows=chance.random() < 0.5,
        ),
    )


def _snapshots(chance: random.Random) -> SetWeather:
    """Members take snapshots, name them late, and give commits up soon."""
    return SetWeather(
        members=3, steps_max=900, stay_chance=0.5, pause_chance=0.02,
        habits=Habits(
            retain=chance.choice((1, 2)), lives=2, epochs=60, rows=60, snapshot_chance=0.8,
            news_chance=chance.choice((0.0, 0.1)),
        ),
    )  # fmt: skip


def _damaged_plans(chance: random.Random) -> SetWeather:
    """Plans that no member can read."""
    vote = chance.random() < 0.4
    return SetWeather(
        members=3 if vote else 2,
        vote=vote,
        spare=True,
        steps_max=600,
        crash_chance=chance.choice((0.003, 0.01)),
        habits=Habits(lives=6, epochs=12, rows=8, damage_chance=0.6, news_chance=chance.choice((0.0, 0.1))),
    )


SEASONS: dict[str, Callable[[random.Random], SetWeather]] = {
    "mixed": _mixed,
    "together": _together,
    "sleepers": _sleepers,
    "rewinds": _rewinds,
    "votes": _votes,
    "lies": _lies,
    "ends": _ends,
    "damaged plans": _damaged_plans,
    "snapshots": _snapshots,
}
