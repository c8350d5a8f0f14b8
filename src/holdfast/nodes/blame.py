"""Whose failure it was that a run ended of: the job's, a node's, or neither's. Pure.

Always true: what is not certain to be the job's own is tried on every node before the job is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    FencedOut,
    InputVanished,
    MachineError,
    PoisonEpoch,
    RestoreError,
    SeatLost,
    UserCodeError,
)

ERROR_CHARS_MAX = 500


@dataclass(frozen=True)
class Unfit:
    """A job failed on a node, for a reason that another may not have. `commit`: the newest known then."""

    failure: BaseException
    commit: int
    at_ms: int

    @property
    def error(self) -> str:
        return in_short(self.failure, ERROR_CHARS_MAX)


def is_replaced(failure: BaseException | None) -> bool:
    """Whether a run ended because somebody else leads, or may."""
    return isinstance(failure, FencedOut | SeatLost)


def is_of_the_job(failure: BaseException) -> bool:
    """Whether a run would fail so on every node: then the job is over. What a machine lacks, and input that
    it does not see, may be there on another; so may whatever Holdfast has no name for.
    """
    if isinstance(failure, MachineError | InputVanished):
        return False
    own = DefinitionError | UserCodeError | PoisonEpoch | RestoreError | CorruptionError
    return isinstance(failure, own)


def in_short(failure: BaseException, chars: int) -> str:
    """An error as one line."""
    return " ".join((str(failure) or type(failure).__name__).split())[:chars]
