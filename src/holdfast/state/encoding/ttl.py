"""How long a state is kept, and the time that each of its entries carries for that.

    entry of a state with a ttl     time (8, little-endian, µs since 1970) | what it would hold without a ttl

The time is that of the last write (or read): the expiry follows from it and from the ttl in force, so that a
ttl that is changed counts for what is stored already.
Always true: whether an entry has expired follows from its time, its ttl and the instant of the epoch alone.
Never here: where entries are found by time (see expiry_index), removing them (see tasks.operators.expiry).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError

TIME_BYTES = 8
UNKNOWN_US = -(1 << 63)
"""The time of an entry whose age is not known: it was there before its state had a ttl, or before there was a
watermark. It counts from when it is next met."""
TTL_STEPS = 16
"""A ttl is cut into so many steps: closer than one, a read does not renew a time, and the index of what
expires has no two places."""
STEP_MIN_MS = 1_000
"""Less than this does not lie between two places in the index: what has expired is removed in batches."""
TTL_MAX_MS = 1_000 * 365 * 86_400_000

Since: TypeAlias = Literal["write", "read"]
TtlClock: TypeAlias = Literal["processing", "event"]
Times: TypeAlias = npt.NDArray[np.int64]
TtlRow: TypeAlias = tuple[int, str, str]


@dataclass(frozen=True)
class Ttl:
    """A state's values are kept for so long since they were last written (or read), by one of two clocks."""

    ms: int
    since: Since = "write"
    clock: TtlClock = "processing"

    @staticmethod
    def declared(ttl: object, since: object, clock: object) -> Ttl | None:
        """What a declaration says; None: it says nothing. DefinitionError: it cannot be."""
        for name, given, known in (("since", since, get_args(Since)), ("clock", clock, get_args(TtlClock))):
            if given is not None and given not in known:
                choices = ", ".join(map(repr, known))
                raise DefinitionError(f"{name}={given!r} is not known; use one of {choices}")
        if ttl is None:
            if since is not None or clock is not None:
                name = "clock" if since is None else "since"
                raise DefinitionError(
                    f"{name} means nothing without a ttl; give ttl='7d' too, or leave it out"
                )
            return None
        if not isinstance(ttl, str):
            raise DefinitionError(f"ttl={ttl!r} is not text; write a duration such as '7d'")
        ms = _duration_ms(ttl)
        if not 1 <= ms <= TTL_MAX_MS:
            what = "is no time at all" if ms < 1 else "is longer than 1000 years"
            raise DefinitionError(
                f"ttl={ttl!r} {what}; give at least '1ms', or leave it out to keep for good"
            )
        return Ttl(ms, since or "write", clock or "processing")  # type: ignore[arg-type]

    @staticmethod
    def of_row(row: Sequence[Any]) -> Ttl:
        """The inverse of `row`."""
        ms, since, clock = row
        return Ttl(ms, since, clock)

    @property
    def row(self) -> TtlRow:
        """It as plain data."""
        return self.ms, self.since, self.clock

    @property
    def us(self) -> int:
        return self.ms * 1_000

    def is_expired(self, at_us: int, now_us: int | None) -> bool:
        """Whether what has this time is gone at an instant (None: it is not known, so nothing is)."""
        return now_us is not None and at_us != UNKNOWN_US and at_us + self.us <= now_us

    def is_aged(self, at_us: int, now_us: int | None) -> bool:
        """Whether a read gives what has this time a new one."""
        return now_us is not None and (at_us == UNKNOWN_US or (now_us - at_us) * TTL_STEPS >= self.us)

    def __str__(self) -> str:
        if self.ms == TTL_MAX_MS:
            return "kept for good"
        clock = ", event time" if self.clock == "event" else ""
        return f"ttl {_duration_text(self.ms)} since {self.since}{clock}"


@dataclass(frozen=True, slots=True)
class Instants:
    """The time that it is in an epoch, by each clock, in µs since 1970. None: not known."""

    processing_us: int | None = None
    event_us: int | None = None

    def now(self, ttl: Ttl) -> int | None:
        """By the clock that a ttl goes by."""
        return self.event_us if ttl.clock == "event" else self.processing_us

    def stamp(self, ttl: Ttl) -> int:
        """The time that something written now gets."""
        now = self.now(ttl)
        return UNKNOWN_US if now is None else now


NO_INSTANTS = Instants()


def time_of(stored: bytes) -> int:
    """The time of an entry of a state with a ttl."""
    return int.from_bytes(stored[:TIME_BYTES], "little", signed=True)


def with_times(times: Times, values: Sequence[bytes]) -> list[bytes]:
    """Values as entries that carry these times."""
    return list(map(add, times.astype("<i8").view(f"V{TIME_BYTES}").tolist(), values))


def times_of(stored: Sequence[bytes]) -> Times:
    """The times of entries."""
    heads = b"".join([value[:TIME_BYTES] for value in stored])
    return np.frombuffer(heads, "<i8").astype(np.int64)


def without_times(stored: Sequence[bytes]) -> list[bytes]:
    """What entries hold besides their times."""
    return [value[TIME_BYTES:] for value in stored]


def _duration_ms(text: str) -> int:
    if text.lstrip().startswith("-"):
        raise DefinitionError(f"ttl={text!r} is negative; give a duration such as '7d'")
    try:
        return duration_ms(text)
    except DefinitionError as error:
        raise DefinitionError(f"ttl={error}") from None


def _duration_text(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
