"""Holding a seat: what a node does as its connection, its run and the wishes of others change.

Events in, actions out. A seat is held by an ephemeral node, so the coordinator gives it to nobody else before
the session time-out has passed without a word from us. We count that time ourselves, from when the newest
answered message was *sent*, and stop committing at `PAUSE_PART` of it: the coordinator got the message later
than that, so its own count ends later still.

    stage          event                                       next           actions
    STANDING_BY    Won                                         LEADING        Extend, Begin
    LEADING        Contact                                     LEADING        Extend
    LEADING        Tick, out of contact for too long           PAUSED         Pause
    LEADING        Tick, no commit for `resign_seconds`        ENDING         Revoke, Release
    LEADING        Lost                                        ENDING         Revoke
    LEADING        Give (a hand-over; the node is told to end) ENDING         Finish
    PAUSED         Contact that is new enough                  LEADING        Extend, Resume
    PAUSED         Tick, paused for `resign_seconds`           ENDING         Revoke, Release
    PAUSED         Lost, Give                                  ENDING         as when LEADING
    ENDING         Contact, while the seat is still ours       ENDING         Extend
    ENDING         Lost, or Tick after `resign_seconds`        ENDING         Revoke
    any but the first: RunEnded                                STANDING_BY    Release, if still ours

When the session is lost: the seat is gone, the run is told to stop, and the node stands by again under its
next session. When the connection is suspended: nothing yet; see PAUSED.
Always true: a run is never begun while an earlier one has not ended. Stopping in time is for peace, not for
safety: a commit that comes too late is refused by the chain (see checkpoint.chain.commits).
Never here: the coordinator, threads, a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

PAUSE_PART = 2 / 3
"""Of the session time-out: how long after the last contact commits go on."""


class Stage(Enum):
    """Where a node stands with one seat."""

    STANDING_BY = "standing by"
    LEADING = "leading"
    PAUSED = "paused"
    ENDING = "ending"


_NEXT = {
    Stage.STANDING_BY: {Stage.LEADING},
    Stage.LEADING: {Stage.PAUSED, Stage.ENDING, Stage.STANDING_BY},
    Stage.PAUSED: {Stage.LEADING, Stage.ENDING, Stage.STANDING_BY},
    Stage.ENDING: {Stage.STANDING_BY},
}


@dataclass(frozen=True, slots=True)
class Won:
    """The seat is ours, by a message sent at `sent_at`."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class Contact:
    """The coordinator answered a message that was sent at `sent_at`."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection is gone; the session may still be there."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The seat is no longer ours."""

    why: str


@dataclass(frozen=True, slots=True)
class Give:
    """Give the seat up in good order."""

    why: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over, however it ended."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `stuck_since`: since when the run cannot commit; None: it can, or has nothing to."""

    stuck_since: float | None = None


