"""A function of a job, tested without Spark: rows in, rows out, its state, and crashes in between.

The operators are those that run inside Spark's tasks, and state is checkpointed and restored through the very
bytes that a job stores. What is missing is what lies around them: Spark, and with it transforms; several
shards; sources and sinks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregate, Aggregation
from holdfast.graph.column_types import known_schema
from holdfast.graph.functions import OperatorFunction
from holdfast.graph.job_graph import (
    DEAD_LETTERS,
    MAIN_OUTPUT,
    Graph,
    OperatorNode,
    Place,
    SinkNode,
    SourceNode,
    UnkeyedNode,
)
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check
from holdfast.state.encoding.row_objects import Row
from holdfast.state.encoding.types import parse_schema, schema_ddl
from holdfast.tasks.operators.result import EpochContext
from holdfast.testing.one_shard import Shard, shard_of
from holdfast.testing.sent_rows import guessed_schema, rows_of_table, table_of_sent

if TYPE_CHECKING:
    from holdfast.graph.job_graph import OnError, StatefulFunction

UID = "function"
"""What the function is called in errors."""

_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

SentRow = Mapping[str, Any] | Sequence[Any]
"""A row to send: columns by name, or values in the order of `schema`."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What one epoch was given, so that it can be run again; and what it gave out."""

    rows: pa.Table
    clock_ms: int
    outputs: Mapping[str, pa.Table]


