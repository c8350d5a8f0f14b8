"""The time of plans: the user's processing time, whatever the clocks of the leaders' machines say.

    the machine's clock is not behind      its time
    behind, by up to a minute              half as fast, until the machine's clock has caught up
    behind, by more                        as fast as time passes, from where it was: some leader's clock was
                                           wrong, and what it wrote is not taken back

Always true: it never goes back, and it never stands still while time passes.
"""

from __future__ import annotations

from holdfast.clock import Clock

AHEAD_MS = 60_000
"""How far plans may be ahead of a machine's clock for it to be waited for."""
JUMP_MS = 30 * 86_400_000
"""How much later than the last commit a machine's clock may be without a word about it: jobs that are stopped
for a weekend are nothing new."""


class PlanClock:
    """The time from one reading to the next. One thread."""

    def __init__(self, clock: Clock, reached_ms: int) -> None:
        self._clock = clock
        self._reached_ms, self._read_at = float(reached_ms), clock.monotonic()

    def now_ms(self) -> int:
        """Not before any earlier reading, nor before any plan that `reach` was told of."""
        now, read_at = self._clock.now_ms(), self._clock.monotonic()
        passed_ms = max(0.0, (read_at - self._read_at) * 1_000)
        gone_on = self._reached_ms + passed_ms
        if gone_on - now <= AHEAD_MS:
            gone_on = max(now, self._reached_ms + passed_ms / 2)
        self._reached_ms, self._read_at = gone_on, read_at
        return int(gone_on)

    def reach(self, plan_ms: int) -> None:
        """A plan of that time is followed. Time goes on from it: what has passed since the last reading is in
        it already."""
        if plan_ms > self._reached_ms:
            self._reached_ms, self._read_at = float(plan_ms), self._clock.monotonic()


def strange_clock(clock: Clock, committed_ms: int) -> str | None:
    """What to say when this machine's clock and the newest commit's time do not go together."""
    ahead_ms = committed_ms - clock.now_ms()
    if ahead_ms > AHEAD_MS:
        return (
            f"CLOCK: the newest commit is {_told(ahead_ms)} ahead of this machine's clock; processing time "
            "goes on from there, since it never goes back; see that the clocks of all machines are right"
        )
    if committed_ms and -ahead_ms > JUMP_MS:
        return (
            f"CLOCK: the newest commit is {_told(-ahead_ms)} old by this machine's clock, and processing "
            "time jumps by that; if the clock is wrong, stop the job now: processing time never goes back"
        )
    return None


def _told(ms: int) -> str:
    days, seconds = divmod(ms // 1_000, 86_400)
    return f"{days} days" if days else f"{seconds} s"
