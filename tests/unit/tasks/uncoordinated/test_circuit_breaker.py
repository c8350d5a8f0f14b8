"""When a storage that does not answer is left alone, and when it is asked again."""

from __future__ import annotations

from holdfast.tasks.uncoordinated.circuit_breaker import Bypass, Standing


def failing(bypass: Bypass, times: int, now_ms: int) -> Bypass:
    for _ in range(times):
        assert bypass.may_ask(now_ms)
        bypass = bypass.asked(now_ms).failed(now_ms)
    return bypass


def test_ten_failures_in_a_row_open_it_for_ten_minutes_and_no_longer() -> None:
    """S4 had it the wrong way round: it asked inside the window, and never again after it."""
    bypass = failing(Bypass(), 9, 5_000)
    assert bypass.standing(5_000) is Standing.ANSWERING
    bypass = failing(bypass, 1, 5_000)
    assert not bypass.may_ask(5_000)
    assert not bypass.may_ask(604_999)
    assert bypass.standing(604_999) is Standing.BYPASSED
    assert bypass.may_ask(605_000)
    bypass = bypass.asked(605_000).answered()
    assert bypass.standing(605_001) is Standing.ANSWERING
    assert bypass == Bypass()


def test_an_answer_in_between_begins_the_count_again() -> None:
    bypass = failing(Bypass(), 9, 0).asked(0).answered()
    assert failing(bypass, 9, 0).may_ask(0)


def test_after_the_window_one_request_is_made_and_the_others_wait_for_its_answer() -> None:
    bypass = failing(Bypass(failures_max=1, window_ms=100), 1, 0)
    bypass = bypass.asked(100)
    assert not bypass.may_ask(100)
    bypass = bypass.failed(150)
    assert not bypass.may_ask(249)
    assert bypass.may_ask(250)


def test_limits_are_the_users() -> None:
    bypass = failing(Bypass(failures_max=3, window_ms=7), 3, 0)
    assert not bypass.may_ask(6)
    assert bypass.may_ask(7)
