"""A function of a job, tested without Spark: rows in, rows out, its state, and crashes in between.

The operators are those that run inside Spark's tasks, and state is checkpointed and restored through the very
bytes that a job stores. What is missing is what lies around them: Spark, and with it transforms; several
shards; sources and sinks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregate, Aggregation
from holdfast.graph.job_graph import (
    DEAD_LETTERS,
    LATE_ROWS,
    MAIN_OUTPUT,
    BroadcastConnectNode,
    ConnectNode,
)
from holdfast.graph.streams import Declaration
from holdfast.state.cells.timers import datetime_of, microseconds
from holdfast.state.encoding.row_objects import Row
from holdfast.state.encoding.types import parse_schema
from holdfast.tasks.operators.result import EpochContext, EventTime
from holdfast.tasks.operators.two_inputs import SideOrder
from holdfast.testing.broadcast_shard import BroadcastShard
from holdfast.testing.declared_operator import operator_of, without_zone
from holdfast.testing.one_shard import Shard, shard_of
from holdfast.testing.sent_rows import guessed_schema, rows_of_table, table_of_sent
from holdfast.testing.tested_operator import Tested
from holdfast.testing.two_inputs import Sides

if TYPE_CHECKING:
    from holdfast.graph.job_graph import OnError, StatefulFunction

FIRINGS_MAX = 100
"""How many epochs in a row timers may bring about that timers set."""

SentRow = Mapping[str, Any] | Sequence[Any]
"""A row to send: columns by name, or values in the order of `schema`."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What one epoch was given, so that it can be run again; and what it gave out."""

    rows: pa.Table
    clock_ms: int
    time: EventTime | None
    outputs: Mapping[str, pa.Table]
    broadcast: bool = False
    """Its rows are those of the broadcast stream."""


@dataclass(frozen=True, slots=True)
class _Reached:
    """How far event time is: the watermark, and the newest epoch in which the input was at its end."""

    watermark_us: int | None = None
    closed_through: int = 0


