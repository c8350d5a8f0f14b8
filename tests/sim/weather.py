"""What befalls the processes of one simulation, drawn from its seed.

Everything at once would hide more than it finds, so each seed has a season in which some things are common
and others are rare.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.sim.habits import Habits


@dataclass(frozen=True)
class Weather:
    """Chances are per call to the world outside."""

    leaders: int = 2
    copies: int = 0
    steps_max: int = 200
    stay_chance: float = 0.7
    crash_chance: float = 0.0
    pause_chance: float = 0.01
    fault_chance: float = 0.0
    linger_chance: float = 0.0
    """Of a long sleep just before a commit, a floor or a pin is written."""
    calm_chance: float = 0.3
    """Of a quiet end; it costs as much as half a storm."""
    habits: Habits = field(default_factory=Habits)


def drawn(chance: random.Random, season: str = "") -> Weather:
    """`season`: that one; empty: any."""
    return SEASONS[season or chance.choice(list(SEASONS))](chance)


def stretched(weather: Weather, times: int) -> Weather:
    """Longer storms reach what takes many commits to come about."""
    habits = replace(weather.habits, lives=weather.habits.lives * times)
    return replace(weather, steps_max=weather.steps_max * times, habits=habits)


def plain(weather: Weather) -> Weather:
    """With neither rewinds nor copies."""
    return replace(weather, copies=0, habits=replace(weather.habits, rewind_chance=0.0))


def _mixed(chance: random.Random) -> Weather:
    return Weather(
        leaders=chance.choice((2, 3)),
        copies=chance.choice((0, 6)),
        steps_max=chance.choice((60, 120, 200)),
        stay_chance=chance.choice((0.5, 0.8)),
        crash_chance=chance.choice((0.0, 0.003, 0.01)),
        pause_chance=chance.choice((0.005, 0.02, 0.05)),
        fault_chance=chance.choice((0.0, 0.01, 0.04)),
        linger_chance=chance.choice((0.0, 0.2)),
        habits=Habits(
            retain=chance.choice((1, 2, 3)),
            manifest_every=chance.choice((1, 2, 4)),
            sweep_every=chance.choice((1, 2)),
            lives=chance.choice((1, 2, 4)),
            epochs=chance.choice((3, 10)),
            rewind_chance=chance.choice((0.0, 0.3)),
            recode_chance=chance.choice((0.0, 0.5)),
            snapshot_chance=chance.choice((0.0, 0.5)),
            rescale_chance=chance.choice((0.0, 0.5)),
            unreported_chance=chance.choice((0.0, 0.2)),
            rows=chance.choice((4, 12)),
            sink_knows=chance.random() < 0.5,
        ),
    )


def _sleepers(chance: random.Random) -> Weather:
    """Leaders wake up when what they were about to write was retired long ago."""
    return Weather(
        steps_max=200,
        linger_chance=chance.choice((0.2, 0.5)),
        fault_chance=chance.choice((0.0, 0.005)),
        habits=Habits(
            retain=1, manifest_every=chance.choice((1, 2)), epochs=20, lives=2, snapshot_chance=0.3, rows=40
        ),
    )


def _copies(chance: random.Random) -> Weather:
    """Somebody reads pinned commits while the job runs fast."""
    return Weather(
        leaders=chance.choice((1, 2)),
        copies=8,
        steps_max=160,
        stay_chance=0.5,
        crash_chance=chance.choice((0.0, 0.003)),
        habits=Habits(retain=chance.choice((1, 2)), manifest_every=1, epochs=20, lives=2, rows=40),
    )


def _rewinds(chance: random.Random) -> Weather:
    """History goes back again and again, under changing code, and is retired before it is replayed."""
    return Weather(
        leaders=chance.choice((1, 2)),
        steps_max=180,
        crash_chance=chance.choice((0.0, 0.01)),
        pause_chance=chance.choice((0.005, 0.02)),
        linger_chance=chance.choice((0.0, 0.1)),
        habits=Habits(
            retain=chance.choice((2, 3)),
            manifest_every=chance.choice((1, 1, 2)),
            lives=6,
            epochs=chance.choice((2, 4)),
            barrier_chance=chance.choice((0.3, 0.8)),
            rewind_chance=chance.choice((0.3, 0.6)),
            recode_chance=chance.choice((0.0, 0.5)),
            rescale_chance=chance.choice((0.0, 0.5)),
            unreported_chance=chance.choice((0.0, 0.5)),
            rows=8,
            sink_knows=chance.random() < 0.5,
        ),
    )


def _faults(chance: random.Random) -> Weather:
    """Storage answers wrongly, late or not at all."""
    return Weather(
        steps_max=120,
        fault_chance=chance.choice((0.04, 0.08)),
        habits=Habits(lives=4, epochs=10, sink_knows=chance.random() < 0.5),
    )


def _losses(chance: random.Random) -> Weather:
    """The newest commit is lost between lives, and what the sink shows of it is not."""
    return Weather(
        leaders=1,
        steps_max=200,
        crash_chance=chance.choice((0.003, 0.01)),
        habits=Habits(
            retain=3,
            manifest_every=chance.choice((1, 2, 4)),
            lives=6,
            epochs=chance.choice((2, 5)),
            barrier_chance=chance.choice((0.3, 0.8)),
            recode_chance=chance.choice((0.0, 0.5)),
            rescale_chance=chance.choice((0.0, 0.3)),
            unreported_chance=chance.choice((0.0, 0.3)),
            rows=6,
            lose_chance=0.7,
        ),
    )


def _replays(chance: random.Random) -> Weather:
    """Other code plans again what sinks show, and other times are reported of the same rows."""
    return Weather(
        leaders=1,
        steps_max=240,
        crash_chance=chance.choice((0.0, 0.003)),
        habits=Habits(
            retain=4,
            manifest_every=4,
            lives=8,
            epochs=4,
            barrier_chance=chance.choice((0.3, 0.8)),
            rewind_chance=0.7,
            recode_chance=0.7,
            rescale_chance=chance.choice((0.0, 0.5)),
            unreported_chance=0.5,
            rows=10,
        ),
    )


def _ends(chance: random.Random) -> Weather:
    """The input ends again and again, more of it comes, and timers are all that there is to do."""
    return Weather(
        leaders=chance.choice((1, 2, 3)),
        steps_max=160,
        crash_chance=chance.choice((0.003, 0.02)),
        pause_chance=chance.choice((0.01, 0.05)),
        linger_chance=chance.choice((0.0, 0.3)),
        habits=Habits(
            manifest_every=chance.choice((1, 2, 4)),
            lives=8,
            epochs=8,
            barrier_chance=chance.choice((0.3, 0.8)),
            recode_chance=chance.choice((0.0, 0.3)),
            rescale_chance=chance.choice((0.0, 0.5)),
            snapshot_chance=0.5,
            unreported_chance=chance.choice((0.0, 0.4)),
            close_chance=chance.choice((0.3, 0.8)),
            rows=chance.choice((3, 6)),
            sink_knows=chance.random() < 0.5,
        ),
    )


def _rivals(chance: random.Random) -> Weather:
    """Leaders that live at the same time plan the same rows, with other times reported of them: the one goes
    on from what another has committed, and finds what it planned itself."""
    return Weather(
        leaders=3,
        steps_max=300,
        stay_chance=0.85,
        pause_chance=chance.choice((0.01, 0.05)),
        linger_chance=chance.choice((0.5, 0.8)),
        habits=Habits(
            retain=chance.choice((2, 4)),
            manifest_every=chance.choice((1, 2, 4)),
            lives=6,
            epochs=10,
            barrier_chance=chance.choice((0.3, 0.6)),
            recode_chance=chance.choice((0.0, 0.2)),
            unreported_chance=0.5,
            rows=20,
            slice_rows=(2, 2),
            sink_knows=chance.random() < 0.5,
        ),
    )


def _outages(chance: random.Random) -> Weather:
    """The sink is not there for a while, or refuses, again and again, while rows come all the time."""
    return Weather(
        leaders=chance.choice((1, 1, 2)),
        steps_max=400,
        crash_chance=chance.choice((0.0, 0.003)),
        fault_chance=chance.choice((0.0, 0.01)),
        habits=Habits(
            retain=chance.choice((1, 2)),
            manifest_every=chance.choice((1, 2)),
            lives=4,
            epochs=16,
            barrier_chance=1.0,
            rewind_chance=chance.choice((0.0, 0.2)),
            rows=60,
            away_chance=0.3,
            refuse_chance=chance.choice((0.0, 0.1)),
            stop_chance=0.5,
            sink_knows=chance.random() < 0.5,
        ),
    )


SEASONS: dict[str, Callable[[random.Random], Weather]] = {
    "mixed": _mixed,
    "sleepers": _sleepers,
    "copies": _copies,
    "rewinds": _rewinds,
    "faults": _faults,
    "losses": _losses,
    "replays": _replays,
    "ends": _ends,
    "rivals": _rivals,
    "outages": _outages,
}
