"""A node and its seat, event by event, with no ZooKeeper and no clock but ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.seat_lease import (
    Action,
    Begin,
    Contact,
    Event,
    Extend,
    Finish,
    Give,
    Lease,
    Limits,
    Lost,
    Pause,
    Release,
    Resume,
    Revoke,
    RunEnded,
    Say,
    Stage,
    Suspended,
    Tick,
    Won,
    step,
)

LIMITS = Limits(session_seconds=9.0, resign_seconds=60.0)


class Story:
    """Feeds events and remembers what was done."""

    def __init__(self) -> None:
        self.lease, self.done = Lease(), list[Action]()

    def tell(self, event: Event, at: float) -> list[Action]:
        self.lease, actions = step(self.lease, event, at, LIMITS)
        self.done += actions
        return actions

    @property
    def stage(self) -> Stage:
        return self.lease.stage


def leading(at: float = 100.0) -> Story:
    story = Story()
    assert story.tell(Won(at), at) == [Extend(at + 6.0), Begin()]
    assert story.stage is Stage.LEADING
    return story


def test_commits_stop_before_the_seat_can_be_given_away() -> None:
    """Counted from when the message was sent, not from when its answer came."""
    story = leading()
    story.tell(Contact(103.0), 104.5)
    assert story.done[-1] == Extend(109.0), "six of nine seconds after the message was sent"
    assert story.tell(Tick(), 108.9) == []
    (pause,) = story.tell(Tick(), 109.0)
    assert isinstance(pause, Pause)
    assert story.stage is Stage.PAUSED
    assert 103.0 + LIMITS.session_seconds > 109.0


def test_a_suspended_connection_is_not_a_lost_seat() -> None:
    story = leading()
    (said,) = story.tell(Suspended(), 102.0)
    assert isinstance(said, Say)
    assert "commits go on for 4.0 s" in said.text
    assert story.stage is Stage.LEADING
    assert story.tell(Contact(103.0), 103.1) == [Extend(109.0)], "back in time: nothing happened"


def test_a_paused_leader_goes_on_when_zookeeper_answers_again() -> None:
    story = leading()
    story.tell(Tick(), 106.0)
    assert story.tell(Contact(130.0), 130.1) == [Extend(136.0), Resume(pytest.approx(24.1))]
    assert story.stage is Stage.LEADING


def test_an_answer_that_is_too_old_does_not_end_the_pause() -> None:
    """A message that lay in a queue proves only that the session lived when it was sent."""
    story = leading()
    story.tell(Tick(), 107.0)
    assert story.tell(Contact(101.0), 110.0) == []
    assert story.stage is Stage.PAUSED


def test_a_lost_session_ends_the_run_and_the_seat_is_not_given_back_twice() -> None:
    story = leading()
    (revoke,) = story.tell(Lost("the session has ended"), 101.0)
    assert isinstance(revoke, Revoke)
    assert story.tell(Contact(100.5), 101.1) == [], "no contact makes a lost seat ours again"
    assert story.tell(RunEnded(), 103.0) == [], "another node may have it: hands off"
    assert story.stage is Stage.STANDING_BY


def test_a_leader_that_cannot_commit_resigns_without_waiting_for_its_run() -> None:
    story = leading()
    story.tell(Contact(160.0), 160.0)
    assert story.tell(Tick(stuck_since=101.0), 160.9) == []
    revoke, release = story.tell(Tick(stuck_since=101.0), 161.0)
    assert isinstance(revoke, Revoke)
    assert "resigned" in revoke.why
    assert release == Release()
    assert story.stage is Stage.ENDING
    assert story.tell(RunEnded(), 200.0) == []


def test_a_leader_that_is_paused_for_too_long_resigns() -> None:
    story = leading()
    story.tell(Tick(), 106.0)
    assert story.tell(Tick(), 165.9) == []
    assert [type(action) for action in story.tell(Tick(), 166.0)] == [Revoke, Release]


def test_a_run_that_has_not_claimed_a_term_is_not_waited_for_when_the_seat_is_handed_over() -> None:
    story = leading()
    assert story.tell(Tick(claimed=False), 100.5) == []
    assert story.tell(Give("hand-over to b"), 101.0) == [Finish("hand-over to b")]
    assert [type(action) for action in story.tell(Tick(claimed=False), 101.1)] == [Revoke, Release]
    assert story.stage is Stage.ENDING
    assert story.tell(RunEnded(), 120.0) == []


def test_a_handover_lets_the_epoch_finish_and_then_gives_the_seat_up() -> None:
    story = leading()
    assert story.tell(Give("hand-over"), 101.0) == [Finish("hand-over")]
    assert story.tell(Give("hand-over"), 101.1) == [], "asked once is enough"
    assert story.tell(Contact(102.0), 102.1) == [Extend(108.0)], "its last commit is still allowed"
    assert story.tell(RunEnded(), 103.0) == [Release()]
    assert story.stage is Stage.STANDING_BY


def test_a_handover_that_does_not_come_to_an_end_is_cut_short() -> None:
    story = leading()
    story.tell(Give("hand-over"), 101.0)
    assert [type(action) for action in story.tell(Tick(), 161.0)] == [Revoke, Release]


def test_a_session_lost_during_a_handover_revokes_the_run() -> None:
    story = leading()
    story.tell(Give("hand-over"), 101.0)
    assert [type(action) for action in story.tell(Lost("gone"), 102.0)] == [Revoke]
    assert story.tell(RunEnded(), 103.0) == []


def test_a_run_that_ends_by_itself_frees_the_seat() -> None:
    story = leading()
    assert story.tell(RunEnded(), 101.0) == [Release()]


def test_on_standby_only_winning_has_an_effect() -> None:
    story = Story()
    for event in (Contact(1.0), Suspended(), Lost("x"), Give("x"), RunEnded(), Tick(stuck_since=0.0)):
        assert story.tell(event, 1_000.0) == []
    assert story.stage is Stage.STANDING_BY


def test_a_seat_cannot_be_won_while_a_run_is_under_way() -> None:
    story = leading()
    with pytest.raises(AssertionError, match="won once"):
        story.tell(Won(101.0), 101.0)


EVENTS = st.one_of(
    st.builds(lambda age: ("contact", age), st.floats(0, 20)),
    st.sampled_from([("suspended", 0.0), ("lost", 0.0), ("give", 0.0), ("ended", 0.0)]),
    st.builds(lambda age: ("tick", age), st.floats(0, 100)),
)


@given(st.lists(st.tuples(st.floats(0.01, 15.0), EVENTS), max_size=40))
def test_whatever_happens_no_commit_is_allowed_after_the_seat_may_be_anothers(
    happened: list[tuple[float, tuple[str, float]]],
) -> None:
    """Commits are allowed before the newest `Extend`, unless revoked. That never reaches the time-out counted
    from the newest message that was answered; a revoked run stays revoked until it has ended.
    """
    story, now, newest, until, revoked = leading(100.0), 100.0, 100.0, 106.0, False
    for passed, (kind, age) in happened:
        now += passed
        if story.stage is Stage.STANDING_BY:
            return
        event: Event
        match kind:
            case "contact":
                event = Contact(max(100.0, now - age))
                newest = max(newest, event.sent_at)
            case "suspended":
                event = Suspended()
            case "lost":
                event = Lost("gone")
            case "give":
                event = Give("wanted")
            case "ended":
                event = RunEnded()
            case _:
                event = Tick(now - age if age > 50 else None)
        actions = story.tell(event, now)
        for action in actions:
            if isinstance(action, Extend):
                assert not revoked, "a revoked run was allowed to commit again"
                until = action.until
            revoked = revoked or isinstance(action, Revoke)
        assert until < newest + LIMITS.session_seconds
        assert actions.count(Release()) <= 1
