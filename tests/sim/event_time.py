"""Event time in the simulated world: when each row happened, the timer that it sets, and who judges.

Row `n` is of key group `n % GROUP_COUNT`, happened at `time_of(n)`, and sets one event timer. Everything else
follows from the plans: what must hold of each epoch is checked here, from the state before it and its plan.

- the watermark that rows are judged by is that of the epoch before; that of the epoch is what the times
  reported until then make it, and never less; for an epoch that was committed before, it is what it was;
- a timer fires in the first epoch whose watermark has reached it, or that closes; once, and not before;
- an epoch closes only if something was read since the last that did, and every plan knows which that was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.store.records import PlannedWatermark, PlanRecord
from holdfast.ids import KeyGroupRange
from holdfast.state.contract import EMPTY_VERSION, NextDue, Version

SOURCE, OPERATOR, SINK = "in", "totals", "out"
GROUP_COUNT = 2
DELAY_US = 2_000
TIMER_AHEAD_US = 3_000

Rows = tuple[int, int]
"""Half-open the other way round: the first is out, the last is in. As positions of a source are."""
Shown = tuple[Rows, tuple[int, ...]]
"""What a sink has of an epoch: its rows, and those whose timers fired."""


class Violation(AssertionError):
    """A checker found that an invariant does not hold."""


class Content(msgspec.Struct, frozen=True):
    """What a shard's task leaves of an epoch, or a snapshot of all. `fired`: the rows whose timers did;
    `open`: of a snapshot, those whose timers have not. `newest_us`: what is reported of the rows' times.
    `fresh`: its leader planned it from what it had observed, and did not find the plan."""

    rows: Rows
    fired: tuple[int, ...] = ()
    open: tuple[int, ...] = ()
    newest_us: int | None = None
    fresh: bool = False

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def of(data: bytes) -> Content:
        return msgspec.json.decode(data, type=Content)


@dataclass(frozen=True)
class State:
    """After an epoch: the last row read, the rows whose timers are open, and how far event time is."""

    through: int = 0
    open: frozenset[int] = frozenset()
    watermark_us: int | None = None
    newest_us: int | None = None
    closed_through: int = 0
    closed_at: int = -1
    """The last row that was read when an epoch last closed."""
    versions: dict[int, tuple[Version, tuple[int, int]]] = field(
        default_factory=lambda: dict.fromkeys(range(GROUP_COUNT), (EMPTY_VERSION, (0, GROUP_COUNT)))
    )
    """By key group: the version of its state, and of which range of groups that is."""

    def open_in(self, groups: Iterable[int]) -> tuple[int, ...]:
        return rows_in(self.open, groups)


def time_of(row: int) -> int:
    """When a row happened, in µs: by up to 4 ms later than its place says, so that they are out of order."""
    return (row + row * 7 % 5) * 1_000


def timer_of(row: int) -> int:
    return time_of(row) + TIMER_AHEAD_US


def read(rows: Rows) -> range:
    """The numbers of the rows."""
    return range(rows[0] + 1, rows[1] + 1)


def newest_of(rows: Rows) -> int | None:
    return max(map(time_of, read(rows)), default=None)


def rows_in(rows: Iterable[int], groups: Iterable[int]) -> tuple[int, ...]:
    """Those of some key groups, in order."""
    wanted = set(groups)
    return tuple(sorted(row for row in rows if row % GROUP_COUNT in wanted))


def due(open_rows: Iterable[int], plan: PlanRecord) -> set[int]:
    """The rows whose timers fire in the epoch of a plan."""
    now = mark_of(plan).now_us
    return {row for row in open_rows if plan.closing or (now is not None and timer_of(row) <= now)}


def next_due(open_rows: Iterable[int]) -> NextDue:
    return NextDue(event_us=min(map(timer_of, open_rows), default=None))


def groups_of(given: KeyGroupRange) -> range:
    return range(given.first, given.end)


def mark_of(plan: PlanRecord) -> PlannedWatermark:
    return plan.watermarks.get(OPERATOR, PlannedWatermark())


def check_time(before: State, plan: PlanRecord, rows: Rows, fired: set[int], was: PlannedWatermark | None,
               fresh: bool) -> None:  # fmt: skip
    """What must hold of the epoch of a plan, which read `rows`. `was`: how it was judged when it was
    committed before. `fresh`: see Content."""
    name, mark = f"epoch {plan.epoch}", mark_of(plan)
    if was is not None:
        if mark != was:
            raise Violation(f"{name} is judged by {mark}, and was by {was}")
    elif mark.before_us != before.watermark_us:
        raise Violation(f"{name} is judged by {mark}, the epoch before it was at {before.watermark_us}")
    reached = before.watermark_us if mark.now_us is None else mark.now_us
    if before.watermark_us is not None and (mark.now_us is None or mark.now_us < before.watermark_us):
        raise Violation(f"{name}: the watermark goes back from {before.watermark_us} to {mark.now_us}")
    ahead = newest_of((0, before.through))
    if reached is not None and (ahead is None or reached > ahead - DELAY_US - 1):
        raise Violation(f"{name}: the watermark {reached} is ahead of the rows, which are at {ahead}")
    if fresh and was is None:
        reported = None if before.newest_us is None else before.newest_us - DELAY_US - 1
        made = max((at for at in (reported, before.watermark_us) if at is not None), default=None)
        if mark.now_us != made:
            raise Violation(f"{name}: the watermark is {mark.now_us}, the times reported make it {made}")
    _check_closing(before, plan, rows)
    _check_timers(before, plan, rows, fired)


def _check_closing(before: State, plan: PlanRecord, rows: Rows) -> None:
    if plan.closed_through != before.closed_through:
        raise Violation(
            f"epoch {plan.epoch} takes epoch {plan.closed_through} for the last that closed, it was "
            f"{before.closed_through}"
        )
    if plan.closing and before.closed_at == rows[1]:
        raise Violation(f"epoch {plan.epoch} closes again, and nothing was read since")


def _check_timers(before: State, plan: PlanRecord, rows: Rows, fired: set[int]) -> None:
    there = before.open | set(read(rows))
    wanted = due(there, plan)
    if again := sorted(fired - there):
        raise Violation(f"the timer of row {again[0]} fires in epoch {plan.epoch}, and is not open")
    if early := sorted(fired - wanted):
        raise Violation(f"the timer of row {early[0]} fires in epoch {plan.epoch}, before its time")
    if missed := sorted(wanted - fired):
        raise Violation(f"the timer of row {missed[0]} is due in epoch {plan.epoch} and does not fire")
