"""Whether a failed run is tried again, and when: a pure function of the strategy, the history and the clock.

Always true: `decide` touches nothing and waits for nothing; the same history gives the same decision. The
history is that of the job, not of the process: failures of earlier leaders count, those before a clean stop
or before a leader gave up do not.
Never here: which errors may be retried at all (see runtime.restarts), waiting, recording (see
checkpoint.log.incidents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError

POISON_FAILURES = 3
"""An epoch that failed this often in a row in the same way will fail again: it is named, not retried."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of the job. `cause`: what failed, in words that are the same when it happens again."""

    at_ms: int
    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Try again from the last checkpoint after `delay_ms`."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again. `poison`: the epoch that fails in the same way every time, if that is why."""

    reason: str
    poison: int | None = None


@dataclass(frozen=True, kw_only=True)
class NoRestart:
    """The first failure ends the run."""


@dataclass(frozen=True, kw_only=True)
class FixedDelay:
    """Try again up to `attempts` times, each time after `delay`."""

    attempts: int = 1
    delay: str = "1s"

    def __post_init__(self) -> None:
        _at_least("FixedDelay", "attempts", self.attempts, 1)
        duration_ms(self.delay)


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """Try again after `delay`, unless there were more than `max_failures` within `interval`."""

    max_failures: int = 1
    interval: str = "1m"
    delay: str = "1s"

    def __post_init__(self) -> None:
        _at_least("FailureRate", "max_failures", self.max_failures, 1)
        duration_ms(self.interval)
        duration_ms(self.delay)


@dataclass(frozen=True, kw_only=True)
class ExponentialDelay:
    """Wait longer after each failure, up to `maximum`; after `reset_after` without one begin again.

    `attempts` (None: no limit) counts the failures since the wait last began again. `jitter` spreads the
    wait by this part of it to either side, so that jobs that failed together do not all come back together.
    """

    initial: str = "1s"
    maximum: str = "1m"
    multiplier: float = 1.5
    reset_after: str = "1h"
    jitter: float = 0.1
    attempts: int | None = None

    def __post_init__(self) -> None:
        _at_least("ExponentialDelay", "multiplier", self.multiplier, 1)
        if not 0 <= self.jitter <= 1:
            raise DefinitionError(
                f"ExponentialDelay(jitter={self.jitter}) is not a part; choose one from 0 to 1"
            )
        if self.attempts is not None:
            _at_least("ExponentialDelay", "attempts", self.attempts, 1)
        for text in (self.initial, self.maximum, self.reset_after):
            duration_ms(text)


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay


def decide(strategy: RestartStrategy, failures: Sequence[Failure], chance: float) -> Restart | GiveUp:
    """What follows the last of `failures` (oldest first, at least one). `chance`: from 0 to 1, for the
    jitter.
    """
    assert failures, "nothing has failed"
    poison = _poisoned(failures)
    if poison is not None:
        return GiveUp(f"epoch {poison} failed {POISON_FAILURES} times in the same way", poison)
    match strategy:
        case NoRestart():
            return GiveUp("the restart strategy is NoRestart")
        case FixedDelay():
            return _fixed(strategy, failures)
        case FailureRate():
            return _rated(strategy, failures)
        case ExponentialDelay():
            return _exponential(strategy, failures, chance)


def _poisoned(failures: Sequence[Failure]) -> int | None:
    last = failures[-POISON_FAILURES:]
    same = len({(failure.epoch, failure.cause) for failure in last}) == 1
    return last[0].epoch if same and len(last) == POISON_FAILURES and last[0].epoch > 0 else None


def _fixed(strategy: FixedDelay, failures: Sequence[Failure]) -> Restart | GiveUp:
    if len(failures) > strategy.attempts:
        return GiveUp(f"it was tried again {strategy.attempts} times, as FixedDelay allows")
    return Restart(duration_ms(strategy.delay))


def _rated(strategy: FailureRate, failures: Sequence[Failure]) -> Restart | GiveUp:
    interval_ms, now_ms = duration_ms(strategy.interval), failures[-1].at_ms
    # Clocks may jump back: a failure from the future is a recent one.
    recent = sum(now_ms - failure.at_ms < interval_ms for failure in failures)
    if recent > strategy.max_failures:
        allowed = f"{strategy.max_failures} in {strategy.interval}"
        return GiveUp(f"there were {recent} failures in that time, FailureRate allows {allowed}")
    return Restart(duration_ms(strategy.delay))


def _exponential(strategy: ExponentialDelay, failures: Sequence[Failure], chance: float) -> Restart | GiveUp:
    initial, maximum = float(duration_ms(strategy.initial)), float(duration_ms(strategy.maximum))
    wait_ms, count = min(initial, maximum), 1
    for before, after in pairwise(failures):
        if after.at_ms - before.at_ms - wait_ms >= duration_ms(strategy.reset_after):
            wait_ms, count = min(initial, maximum), 1
        else:
            wait_ms, count = min(wait_ms * strategy.multiplier, maximum), count + 1
    if strategy.attempts is not None and count > strategy.attempts:
        return GiveUp(f"it was tried again {strategy.attempts} times, as ExponentialDelay allows")
    return Restart(int(wait_ms * (1 + strategy.jitter * (2 * chance - 1))))


def _at_least(what: str, name: str, value: float, least: float) -> None:
    if value < least:
        raise DefinitionError(f"{what}({name}={value}) is too small; choose a number from {least} on")