class Harness:
    """Runs one function on the rows that a test sends.

        totals = Harness(TotalLength(), key="user")
        assert totals.send({"user": "anna", "word": "kelp"}) == [("anna", 4)]
        totals.crash()
        assert totals.state("anna") == {"total": 4}

    `function`: a KeyedFunction or BatchFunction with its `key` (a column, or several), or an OperatorFunction
    without. `schema`: the columns of the rows as in `hf.FileSource`; without it they are guessed from the
    first rows. `order_by`, `on_error`: as where the function is declared in a job.

    A CoFunction, or a BroadcastFunction, reads two streams: `right_schema` has the columns of the second one,
    `right_key` its key where the columns have other names, `right_order_by` its order. Rows are then sent
    with `send_left` and `send_right`, or with `send` and `broadcast`.

    Each `send` is one epoch. Every `checkpoint_every` of them there is a checkpoint; None: only when
    `checkpoint` is called. As with a job, output is shown with the checkpoint that holds its epoch. Time
    stands still: `watermark` and `clock` move it, and fire the timers that are due then.
    """

    def __init__(
        self,
        function: StatefulFunction,
        *,
        key: str | Sequence[str] = (),
        schema: str | None = None,
        order_by: str | Sequence[str] = (),
        right_key: str | Sequence[str] = (),
        right_schema: str | None = None,
        right_order_by: str | Sequence[str] = (),
        on_error: OnError = "fail",
        checkpoint_every: int | None = 1,
    ) -> None:
        tested = Tested(
            function=function,
            key=_names(key),
            order_by=_names(order_by),
            right_key=_names(right_key),
            right_order_by=_names(right_order_by),
            on_error=on_error,
        )
        self._prepare(tested, checkpoint_every)
        tested.check_columns(schema, right_schema)
        if schema is not None:
            self._begin(parse_schema(schema), None if right_schema is None else parse_schema(right_schema))

    def _prepare(self, tested: Tested, checkpoint_every: int | None) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise DefinitionError(
                f"checkpoint_every={checkpoint_every} is below 1; give a number of sends, or None for none"
            )
        self._tested = tested
        self._every = checkpoint_every
        self._clock_ms = self._epoch = 0
        self._naive = False
        self._reached = self._checkpointed = _Reached()
        self._pending: list[_Epoch] = []
        """Run since the last checkpoint."""
        self._thrown_away: list[_Epoch] = []
        self._shown: dict[str, list[Row]] = {}
        self._schema = pa.schema([])
        self._sides: Sides | None = None
        """Of two keyed streams: how their rows come together."""
        self._right = pa.schema([])
        """The columns of a broadcast stream."""
        self._shard: Shard | None = None

    @classmethod
    def of(
        cls,
        job: Declaration,
        uid: str,
        *,
        schema: str | None = None,
        right_schema: str | None = None,
        checkpoint_every: int | None = 1,
    ) -> Harness:
        """The operator `uid` of a declared job, as it was declared there.

        `schema`, `right_schema`: needed where only Spark knows the columns that come in, which is behind a
        transform.
        """
        operator = operator_of(job, uid, schema, right_schema)
        harness = cls.__new__(cls)
        harness._prepare(operator.tested, checkpoint_every)
        harness._begin(operator.rows, operator.right)
        harness._naive = operator.naive
        return harness

    @classmethod
    def aggregate(
        cls,
        *,
        key: str | Sequence[str],
        schema: str | None = None,
        order_by: str | Sequence[str] = (),
        checkpoint_every: int | None = 1,
        **aggregates: Aggregate,
    ) -> Harness:
        """Running aggregates, as `keyed.aggregate(...)` declares them."""
        return cls(
            Aggregation(aggregates),
            key=key,
            schema=schema,
            order_by=order_by,
            checkpoint_every=checkpoint_every,
        )

    def send(self, *rows: SentRow) -> list[Row]:
        """Run one epoch over these rows; gives what it adds to the main output.

        UserCodeError, as the job would fail with: nothing of these rows counts, and the test may go on.
        """
        if self._tested.joins:
            raise DefinitionError(f"{self._name} reads two streams; say send_left(...) or send_right(...)")
        if self._shard is None:
            if not rows:
                return []
            self._begin(guessed_schema(rows), None)
        return self._advance(table_of_sent(rows, self._schema), self._time())

    def send_left(self, *rows: SentRow) -> list[Row]:
        """As `send`, to a function of two keyed streams: rows of the one that `connect` is called on."""
        return self.send_both(rows, ())

    def send_right(self, *rows: SentRow) -> list[Row]:
        """As `send_left`, rows of the other stream."""
        return self.send_both((), rows)

    def send_both(self, left: Sequence[SentRow], right: Sequence[SentRow]) -> list[Row]:
        """As `send_left` and `send_right`, in one epoch."""
        if self._sides is None:
            raise DefinitionError(f"{self._name} does not read two keyed streams; say send(...)")
        return self._advance(self._sides.table(left, right), self._time())

    def broadcast(self, *rows: SentRow) -> list[Row]:
        """Run one epoch over these rows of the broadcast stream of a BroadcastFunction; gives what it adds to
        the main output."""
        if not isinstance(self._shard, BroadcastShard):
            raise DefinitionError(f"{self._name} reads no broadcast stream; say send(...)")
        return self._advance(table_of_sent(rows, self._right), self._time(), broadcast=True)

    @property
    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """The broadcast states of a BroadcastFunction, by name; one that was never written is not there."""
        return self._shard.broadcast_state() if isinstance(self._shard, BroadcastShard) else {}

    def watermark(self, at: int | dt.datetime) -> list[Row]:
        """Event time has come to `at`: ms since 1970, or a moment (in UTC, if it names no zone). One epoch
        without rows, in which event timers up to there fire; gives what it adds to the main output."""
        at_us = microseconds(at)
        if not self._tested.has_event_time:
            raise DefinitionError(
                "no watermark is declared before the operator in its job; declare "
                "stream.watermark('column', delay='10s') right after the source"
            )
        before_us = self._reached.watermark_us
        if before_us is not None and at_us < before_us:
            raise _back("the watermark", before_us, at_us)
        if self._shard is None:
            self._reached = self._checkpointed = _Reached(at_us)
            return []
        time = self._time()
        assert time is not None
        return self._advance(self._schema.empty_table(), replace(time, now_us=at_us))

    def end_of_input(self) -> list[Row]:
        """There are no more rows: one epoch in which all event timers fire, as in a job that has read
        everything. Gives what it adds to the main output."""
        time = self._time()
        if self._shard is None or time is None:
            return []
        return self._advance(self._schema.empty_table(), replace(time, closing=True))

    def clock(self, at: int | dt.datetime) -> list[Row]:
        """Processing time is `at` from here on, given as for `watermark`. Processing timers up to there fire,
        in an epoch without rows if there are any; gives what that adds to the main output."""
        at_ms = microseconds(at) // 1_000
        if at_ms < self._clock_ms:
            raise _back("processing time", self._clock_ms * 1_000, at_ms * 1_000)
        self._clock_ms = at_ms
        return self._fire()

    def checkpoint(self) -> None:
        """Make everything so far durable, and show its output."""
        if self._shard is not None:
            self._shard.checkpoint()
        for epoch in self._pending:
            for name, table in epoch.outputs.items():
                self._shown.setdefault(name, []).extend(rows_of_table(table))
        self._pending, self._checkpointed = [], self._reached

    def crash(self) -> None:
        """Throw everything away but the last checkpoint, and restore that. `replay` sends again what a
        job's sources would."""
        self._epoch -= len(self._pending)
        self._thrown_away, self._pending = self._pending, []
        self._reached = self._checkpointed
        if self._shard is not None:
            self._shard.restore()

    def replay(self) -> list[Row]:
        """Run the epochs again that the crash just before threw away: the same rows at the same times. Gives
        what they add to the main output."""
        again, self._thrown_away = self._thrown_away, []
        return [
            row
            for epoch in again
            for row in self._run(epoch.rows, epoch.clock_ms, epoch.time, epoch.broadcast)
        ]

    @property
    def outputs(self) -> list[Row]:
        """The rows of the main output that a sink would show, in the order in which they were made."""
        return self.output(MAIN_OUTPUT)

    def output(self, name: str) -> list[Row]:
        """The same for the side output `name`."""
        known = [MAIN_OUTPUT, *getattr(self._tested.function, "outputs", {}), DEAD_LETTERS, LATE_ROWS]
        if name not in known:
            declared = ", ".join(map(repr, known[1:-2])) or "none"
            raise DefinitionError(
                f"there is no side output {name!r}; declared are: {declared}; name one of them"
            )
        return list(self._shown.get(name, ()))

    @property
    def dead_letters(self) -> list[Row]:
        """With `on_error="dead-letter"`: the rows set aside, with the columns `row`, `key`, `error` and
        `epoch`."""
        return self.output(DEAD_LETTERS)

    @property
    def late(self) -> list[Row]:
        """The rows that `late()` of the operator has: those that came after all their windows had closed, or
        behind the watermark of a join, with the watermark of then."""
        return self.output(LATE_ROWS)

    def state(self, key: Any = None) -> dict[str, Any]:
        """What is stored of a key (a value, or a tuple or a dict for several columns), by state. A state of
        which nothing is stored is not there. Of an OperatorFunction: its lists."""
        if self._shard is None:
            return {}
        return self._shard.state(key)

    @property
    def keys(self) -> list[Any]:
        """The keys of which anything is stored; tuples where there are several key columns."""
        return [] if self._shard is None else self._shard.keys()

    def timers(self, key: Any) -> dict[str, list[dt.datetime]]:
        """The timers of a key that have not fired, by their clock: "event", "processing". A clock without
        timers is not there."""
        found = {} if self._shard is None else self._shard.timers(key)
        return {
            clock: [datetime_of(at, self._naive and clock == "event") for at in times]
            for clock, times in found.items()
        }

    @property
    def _name(self) -> str:
        return type(self._tested.function).__name__

    def _begin(self, schema: pa.Schema, right: pa.Schema | None) -> None:
        """Now that the columns are known: let the operator be checked as a job's, and start it empty."""
        operator = self._tested.operator(schema, right)
        self._naive = without_zone(schema)
        self._schema = schema
        if isinstance(operator, BroadcastConnectNode):
            assert right is not None
            self._right, self._shard = right, BroadcastShard(operator, schema, right)
            return
        if isinstance(operator, ConnectNode):
            assert right is not None
            order = SideOrder(operator.order_by, operator.right_order_by)
            self._sides = Sides(schema, right, operator.key, operator.right_key, order)
            self._schema = self._sides.schema
        self._shard = shard_of(operator, self._schema)

    def _time(self) -> EventTime | None:
        """Event time as it is."""
        if not self._tested.has_event_time:
            return None
        now_us, closed_through = self._reached.watermark_us, self._reached.closed_through
        return EventTime(now_us, now_us, closed_through=closed_through, naive=self._naive)

    def _advance(self, rows: pa.Table, time: EventTime | None, broadcast: bool = False) -> list[Row]:
        """One more epoch, and those that it makes due."""
        self._thrown_away = []
        return self._run(rows, self._clock_ms, time, broadcast) + self._fire()

    def _fire(self) -> list[Row]:
        """As many epochs without rows as are due."""
        made: list[Row] = []
        for _ in range(FIRINGS_MAX):
            if self._shard is None or not self._shard.is_due(self._time(), self._clock_ms):
                return made
            self._thrown_away = []
            made += self._run(self._schema.empty_table(), self._clock_ms, self._time())
        raise DefinitionError(
            f"on_timer has set timers that were due at once in {FIRINGS_MAX} epochs one after the other, and "
            "a job would never end with that; set them later than the one that fires"
        )

    def _run(
        self, rows: pa.Table, clock_ms: int, time: EventTime | None, broadcast: bool = False
    ) -> list[Row]:
        assert self._shard is not None
        epoch = self._epoch + 1
        ctx = EpochContext(self._tested.uid, epoch, clock_ms, 0, self._tested.on_error, time)
        if broadcast and isinstance(self._shard, BroadcastShard):
            outputs = self._shard.run_broadcast(rows, ctx)
        else:
            outputs = self._shard.run(rows, ctx)
        self._epoch = epoch
        if time is not None:
            self._reached = _Reached(time.now_us, epoch if time.closing else time.closed_through)
        self._pending.append(_Epoch(rows, clock_ms, time, outputs, broadcast))
        if self._every is not None and len(self._pending) >= self._every:
            self.checkpoint()
        return rows_of_table(outputs[MAIN_OUTPUT]) if MAIN_OUTPUT in outputs else []


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _back(clock: str, now_us: int, at_us: int) -> ValueError:
    return ValueError(
        f"{clock} is at {datetime_of(now_us)} and cannot go back to {datetime_of(at_us)}, as it never does "
        "in a job; give a later time, or begin a new Harness"
    )
