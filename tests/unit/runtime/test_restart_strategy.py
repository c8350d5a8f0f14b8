from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.errors import DefinitionError
from holdfast.runtime.restart_strategy import (
    POISON_FAILURES,
    ExponentialDelay,
    Failure,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    Restart,
    RestartStrategy,
    decide,
)
from holdfast.testing.clocks import ManualClock

MIDDLE = 0.5
"""Chance that adds no jitter."""


def story(strategy: RestartStrategy, gaps_s: list[float], chance: float = MIDDLE) -> list[Restart | GiveUp]:
    """What is decided after each of some failures, the seconds between them given."""
    clock, failures, decisions = ManualClock(), [], []
    for epoch, gap in enumerate(gaps_s, start=1):
        clock.advance(timedelta(seconds=gap))
        failures.append(Failure(clock.now_ms(), epoch, "disk gone"))
        decisions.append(decide(strategy, failures, chance))
    return decisions


def delays_s(strategy: RestartStrategy, gaps_s: list[float], chance: float = MIDDLE) -> list[float]:
    decisions = story(strategy, gaps_s, chance)
    assert all(isinstance(decision, Restart) for decision in decisions), decisions
    return [decision.delay_ms / 1_000 for decision in decisions if isinstance(decision, Restart)]


def test_no_restart_gives_up_at_once() -> None:
    (decision,) = story(NoRestart(), [0])
    assert isinstance(decision, GiveUp)


def test_fixed_delay_tries_as_often_as_allowed_then_gives_up() -> None:
    *restarts, last = story(FixedDelay(attempts=3, delay="10s"), [0, 1, 1, 1])
    assert restarts == [Restart(10_000)] * 3
    assert isinstance(last, GiveUp)
    assert "3 times" in last.reason


def test_failure_rate_forgives_what_is_long_ago() -> None:
    strategy = FailureRate(max_failures=2, interval="1m", delay="5s")
    assert delays_s(strategy, [0, 59, 31, 31]) == [5, 5, 5, 5]
    assert isinstance(story(strategy, [0, 20, 20])[-1], GiveUp)


def test_failure_rate_counts_a_failure_from_the_future_as_recent() -> None:
    failures = [Failure(100_000, 1, "a"), Failure(0, 2, "b")]
    assert isinstance(decide(FailureRate(), failures, MIDDLE), GiveUp)


def test_exponential_delay_grows_to_its_maximum_and_never_ends() -> None:
    waits = delays_s(ExponentialDelay(), [0] + [60] * 30)
    assert waits[:4] == [1, 1.5, 2.25, 3.375]
    assert waits[-1] == 60
    assert waits == sorted(waits)


def test_exponential_delay_begins_anew_after_a_quiet_time() -> None:
    assert delays_s(ExponentialDelay(), [0, 2, 2, 3_700, 2]) == [1, 1.5, 2.25, 1, 1.5]


def test_exponential_delay_may_have_a_limit() -> None:
    decisions = story(ExponentialDelay(attempts=2), [0, 2, 2, 2])
    assert [type(decision) for decision in decisions] == [Restart, Restart, GiveUp, GiveUp]


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 0.9), (1.0, 1.1)])
def test_jitter_spreads_the_wait_to_either_side(chance: float, wait: float) -> None:
    assert delays_s(ExponentialDelay(jitter=0.1), [0], chance) == [wait]


@pytest.mark.parametrize(
    "strategy", [ExponentialDelay(), FixedDelay(attempts=99), FailureRate(max_failures=99)]
)
def test_an_epoch_that_always_fails_in_the_same_way_is_named_not_retried(strategy: RestartStrategy) -> None:
    same = [Failure(at, 7, "division by zero") for at in range(POISON_FAILURES)]
    decision = decide(strategy, same, MIDDLE)
    assert decision == GiveUp("epoch 7 failed 3 times in the same way", poison=7)
    assert isinstance(decide(strategy, same[1:], MIDDLE), Restart)


def test_another_epoch_or_another_cause_in_between_is_no_poison() -> None:
    other_epoch = [Failure(0, 7, "a"), Failure(1, 8, "a"), Failure(2, 7, "a")]
    other_cause = [Failure(0, 7, "a"), Failure(1, 7, "b"), Failure(2, 7, "a")]
    before_any = [Failure(at, 0, "a") for at in range(5)]
    for failures in (other_epoch, other_cause, before_any):
        assert isinstance(decide(ExponentialDelay(), failures, MIDDLE), Restart)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FixedDelay, {"attempts": 0}),
        (FixedDelay, {"delay": "soon"}),
        (FailureRate, {"max_failures": 0}),
        (FailureRate, {"interval": "often"}),
        (ExponentialDelay, {"multiplier": 0.5}),
        (ExponentialDelay, {"jitter": 2}),
        (ExponentialDelay, {"attempts": 0}),
        (ExponentialDelay, {"maximum": "x"}),
    ],
)
def test_a_strategy_that_cannot_be_meant_is_refused(kind: type, wrong: dict[str, object]) -> None:
    with pytest.raises(DefinitionError):
        kind(**wrong)
