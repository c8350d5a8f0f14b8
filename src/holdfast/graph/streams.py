"""How a job is declared: streams, keyed streams and what can be done with them.

Each call appends one node to the declaration and gives back a stream to go on from. Nothing is checked and
nothing runs here: a missing uid or a wrong column is found by `validate.check`, all of them at once, so that
one run shows every mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from holdfast.connectors.channel import ChannelSink
from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.broadcast import BROADCAST_SUFFIX, BroadcastSide
from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.job_graph import (
    DEAD_LETTERS,
    LATE_ROWS,
    BroadcastConnectNode,
    BroadcastNode,
    ChannelNode,
    ConnectNode,
    DoorNode,
    Graph,
    LookupNode,
    Mistake,
    Node,
    OperatorNode,
    OutputNode,
    Part,
    Place,
    SinkNode,
    SourceNode,
    StreamNode,
    TransformNode,
    UnionNode,
    UnkeyedNode,
    WatermarkNode,
    shown,
)
from holdfast.graph.lookups import key_pairs
from holdfast.graph.once_each import Deduplicable
from holdfast.graph.protection import Protection, Rollback
from holdfast.graph.window_functions import Reduction, WindowProcess
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import Windowed
from holdfast.state.encoding.ttl import Ttl

if TYPE_CHECKING:
    from holdfast.connectors.contract import Sink, Source
    from holdfast.graph.aggregates import Aggregate
    from holdfast.graph.contexts import OutputRow
    from holdfast.graph.functions import (
        BatchFunction,
        BroadcastFunction,
        CoFunction,
        KeyedFunction,
        OperatorFunction,
    )
    from holdfast.graph.job_graph import OnError, StatefulFunction, Table, Transform
    from holdfast.graph.uncoordinated import Uncoordinated
    from holdfast.graph.window_functions import WindowFunction
    from holdfast.graph.windows import Window
    from holdfast.state.encoding.row_objects import Row

N = TypeVar("N", bound=Node)


class Declaration:
    """A job being declared. `graph()` gives what was declared so far, as plain data."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._place = Place.of_caller()
        self._nodes: list[Node] = []
        self._parts: list[Part] = []
        self._mistakes: list[Mistake] = []

    def source(
        self,
        source: Source,
        *,
        uid: str | None = None,
        on_error: OnError = "fail",
        stalled_after: str | None = None,
        part: Part | None = None,
    ) -> SourceStream:
        """Read rows from `source`. Its position is kept in checkpoints under `uid`.

        `on_error`: of a row that cannot be parsed, or that does not fit the source's schema: "fail" ends the
        run with its file, line and reason; "dead-letter" sets it aside, into `dead_letters()`.
        `stalled_after`: a duration such as "5m"; a source without rows for so long is said to be silent, in
        a message, in the status and in the metrics. `part`: where it is read, unless in part `main`.
        """
        node = SourceNode(
            uid=_given(uid),
            source=source,
            place=Place.of_caller(),
            on_error=on_error,
            stalled_after=stalled_after,
            part=part,
        )
        return SourceStream(self, self._add(node))

    def part(self, name: str, *, protection: Protection | None = None) -> Part:
        """A part of the job, which may run on a node of its own: `stream.into(part)` sends rows there, and
        `source(..., part=part)` reads there. What is in no other part is in part `main`.

        `protection`: how it survives the end of its node: `hf.Rollback()` unless given,
        `hf.PassiveStandby()`, `hf.ActiveReplicas(k)` or `hf.UpstreamBackup()`.
        """
        chosen = Rollback() if protection is None else protection
        made = Part(name=name, protection=chosen, place=Place.of_caller())
        self._parts.append(made)
        return made

    def graph(self) -> Graph:
        """What was declared so far. May be wrong: see `validate.check`."""
        return Graph(
            name=self.name, nodes=tuple(self._nodes), place=self._place, mistakes=tuple(self._mistakes),
            parts=tuple(self._parts),
        )  # fmt: skip

    def _add(self, node: N) -> N:
        self._nodes.append(node)
        return node

    def _foreign(self, call: str, given: object, wanted: str) -> None:
        """Note that something was given to a call that is not of this job, or of another kind."""
        problem = f"{self._shown(given)} is not a {wanted} of this job"
        remedy = f"give a {wanted} that came from this job's source()"
        if wanted == "keyed stream" and isinstance(given, Stream) and given._declaration is self:
            problem = "the stream that it was given has no keys"
            remedy = "say key_by(...) on it first"
            if call == "connect":
                remedy += ", or broadcast() if every key is to see its rows"
        self._mistakes.append(Mistake(Place.of_caller(), call, problem, remedy))

    def _shown(self, given: object) -> str:
        if not isinstance(given, Stream | KeyedStream | BroadcastStream):
            return shown(given)
        kind = type(given).__name__
        return kind if given._declaration is self else f"a {kind} of job {given._declaration.name!r}"

    def _output(self, parent: OperatorNode | SourceNode, name: str) -> OutputNode:
        for node in self._nodes:
            if isinstance(node, OutputNode) and node.parent is parent and node.name == name:
                return node
        return self._add(OutputNode(parent=parent, name=name, place=Place.of_caller()))


