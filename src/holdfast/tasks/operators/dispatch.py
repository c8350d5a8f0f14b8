"""Which code runs an operator's function over a shard, and when the shard has something to do next."""

from __future__ import annotations

from dataclasses import replace

from holdfast.graph.aggregates import Aggregation
from holdfast.graph.functions import BatchFunction, BroadcastFunction, CoFunction, KeyedFunction
from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.partials import Partials
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import (
    CLOSINGS,
    EMISSIONS,
    SessionWindow,
    TimeWindow,
    Windowed,
)
from holdfast.ids import KeyGroupRange
from holdfast.state.cells.timers import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state.contract import NextDue, ShardState
from holdfast.state.encoding.layout import StateKind, StateLayout
from holdfast.state.encoding.ttl import TtlClock
from holdfast.tasks.operators.aggregate import run_aggregate
from holdfast.tasks.operators.batch_function import run_batch
from holdfast.tasks.operators.broadcast import BroadcastEntries, run_with_broadcast
from holdfast.tasks.operators.due import earliest
from holdfast.tasks.operators.expiry import earliest_expiry, expire, stamp
from holdfast.tasks.operators.interval_join import first_given_up, run_interval_join
from holdfast.tasks.operators.result import EpochContext, EventTime, OperatorResult
from holdfast.tasks.operators.row_function import run_rows
from holdfast.tasks.operators.shard_rows import KeyedSlice
from holdfast.tasks.operators.two_inputs import run_sides
from holdfast.tasks.operators.window_join import next_window_close, run_window_join
from holdfast.tasks.operators.windows.count_windows import run_count_windows
from holdfast.tasks.operators.windows.session_windows import run_session_windows
from holdfast.tasks.operators.windows.time_windows import next_close, run_time_windows

KeyedOperator = (
    KeyedFunction
    | BatchFunction
    | Aggregation
    | Windowed
    | CoFunction
    | IntervalJoin
    | WindowJoin
    | BroadcastFunction
)
"""The functions of operators with keys."""


def run_function(
    function: KeyedOperator,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    partials: Partials | None = None,
    broadcast: BroadcastEntries | None = None,
) -> OperatorResult:
    """Run a function over a shard's rows, and over what has become due there; then remove what has
    expired. `broadcast`: the broadcast states that a BroadcastFunction reads."""
    done = _run(function, layout, keyed, state, ctx, partials, broadcast or {})
    if not layout.expiring:
        return done
    stamp(layout, done.changes, ctx.instants)
    changes, index = expire(layout, done.changes, state, ctx.groups, ctx.instants)
    return replace(done, changes=changes, index=tuple(index))


def _run(
    function: KeyedOperator,
    layout: StateLayout,
    keyed: KeyedSlice,
    state: ShardState,
    ctx: EpochContext,
    partials: Partials | None,
    broadcast: BroadcastEntries,
) -> OperatorResult:
    if isinstance(function, Aggregation):
        return run_aggregate(function, layout, keyed, state, ctx, partials)
    if isinstance(function, Windowed) and isinstance(function.window, TimeWindow):
        return run_time_windows(function, layout, keyed, state, ctx, partials)
    if isinstance(function, Windowed):
        run = run_session_windows if isinstance(function.window, SessionWindow) else run_count_windows
        return run(function, layout, keyed, state, ctx)
    if isinstance(function, IntervalJoin):
        return run_interval_join(function, layout, keyed, state, ctx)
    if isinstance(function, WindowJoin):
        return run_window_join(function, layout, keyed, state, ctx)
    if isinstance(function, BroadcastFunction):
        return run_with_broadcast(function, layout, keyed, state, ctx, broadcast)
    if isinstance(function, CoFunction):
        return run_sides(function, layout, keyed, state, ctx)
    if isinstance(function, BatchFunction):
        return run_batch(function, layout, keyed, state, ctx)
    return run_rows(function, layout, keyed, state, ctx)


def keeps_times(layout: StateLayout) -> bool:
    """Whether an operator may have something to do without rows."""
    return bool(layout.expiring) or any(field.kind is StateKind.TIMED for field in layout.fields)


def next_due(
    function: KeyedOperator,
    layout: StateLayout,
    groups: KeyGroupRange,
    state: ShardState,
    time: EventTime | None,
) -> NextDue | None:
    """When a shard has something to do next without rows, by its state after an epoch. None: its operator
    keeps no times."""
    if not keeps_times(layout):
        return None

    def first(name: str) -> int | None:
        return earliest(layout.by_name[name], groups, state) if name in layout.by_name else None

    def soonest(clock: TtlClock, *due: int | None) -> int | None:
        expiring = [each for each in layout.expiring if each.ttl is not None and each.ttl.clock == clock]
        all_due = (*due, *(earliest_expiry(each, groups, state) for each in expiring))
        return min((at_us for at_us in all_due if at_us is not None), default=None)

    now_us = time.now_us if time is not None else None
    if isinstance(function, Windowed) and isinstance(function.window, TimeWindow):
        return NextDue(
            event_us=next_close(function, layout, groups, state, now_us), processing_us=first(EMISSIONS)
        )
    if isinstance(function, Windowed):
        return NextDue(event_us=first(CLOSINGS))
    if isinstance(function, IntervalJoin):
        return NextDue(event_us=first_given_up(function, layout, groups, state))
    if isinstance(function, WindowJoin):
        return NextDue(event_us=next_window_close(function, layout, groups, state, now_us))
    return NextDue(
        event_us=soonest("event", first(EVENT_TIMERS)),
        processing_us=soonest("processing", first(PROCESSING_TIMERS)),
    )
