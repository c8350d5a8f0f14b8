"""Holding a seat: what a node does as its connection, its run and the wishes of others change.

Events in, actions out. A seat is held by an ephemeral node, so ZooKeeper lets no other node have it before
the session time-out has passed without a word from us. We count that time ourselves, from when the newest
answered message was *sent*, and stop committing at `PAUSE_PART` of it: ZooKeeper got the message later than
that, so its own count ends later still.

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
    ENDING         Tick, the run has not claimed a term        ENDING         Revoke, Release
    any but the first: RunEnded                                STANDING_BY    Release, if still ours

When the session is lost: the seat is gone, the run is told to stop, and the node stands by again under its
next session. When the connection is suspended: nothing yet; see PAUSED.
Always true: a run is never begun while an earlier one has not ended. Stopping in time spares the successor
work and is not what keeps data safe: the chain refuses a commit that comes too late (see
checkpoint.chain.commits).
Never here: ZooKeeper, threads, a clock.
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
    """ZooKeeper answered a message that was sent at `sent_at`."""

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
    """Time has passed. `stuck_since`: since when the run cannot commit; None: it can, or has nothing to.
    `claimed`: whether the run has claimed a term; one that has not has nothing to end in good order."""

    stuck_since: float | None = None
    claimed: bool = True


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
    """`session_seconds` as ZooKeeper granted it; after `resign_seconds` without a commit that was
    wanted, a leader gives up its seat.
    """

    session_seconds: float
    resign_seconds: float

    @property
    def pause_seconds(self) -> float:
        return self.session_seconds * PAUSE_PART


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """How one node holds one seat. Times are monotonic seconds."""

    stage: Stage = Stage.STANDING_BY
    contact: float = 0.0
    """When the newest answered message was sent."""
    since: float = 0.0
    """When the stage began."""
    held: bool = False
    """Whether the seat is still ours, as far as we know."""
    revoked: bool = False


def step(lease: Lease, event: Event, now: float, limits: Limits) -> tuple[Lease, list[Action]]:
    """What an event means. Touches nothing; the node obeys."""
    if lease.stage is Stage.STANDING_BY:
        if not isinstance(event, Won):
            return lease, []
        begun = _moved(replace(lease, contact=event.sent_at, held=True, revoked=False), Stage.LEADING, now)
        return begun, [Extend(event.sent_at + limits.pause_seconds), Begin()]
    match event:
        case Won():
            raise AssertionError(f"a seat is won once, and this one is {lease.stage.value}")
        case Contact():
            return _on_contact(lease, event, now, limits)
        case Suspended():
            return lease, _on_suspended(lease, now, limits)
        case Lost():
            gone = replace(lease, held=False)
            return _revoked(gone, f"the seat is lost: {event.why}", now)
        case Give():
            if lease.stage is Stage.ENDING:
                return lease, []
            return _moved(lease, Stage.ENDING, now), [Finish(event.why)]
        case RunEnded():
            ended = _moved(replace(lease, held=False), Stage.STANDING_BY, now)
            return ended, [Release()] if lease.held else []
        case Tick():
            return _on_tick(lease, event, now, limits)


def _on_contact(lease: Lease, event: Contact, now: float, limits: Limits) -> tuple[Lease, list[Action]]:
    if not lease.held or event.sent_at <= lease.contact:
        return lease, []
    # An answer proves only that the session lived when its message was sent, however late it comes.
    until = event.sent_at + limits.pause_seconds
    heard = replace(lease, contact=event.sent_at)
    if lease.stage is not Stage.PAUSED:
        return heard, [Extend(until)]
    if until <= now:
        return heard, []
    return _moved(heard, Stage.LEADING, now), [Extend(until), Resume(now - lease.since)]


def _on_suspended(lease: Lease, now: float, limits: Limits) -> list[Action]:
    if lease.stage is not Stage.LEADING:
        return []
    left = max(0.0, lease.contact + limits.pause_seconds - now)
    seat = max(0.0, lease.contact + limits.session_seconds - now)
    return [
        Say(
            f"the connection to ZooKeeper is suspended; the seat cannot be given away for {seat:.1f} s more, "
            f"commits go on for {left:.1f} s"
        )
    ]


def _on_tick(lease: Lease, event: Tick, now: float, limits: Limits) -> tuple[Lease, list[Action]]:
    silent = now - lease.contact
    if lease.stage is Stage.LEADING:
        if silent >= limits.pause_seconds:
            why = (
                f"no word from ZooKeeper for {silent:.1f} s of a session time-out of "
                f"{limits.session_seconds:.1f} s"
            )
            return _moved(lease, Stage.PAUSED, now), [Pause(why)]
        if event.stuck_since is not None and now - event.stuck_since >= limits.resign_seconds:
            return _resigned(lease, f"nothing could be committed for {now - event.stuck_since:.1f} s", now)
    elif lease.stage is Stage.PAUSED and now - lease.since >= limits.resign_seconds:
        return _resigned(lease, f"commits were paused for {now - lease.since:.1f} s", now)
    elif lease.stage is Stage.ENDING and not lease.revoked:
        if not event.claimed:
            return _resigned(lease, "the run had not begun to lead", now)
        if now - lease.since >= limits.resign_seconds:
            return _resigned(lease, f"the run did not end in {now - lease.since:.1f} s", now)
    return lease, []


def _resigned(lease: Lease, why: str, now: float) -> tuple[Lease, list[Action]]:
    """Give the seat up without waiting for the run, which may hang."""
    given, actions = _revoked(replace(lease, held=False), f"resigned: {why}", now)
    return given, [*actions, Release()] if lease.held else actions


def _revoked(lease: Lease, why: str, now: float) -> tuple[Lease, list[Action]]:
    if lease.revoked:
        return lease, []
    ending = lease if lease.stage is Stage.ENDING else _moved(lease, Stage.ENDING, now)
    return replace(ending, revoked=True), [Revoke(why)]


def _moved(lease: Lease, to: Stage, now: float) -> Lease:
    assert to in _NEXT[lease.stage], f"{lease.stage} cannot become {to}"
    return replace(lease, stage=to, since=now)