class Stream(Deduplicable):
    """Rows with columns, epoch after epoch."""

    def __init__(self, declaration: Declaration, node: StreamNode) -> None:
        self._declaration = declaration
        self._node = node

    def transform(self, fn: Transform, materialize: bool = False) -> Stream:
        """Apply `fn(DataFrame) -> DataFrame`: any stateless Spark SQL, one epoch's rows at a time.

        `fn` gives the same rows for the same input, in any order. If it cannot (random numbers, say), say
        `materialize=True`: its rows are then stored before they are used. For a join with a table that
        changes there is `lookup`. `fn` must not run Spark actions.
        """
        node = TransformNode(parent=self._node, fn=fn, materialize=materialize, place=Place.of_caller())
        return Stream(self._declaration, self._declaration._add(node))

    def watermark(self, column: str, delay: str = "0s", idle_after: str | None = None) -> Stream:
        """Say that `column`, a timestamp, is when a row happened: event time, which timers and windows go by.

        Rows may come out of order by up to `delay`: the *watermark*, up to where the stream is taken to be
        complete, is the newest time seen less that. Where several sources come together the slowest counts;
        one that has had no rows for `idle_after` is not waited for. Declare it right after the source:
        transforms and operators carry it on.
        """
        node = WatermarkNode(
            parent=self._node, column=column, delay=delay, idle_after=idle_after, place=Place.of_caller()
        )
        return Stream(self._declaration, self._declaration._add(node))

    def lookup(
        self,
        table: Table,
        *,
        on: str | tuple[str, str] | list[str | tuple[str, str]],
        how: Literal["inner", "left"] = "inner",
        refresh: str = "1h",
        uid: str | None = None,
    ) -> Stream:
        """Join each row with the rows of a table that changes slowly.

        `table`: a function that is given the Spark session and gives a DataFrame, or the path of Parquet
        files. A copy of it is stored in the checkpoint, and every epoch uses the copy that its plan names;
        when the copy is older than `refresh`, by the time of the plans, the next plan has a new one.
        `on`: the columns that are compared: 'k', ('column of the stream', 'column of the table'), or a list
        of these. Rows of the table with the same key all match; with `how="left"` a row that matches none
        has nulls. The columns are those of the stream, then those of the table but `on`; one whose name is
        taken gets the suffix `_right`.
        """
        node = LookupNode(
            uid=_given(uid),
            parent=self._node,
            table=table,
            on=key_pairs(on),
            how=how,
            refresh=refresh,
            place=Place.of_caller(),
        )
        return Stream(self._declaration, self._declaration._add(node))

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and of `others`, which have the same columns."""
        place = Place.of_caller()
        usable = [self._node]
        given: tuple[object, ...] = others
        for other in given:
            if isinstance(other, Stream) and other._declaration is self._declaration:
                usable.append(other._node)
            else:
                self._declaration._foreign("union", other, "stream")
        return Stream(
            self._declaration, self._declaration._add(UnionNode(parents=tuple(usable), place=place))
        )

    def key_by(self, *columns: str, order_by: str | Sequence[str] = ()) -> KeyedStream:
        """Bring the rows of each key together. A key's rows come in any order within an epoch, unless
        `order_by` names columns."""
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        return KeyedStream(self._declaration, self._node, tuple(columns), order)

    def process(
        self, function: OperatorFunction, *, uid: str | None = None, on_error: OnError = "fail"
    ) -> OperatorStream:
        """Run `function` for each row, with the lists of the shard that the row came to.

        Rows are spread evenly over the shards, in any order; which shard gets a row is not specified.
        `on_error`: as for keyed streams.
        """
        place = Place.of_caller()
        node = UnkeyedNode(
            uid=_given(uid), parent=self._node, function=function, on_error=on_error, place=place
        )
        return OperatorStream(self._declaration, self._declaration._add(node))

    def broadcast(self, order_by: str | Sequence[str] = ()) -> BroadcastStream:
        """Let every key of a keyed stream see these rows: `keyed.connect(rules.broadcast())`.

        `order_by`: the columns by which the rows of an epoch are sorted. Without it they come in the order in
        which Spark reads them: part after part of the source, unless a transform before shuffles them.
        """
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        return BroadcastStream(self._declaration, self._node, order)

    def into(
        self,
        part: Part,
        *,
        uid: str | None = None,
        limit_bytes: int = 1 << 30,
        limit_epochs: int = 1_000,
    ) -> Stream:
        """Send these rows through a channel into another part of the job, where the stream goes on.

        `uid` may be left out right after an operator. The part that sends them stops when so many bytes, or
        epochs, wait to be read and committed by the other, and goes on when that has caught up.
        """
        if uid is None and isinstance(self._node, OperatorNode) and isinstance(part, Part):
            uid = f"{self._node.uid}-to-{part.name}"
        node = ChannelNode(
            uid=_given(uid), parent=self._node, part=part, limit_bytes=limit_bytes,
            limit_epochs=limit_epochs, place=Place.of_caller(),
        )  # fmt: skip
        return Stream(self._declaration, self._declaration._add(node))

    def sink(self, sink: Sink | ChannelSink, *, uid: str | None = None) -> None:
        """Publish this stream's committed rows. A stream may have several sinks; it is computed once."""
        place = Place.of_caller()
        if isinstance(sink, ChannelSink):
            self._declaration._add(DoorNode(uid=_given(uid), parent=self._node, sink=sink, place=place))
        else:
            self._declaration._add(SinkNode(uid=_given(uid), parent=self._node, sink=sink, place=place))