Event = Won | Contact | Suspended | Lost | Give | RunEnded | Tick


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the job."""


@dataclass(frozen=True, slots=True)
class Extend:
    """Commits may begin before `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class Pause:
    """No commit begins from now on."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Commits go on."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run after the epoch in hand is committed."""

    why: str


@dataclass(frozen=True, slots=True)
class Revoke:
    """End the run now: nothing more of it may be committed."""

    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Let others have the seat."""


@dataclass(frozen=True, slots=True)
class Say:
    """Something for the log."""

    text: str


Action = Begin | Extend | Pause | Resume | Finish | Revoke | Release | Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """`session_seconds` as the coordinator granted it; after `resign_seconds` without a commit that was
    wanted, a leader gives up its seat.
    """

    session_seconds: float
    resign_seconds: float

    @property
    def pause_seconds(self) -> float:
        return self.session_seconds * PAUSE_PART


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenure:
    """One node and one seat. Times are monotonic seconds."""

    stage: Stage = Stage.STANDING_BY
    contact: float = 0.0
    """When the newest answered message was sent."""
    since: float = 0.0
    """When the stage began."""
    held: bool = False
    """Whether the seat is still ours, as far as we know."""
    revoked: bool = False


def step(tenure: Tenure, event: Event, now: float, limits: Limits) -> tuple[Tenure, list[Action]]:
    """What an event means. Touches nothing; the node obeys."""
    if tenure.stage is Stage.STANDING_BY:
        if not isinstance(event, Won):
            return tenure, []
        begun = _moved(replace(tenure, contact=event.sent_at, held=True, revoked=False), Stage.LEADING, now)
        return begun, [Extend(event.sent_at + limits.pause_seconds), Begin()]
    match event:
        case Won():
            raise AssertionError(f"a seat is won once, and this one is {tenure.stage.value}")
        case Contact():
            return _on_contact(tenure, event, now, limits)
        case Suspended():
            return tenure, _on_suspended(tenure, now, limits)
        case Lost():
            gone = replace(tenure, held=False)
            return _revoked(gone, f"the seat is lost: {event.why}", now)
        case Give():
            if tenure.stage is Stage.ENDING:
                return tenure, []
            return _moved(tenure, Stage.ENDING, now), [Finish(event.why)]
        case RunEnded():
            ended = _moved(replace(tenure, held=False), Stage.STANDING_BY, now)
            return ended, [Release()] if tenure.held else []
        case Tick():
            return _on_tick(tenure, event, now, limits)


def _on_contact(tenure: Tenure, event: Contact, now: float, limits: Limits) -> tuple[Tenure, list[Action]]:
    if not tenure.held or event.sent_at <= tenure.contact:
        return tenure, []
    until = event.sent_at + limits.pause_seconds
    heard = replace(tenure, contact=event.sent_at)
    if tenure.stage is not Stage.PAUSED:
        return heard, [Extend(until)]
    if until <= now:
        return heard, []
    return _moved(heard, Stage.LEADING, now), [Extend(until), Resume(now - tenure.since)]


def _on_suspended(tenure: Tenure, now: float, limits: Limits) -> list[Action]:
    if tenure.stage is not Stage.LEADING:
        return []
    left = max(0.0, tenure.contact + limits.pause_seconds - now)
    seat = max(0.0, tenure.contact + limits.session_seconds - now)
    return [
        Say(
            f"the connection to ZooKeeper is suspended; the seat cannot be given away for {seat:.1f} s more, "
            f"commits go on for {left:.1f} s"
        )
    ]


def _on_tick(tenure: Tenure, event: Tick, now: float, limits: Limits) -> tuple[Tenure, list[Action]]:
    silent = now - tenure.contact
    if tenure.stage is Stage.LEADING:
        if silent >= limits.pause_seconds:
            why = (
                f"no word from ZooKeeper for {silent:.1f} s of a session time-out of "
                f"{limits.session_seconds:.1f} s"
            )
            return _moved(tenure, Stage.PAUSED, now), [Pause(why)]
        if event.stuck_since is not None and now - event.stuck_since >= limits.resign_seconds:
            return _resigned(tenure, f"nothing could be committed for {now - event.stuck_since:.1f} s", now)
    elif tenure.stage is Stage.PAUSED and now - tenure.since >= limits.resign_seconds:
        return _resigned(tenure, f"commits were paused for {now - tenure.since:.1f} s", now)
    elif tenure.stage is Stage.ENDING and now - tenure.since >= limits.resign_seconds and not tenure.revoked:
        return _resigned(tenure, f"the run did not end in {now - tenure.since:.1f} s", now)
    return tenure, []


def _resigned(tenure: Tenure, why: str, now: float) -> tuple[Tenure, list[Action]]:
    """Give the seat up without waiting for the run, which may hang for as long as it likes."""
    given, actions = _revoked(replace(tenure, held=False), f"resigned: {why}", now)
    return given, [*actions, Release()] if tenure.held else actions


def _revoked(tenure: Tenure, why: str, now: float) -> tuple[Tenure, list[Action]]:
    if tenure.revoked:
        return tenure, []
    ending = tenure if tenure.stage is Stage.ENDING else _moved(tenure, Stage.ENDING, now)
    return replace(ending, revoked=True), [Revoke(why)]


def _moved(tenure: Tenure, to: Stage, now: float) -> Tenure:
    assert to in _NEXT[tenure.stage], f"{tenure.stage} cannot become {to}"
    return replace(tenure, stage=to, since=now)
