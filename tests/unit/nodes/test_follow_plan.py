"""How far a standby is behind, and what the log says of it."""

from __future__ import annotations

from holdfast.cluster.node_records import Lag
from holdfast.nodes.follow_plan import BEHIND_SECONDS, Sight, Told, news

BEHIND_MS = round(BEHIND_SECONDS * 1_000)


def test_a_lag_counts_from_when_the_first_commit_that_is_not_followed_was_seen() -> None:
    sight = Sight().seen(4, now=10.0).seen(7, now=12.0)
    assert sight.lag(13.0, "") == Lag(epoch=0, epochs=7, ms=3_000)
    assert sight.reached(7, now=14.0).lag(20.0, "") == Lag(epoch=7)


def test_what_came_while_a_step_was_made_counts_from_its_end() -> None:
    sight = Sight().seen(4, now=10.0).seen(5, now=11.0).reached(4, now=12.0)
    assert sight.lag(12.5, "") == Lag(epoch=4, epochs=1, ms=500)


def test_after_a_rewind_nothing_is_behind_by_less_than_nothing() -> None:
    sight = Sight().seen(9, now=1.0).reached(9, now=2.0).seen(5, now=3.0)
    assert sight.lag(4.0, "") == Lag(epoch=9, epochs=0, ms=1_000)


def test_the_log_tells_of_changes_once() -> None:
    told, said = Told.NOTHING, []
    for lag in (
        Lag(epoch=0, epochs=5, ms=1_000),
        Lag(epoch=5),
        Lag(epoch=6),
        Lag(epoch=6, epochs=3, ms=BEHIND_MS),
        Lag(epoch=6, epochs=4, ms=BEHIND_MS + 1_000),
        Lag(epoch=6, epochs=4, ms=BEHIND_MS + 1_000, problem="storage is down"),
        Lag(epoch=6, epochs=5, ms=BEHIND_MS + 2_000, problem="storage is down"),
        Lag(epoch=11),
    ):
        text, told = news(lag, told)
        said += [text] if text else []
    assert [text.split()[0] for text in said] == ["HOT:", "following,", "CANNOT", "HOT:"]
    assert "storage is down" in said[2]
    assert "epoch 11" in said[3]