class Harness:
    """Runs one function on the rows that a test sends.

        totals = Harness(TotalLength(), key="user")
        assert totals.send({"user": "anna", "word": "kelp"}) == [("anna", 4)]
        totals.crash()
        assert totals.state("anna") == {"total": 4}

    `function`: a KeyedFunction or BatchFunction with its `key` (a column, or several), or an OperatorFunction
    without. `schema`: the columns of the rows as in `hf.FileSource`; without it they are guessed from the
    first rows. `order_by`, `on_error`: as where the function is declared in a job.

    Each `send` is one epoch. Every `checkpoint_every` of them there is a checkpoint; None: only when
    `checkpoint` is called. As with a job, output is shown with the checkpoint that holds its epoch.
    """

    def __init__(
        self,
        function: StatefulFunction,
        *,
        key: str | Sequence[str] = (),
        schema: str | None = None,
        order_by: str | Sequence[str] = (),
        on_error: OnError = "fail",
        checkpoint_every: int | None = 1,
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise DefinitionError(
                f"checkpoint_every={checkpoint_every} is below 1; give a number of sends, or None for none"
            )
        self._function = function
        self._key, self._order_by, self._on_error = _names(key), _names(order_by), on_error
        self._every = checkpoint_every
        self._clock_ms = 0
        self._epoch = 0
        self._pending: list[_Epoch] = []
        """Run since the last checkpoint."""
        self._thrown_away: list[_Epoch] = []
        self._shown: dict[str, list[Row]] = {}
        self._schema = pa.schema([])
        self._shard: Shard | None = None
        if schema is not None:
            self._begin(parse_schema(schema))

    @classmethod
    def of(
        cls, job: Declaration, uid: str, *, schema: str | None = None, checkpoint_every: int | None = 1
    ) -> Harness:
        """The operator `uid` of a declared job, as it was declared there.

        `schema`: needed where only Spark knows the columns that come in, which is behind a transform.
        """
        nodes = {node.uid: node for node in job.graph().operators}
        node = nodes.get(uid)
        if node is None:
            known = ", ".join(map(repr, nodes)) or "none"
            raise DefinitionError(f"job {job.name!r} has no operator {uid!r}; there are: {known}")
        if node.uncoordinated is not None:
            raise DefinitionError(
                f"operator {uid!r} saves its keys on their own, which the harness does not do; give its "
                "function to Harness(...)"
            )
        rows = known_schema(node.parent)
        if schema is None and rows is None:
            raise DefinitionError(
                f"the columns that operator {uid!r} gets are not known without Spark; give schema='...'"
            )
        return cls(
            node.function,
            key=node.key,
            schema=schema_ddl(rows) if schema is None else schema,
            order_by=node.order_by,
            on_error=node.on_error,
            checkpoint_every=checkpoint_every,
        )

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
        if self._shard is None:
            if not rows:
                return []
            self._begin(guessed_schema(rows))
        sent = table_of_sent(rows, self._schema)
        self._thrown_away = []
        return self._run(sent, self._clock_ms)

    def clock(self, at: int | dt.datetime) -> None:
        """Processing time is `at` from here on: ms since 1970, or a moment (in UTC, if it names no zone)."""
        at_ms = _ms(at)
        if at_ms < self._clock_ms:
            raise ValueError(
                f"the clock is at {self._clock_ms} ms and cannot go back to {at_ms}; processing time never "
                "does in a job: give a later time, or begin a new Harness"
            )
        self._clock_ms = at_ms

    def checkpoint(self) -> None:
        """Make everything so far durable, and show its output."""
        if self._shard is not None:
            self._shard.checkpoint()
        for epoch in self._pending:
            for name, table in epoch.outputs.items():
                self._shown.setdefault(name, []).extend(rows_of_table(table))
        self._pending = []

    def crash(self) -> None:
        """Throw everything away but the last checkpoint, and restore that. `replay` sends again what a
        job's sources would."""
        self._epoch -= len(self._pending)
        self._thrown_away, self._pending = self._pending, []
        if self._shard is not None:
            self._shard.restore()

    def replay(self) -> list[Row]:
        """Run the epochs again that the crash just before threw away: the same rows at the same times. Gives
        what they add to the main output."""
        again, self._thrown_away = self._thrown_away, []
        return [row for epoch in again for row in self._run(epoch.rows, epoch.clock_ms)]

    @property
    def outputs(self) -> list[Row]:
        """The rows of the main output that a sink would show, in the order in which they were made."""
        return self.output(MAIN_OUTPUT)

    def output(self, name: str) -> list[Row]:
        """The same for the side output `name`."""
        known = [MAIN_OUTPUT, *getattr(self._function, "outputs", {}), DEAD_LETTERS]
        if name not in known:
            declared = ", ".join(map(repr, known[1:-1])) or "none"
            raise DefinitionError(
                f"there is no side output {name!r}; declared are: {declared}; name one of them"
            )
        return list(self._shown.get(name, ()))

    @property
    def dead_letters(self) -> list[Row]:
        """With `on_error="dead-letter"`: the rows set aside, with the columns `row`, `key`, `error` and
        `epoch`."""
        return self.output(DEAD_LETTERS)

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

    def _begin(self, schema: pa.Schema) -> None:
        """Now that the columns are known: let the operator be checked as a job's, and start it empty."""
        place = Place.of_caller()
        source = SourceNode(uid="sent", source=MemorySource([], schema=schema_ddl(schema)), place=place)
        unkeyed = isinstance(self._function, OperatorFunction) and not self._key
        operator = (UnkeyedNode if unkeyed else OperatorNode)(
            uid=UID,
            parent=source,
            key=self._key,
            order_by=self._order_by,
            function=self._function,
            on_error=self._on_error,
            place=place,
        )
        # Of the source: whether the operator's main output is looked at is the test's business.
        sink = SinkNode(uid="sink", parent=source, sink=MemorySink(), place=place)
        check(Graph(name="harness", nodes=(source, operator, sink), place=place))
        self._schema, self._shard = schema, shard_of(operator, schema)

    def _run(self, rows: pa.Table, clock_ms: int) -> list[Row]:
        assert self._shard is not None
        epoch = self._epoch + 1
        ctx = EpochContext(UID, epoch, clock_ms, 0, self._on_error)
        outputs = self._shard.run(rows, ctx)
        self._epoch = epoch
        self._pending.append(_Epoch(rows, clock_ms, outputs))
        if self._every is not None and len(self._pending) >= self._every:
            self.checkpoint()
        return rows_of_table(outputs[MAIN_OUTPUT]) if MAIN_OUTPUT in outputs else []


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _ms(at: int | dt.datetime) -> int:
    if isinstance(at, int):
        return at
    moment = at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)
    return (moment - _1970) // dt.timedelta(milliseconds=1)