class BroadcastStream:
    """A stream whose rows all keys of another one see: see `KeyedStream.connect`."""

    def __init__(self, declaration: Declaration, parent: StreamNode, order_by: tuple[str, ...]) -> None:
        self._declaration, self._parent, self._order_by = declaration, parent, order_by


class KeyedStream:
    """A stream whose rows are taken key by key, with state per key."""

    def __init__(
        self, declaration: Declaration, parent: StreamNode, key: tuple[str, ...], order_by: tuple[str, ...]
    ) -> None:
        self._declaration = declaration
        self._parent = parent
        self._key = key
        self._order_by = order_by

    def process(
        self,
        function: KeyedFunction,
        *,
        uid: str | None = None,
        on_error: OnError = "fail",
        protection: Uncoordinated | None = None,
    ) -> OperatorStream:
        """Run `function` for each row, with the state of the row's key.

        `on_error`: "fail" ends the run with the row, its key and the error; "dead-letter" sets the row aside,
        into `dead_letters()`, with nothing of it left in state. `protection`: its state is part of every
        checkpoint, or with `hf.Uncoordinated(...)` of none: each key is then saved on its own.
        """
        return self._operator(function, uid, on_error, protection)

    def process_batch(self, function: BatchFunction, *, uid: str | None = None) -> OperatorStream:
        """Run `function` for each shard's rows of an epoch as a whole: Arrow in, Arrow out, columnar
        state."""
        return self._operator(function, uid, "fail")

    def aggregate(
        self, *, uid: str | None = None, ttl: str | None = None, **aggregates: Aggregate
    ) -> OperatorStream:
        """Keep running aggregates per key; emits each touched key once per epoch: key columns, then one
        column each. `ttl`: a key that has had no rows for so long begins from nothing."""
        kept_for = None
        try:
            kept_for = Ttl.declared(ttl, None, None)
        except DefinitionError as refusal:
            mistake = Mistake.of_text(Place.of_caller(), "aggregate", str(refusal))
            self._declaration._mistakes.append(mistake)
        return self._operator(Aggregation(aggregates, kept_for), uid, "fail")

    def window(
        self,
        window: Window,
        *,
        on: str | None = None,
        allowed_lateness: str | None = None,
        emit_every: str | None = None,
    ) -> WindowedStream:
        """Take the rows of each key window by window, by the event time in column `on`: see `hf.tumbling`,
        `hf.sliding`, `hf.session`; or by their number, whatever the time: `hf.count_window`.

        A window closes when the watermark has passed its end, and is emitted once, with `revision`, the
        epoch. Rows that come later are in `.late()`; with `allowed_lateness` those that come within it are
        still added, and their windows are emitted again with a higher revision. `emit_every`: emit the
        windows that have changed also before they close, about so often.
        """
        return WindowedStream(self, window, on, allowed_lateness, emit_every)

    @overload
    def connect(self, right: KeyedStream) -> ConnectedStreams: ...
    @overload
    def connect(self, right: BroadcastStream) -> BroadcastConnectedStreams: ...
    def connect(self, right: KeyedStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStreams:
        """Bring the rows of this stream and of `right` together, for a function that sees both.

        By key, for a CoFunction: the key columns may have other names there; their types are the same. Or
        with `right = stream.broadcast()`, for a BroadcastFunction: every key sees all rows of `right`.
        """
        if isinstance(right, BroadcastStream) and right._declaration is self._declaration:
            return BroadcastConnectedStreams(self, right)
        if isinstance(right, BroadcastStream):
            self._declaration._foreign("connect", right, "broadcast stream")
            return BroadcastConnectedStreams(self, BroadcastStream(self._declaration, self._parent, ()))
        return ConnectedStreams(self, self._of_this_job("connect", right))

    def interval_join(
        self,
        right: KeyedStream,
        *,
        on: str | tuple[str, str],
        within: tuple[str, str],
        how: Literal["inner", "left", "right", "full"] = "inner",
        uid: str | None = None,
    ) -> OperatorStream:
        """Join with the rows of `right` that have the same key and are near in time.

        `on` names the columns of event time, one for both sides or one of each. `within=("-5m", "10m")`: the
        right row is at most 5 minutes earlier and at most 10 minutes later than the left one. With `how`
        other than "inner" rows without a partner are given out too, once the watermark has passed all that
        could be one. The columns are those of the left side, then those of the right side but its key; one
        whose name is taken gets the suffix `_right`. Rows behind the watermark go to `late()`.
        """
        other = self._of_this_job("interval_join", right)
        join = IntervalJoin((on, on) if isinstance(on, str) else on, within, how, other._key)
        return ConnectedStreams(self, other)._operator(join, uid, "fail")

    def window_join(
        self,
        right: KeyedStream,
        window: Window,
        *,
        on: str | tuple[str, str],
        how: Literal["inner", "left", "right", "full"] = "inner",
        uid: str | None = None,
    ) -> OperatorStream:
        """Join with the rows of `right` that have the same key and lie in the same window, `hf.tumbling` or
        `hf.sliding`.

        `on` names the columns of event time, one for both sides or one of each. A window is given out once,
        when the watermark has passed its end; with `how` other than "inner" also its rows without a partner
        there. The columns are the key, `window_start`, `window_end`, those of the left side, then those of
        the right side but its key; one whose name is taken gets the suffix `_right`. Rows that come after
        all their windows have closed go to `late()`.
        """
        other = self._of_this_job("window_join", right)
        join = WindowJoin((on, on) if isinstance(on, str) else on, window, how, other._key)
        return ConnectedStreams(self, other)._operator(join, uid, "fail")

    def _of_this_job(self, call: str, other: object) -> KeyedStream:
        if isinstance(other, KeyedStream) and other._declaration is self._declaration:
            return other
        self._declaration._foreign(call, other, "keyed stream")
        # In its place stands one of which nothing is known: its columns are no mistakes of their own.
        like = other if isinstance(other, Stream) and other._declaration is self._declaration else None
        parent = self._parent if like is None else like._node
        unknown = TransformNode(parent=parent, fn=lambda df: df, materialize=False, place=Place.of_caller())
        return KeyedStream(self._declaration, unknown, self._key, ())

    def _operator(
        self,
        function: StatefulFunction,
        uid: str | None,
        on_error: OnError,
        protection: Uncoordinated | None = None,
    ) -> OperatorStream:
        node = OperatorNode(
            uid=_given(uid),
            parent=self._parent,
            key=self._key,
            order_by=self._order_by,
            function=function,
            on_error=on_error,
            place=Place.of_caller(),
            uncoordinated=protection,
        )
        return OperatorStream(self._declaration, self._declaration._add(node))


class WindowedStream:
    """A keyed stream whose rows are taken window by window."""

    def __init__(
        self,
        keyed: KeyedStream,
        window: Window,
        on: str | None,
        allowed_lateness: str | None,
        emit_every: str | None,
    ) -> None:
        self._keyed, self._window, self._on = keyed, window, on
        self._allowed_lateness, self._emit_every = allowed_lateness, emit_every

    def aggregate(self, *, uid: str | None = None, **aggregates: Aggregate) -> OperatorStream:
        """Compute aggregates of each window: key columns, `window_start`, `window_end`, one column each, and
        `revision`."""
        return self._windowed(Aggregation(aggregates), uid)

    def reduce(self, fn: Callable[[Row, Row], OutputRow], *, uid: str | None = None) -> OperatorStream:
        """Make the rows of each window one, two at a time, in any order: `fn` gives a row of the same
        columns. Key columns, `window_start`, `window_end`, the other columns, and `revision`."""
        return self._windowed(Reduction(fn), uid)

    def process(self, function: WindowFunction, *, uid: str | None = None) -> OperatorStream:
        """Run `function` over all rows of each window: key columns, `window_start`, `window_end`, what it
        yields, and `revision`."""
        return self._windowed(WindowProcess(function), uid)

    def _windowed(
        self, computation: Aggregation | Reduction | WindowProcess, uid: str | None
    ) -> OperatorStream:
        function = Windowed(self._window, self._on, computation, self._allowed_lateness, self._emit_every)
        return self._keyed._operator(function, uid, "fail")


class SourceStream(Stream):
    """What a source reads: its rows, with those that it could not parse at hand."""

    _node: SourceNode

    def dead_letters(self) -> Stream:
        """The rows that could not be parsed, if the source was declared with `on_error="dead-letter"`:
        `file string, line long, row string, reason string, epoch long`."""
        return Stream(self._declaration, self._declaration._output(self._node, DEAD_LETTERS))


class ConnectedStreams:
    """Two keyed streams whose rows are taken key by key, with one state per key."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        self._left, self._right = left, right

    def process(
        self, function: CoFunction, *, uid: str | None = None, on_error: OnError = "fail"
    ) -> OperatorStream:
        """Run `function` for each row of either stream, with the state of the row's key.

        `on_error`: as for `KeyedStream.process`.
        """
        return self._operator(function, uid, on_error)

    def _operator(self, function: StatefulFunction, uid: str | None, on_error: OnError) -> OperatorStream:
        left, right = self._left, self._right
        node = ConnectNode(
            uid=_given(uid),
            parent=left._parent,
            key=left._key,
            order_by=left._order_by,
            right=right._parent,
            right_key=right._key,
            right_order_by=right._order_by,
            function=function,
            on_error=on_error,
            place=Place.of_caller(),
        )
        return OperatorStream(left._declaration, left._declaration._add(node))


class BroadcastConnectedStreams:
    """A keyed stream, and one whose rows all of its keys see."""

    def __init__(self, keyed: KeyedStream, broadcast: BroadcastStream) -> None:
        self._keyed, self._broadcast = keyed, broadcast

    def process(
        self,
        function: BroadcastFunction,
        *,
        uid: str | None = None,
        on_error: OnError = "fail",
        protection: Uncoordinated | None = None,
    ) -> OperatorStream:
        """Run `function` for each row of either stream: in every epoch the broadcast rows first.

        `on_error`: as for `KeyedStream.process`, of the rows of both. The broadcast states are kept under
        `<uid>.broadcast`. `protection`: none but the checkpoint is possible here.
        """
        keyed, place, declaration = self._keyed, Place.of_caller(), self._keyed._declaration
        own = _given(uid)
        broadcast = BroadcastNode(
            uid=f"{own}{BROADCAST_SUFFIX}" if own else "",
            parent=self._broadcast._parent,
            order_by=self._broadcast._order_by,
            function=BroadcastSide(function),
            on_error=on_error,
            place=place,
        )
        node = BroadcastConnectNode(
            uid=own,
            parent=keyed._parent,
            key=keyed._key,
            order_by=keyed._order_by,
            function=function,
            on_error=on_error,
            place=place,
            uncoordinated=protection,
            broadcast=declaration._add(broadcast),
        )
        return OperatorStream(declaration, declaration._add(node))


class OperatorStream(Stream):
    """What an operator emits: its main output, with the further ones at hand."""

    _node: OperatorNode

    def dead_letters(self) -> Stream:
        """The rows that the function failed on, if the operator was declared with
        `on_error="dead-letter"`."""
        return self.output(DEAD_LETTERS)

    def late(self) -> Stream:
        """Of an operator over windows: the rows that came after all their windows had closed, or that have no
        time, with the watermark as a further column. Of a join by time: the rows that came behind the
        watermark (by windows: after all their windows had closed), or that have no time: `side`, `left`,
        `right`, `watermark`."""
        return self.output(LATE_ROWS)

    def output(self, name: str) -> Stream:
        """The rows that the function gave to `ctx.emit_to(name, row)`."""
        return Stream(self._declaration, self._declaration._output(self._node, name))


def _given(uid: Any) -> Any:
    return "" if uid is None else uid
