"""A graph made ready to run: which streams are staged, under which names, and what every operator reads and
stores.

Always true: every stateful operator is a stage, and what reads its rows reads the staged ones, so nothing is
ever computed twice across a stateful operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import DefinitionError, first_line
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.column_types import (
    SOURCE_DEAD_LETTER_SCHEMA,
    known_input,
    output_schemas,
    sink_refusals,
    state_layout,
)
from holdfast.graph.event_time import no_event_time, no_timestamp, watermarks_of
from holdfast.graph.job_graph import (
    MAIN_OUTPUT,
    BroadcastConnectNode,
    BroadcastNode,
    CarriedNode,
    ChannelNode,
    ConnectNode,
    DoorNode,
    Graph,
    InletNode,
    LookupNode,
    Mistake,
    Node,
    OperatorNode,
    OutletNode,
    OutputNode,
    SinkNode,
    SourceNode,
    StreamNode,
    TransformNode,
    UnionNode,
    UnkeyedNode,
    WatermarkNode,
    describe,
    parents_of,
)
from holdfast.graph.lookups import key_mistakes
from holdfast.graph.partials import Partials, holds_floats, partials_of
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.two_inputs import connected_schema, pair_mistakes
from holdfast.graph.windows import Windowed
from holdfast.runtime.epoch.looked_up import looked_up, table_frame
from holdfast.state.encoding.keys import routing_expression
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.encoding.types import frame_ddl, parse_schema, parse_type, relaxed
from holdfast.state.files.schema_conversion import Lineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Stage:
    """A stream whose rows are staged in every epoch. `outputs`: output name -> stream name, for those
    that are read.
    """

    stream: str
    node: StreamNode
    outputs: dict[str, str]


@dataclass(frozen=True)
class OperatorForm:
    """What an operator reads and stores, known once the columns of its input are."""

    input: pa.Schema
    layout: StateLayout
    routing: str
    """What a row's key group comes from; empty for an operator without keys."""
    lineage: Lineage
    """The layouts of its stored state up to this one; nothing before it until schemas were compared."""
    naive_time: bool | None = None
    """Whether its event times have no time zone. None: event time does not reach it."""
    partials: Partials | None = None
    """How its rows can be combined; None: they cannot."""


@dataclass(frozen=True)
class Program:
    """What runs in every epoch, in order."""

    graph: Graph
    stages: tuple[Stage, ...]
    streams: dict[Node, str]
    sinks: dict[str, str]
    """Sink uid -> the stream that it publishes."""
    forms: dict[str, OperatorForm]
    schemas: dict[str, pa.Schema]
    """Stream name -> columns of its staged rows."""
    tables: dict[str, pa.Schema] = field(default_factory=dict)
    """Lookup uid -> columns of its table."""
    outlets: dict[str, str] = field(default_factory=dict)
    """Uid of a channel that leaves this part -> the stream whose rows go there."""

    def sinks_of(self, stream: str) -> tuple[str, ...]:
        """The uids of the sinks that show a stream."""
        return tuple(uid for uid, shown in self.sinks.items() if shown == stream)

    def channels_of(self, stream: str) -> tuple[str, ...]:
        """The uids of the channels that the rows of a stream go to."""
        return tuple(uid for uid, sent in self.outlets.items() if sent == stream)

    @property
    def unkeyed(self) -> dict[str, UnkeyedNode]:
        """The operators without keys: they have lists, and no lines of state."""
        return {node.uid: node for node in self.graph.nodes if isinstance(node, UnkeyedNode)}

    @property
    def uncoordinated(self) -> dict[str, OperatorNode]:
        """The operators whose keys are saved on their own: their lines have versions, and no files."""
        return {node.uid: node for node in self.graph.operators if node.uncoordinated is not None}

    @property
    def keyed_uids(self) -> list[str]:
        """The operators that have a line of state per shard."""
        return [uid for uid in self.forms if uid not in self.unkeyed]


StoredColumns = Callable[[str], str | None]
"""Lookup uid -> the columns that the copy of its table in use has; None: there is none."""


def compile_graph(
    graph: Graph,
    spark: SparkSession,
    stored_columns: StoredColumns = lambda uid: None,
    have_been_shown: Callable[[], bool] = lambda: False,
) -> Program:
    """Decide what is staged, and find every column type by running the transforms over empty frames. Refuses
    sinks that can never show their columns.

    `stored_columns`: asked for a lookup whose table cannot be read now. `have_been_shown`: asked where a sink
    refuses its columns, whether it has taken them before: then it is refused when it is shown them.
    """
    readers = _readers(graph)
    streams = {node: _stream_name(graph, node) for node in graph.nodes if _is_staged(node, readers)}
    stages = [
        Stage(name, node, _outputs(node, streams))
        for node, name in streams.items()
        if isinstance(node, StreamNode) and not _is_side_output(node)
    ]
    # Rows that were set aside come last: the jobs before them have counted whether there are any.
    stages.sort(key=lambda stage: _reads_set_aside(stage.node))
    sinks = {sink.uid: streams[sink.parent] for sink in graph.sinks}
    outlets = {outlet.uid: streams[outlet.parent] for outlet in graph.outlets}
    typing = _Typing(graph, spark, streams, stored_columns)
    forms, schemas = typing.run()
    refusals = [each for sink in graph.sinks for each in sink_refusals(sink, schemas[sinks[sink.uid]])]
    if refusals and not have_been_shown():
        raise DefinitionError("\n".join(map(str, refusals)))
    return Program(graph, tuple(stages), dict(streams), sinks, forms, schemas, typing.tables, outlets)


def state_layouts(
    graph: Graph, open_spark: Callable[[], SparkSession], stored_columns: StoredColumns = lambda uid: None
) -> dict[str, StateLayout]:
    """What each operator declares of its state, with ids that mean nothing yet. `open_spark` is called only
    if a transform lies before an operator: what columns it gives, Spark alone can tell."""
    rows = {node.uid: known_input(node) for node in graph.operators}
    if any(schema is None for schema in rows.values()):
        program = compile_graph(graph, open_spark(), stored_columns)
        return {uid: form.layout for uid, form in program.forms.items()}
    return {
        node.uid: state_layout(node.uid, node.function, _as_read(rows[node.uid]), node.key)
        for node in graph.operators
    }


def _as_read(schema: pa.Schema | None) -> pa.Schema:
    """Columns as a frame has them: every one may be null."""
    return pa.schema([pa.field(field.name, relaxed(field.type)) for field in schema or ()])


def _readers(graph: Graph) -> dict[Node, list[Node]]:
    readers: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for parent in parents_of(node):
            readers[parent].append(node)
    return readers


def _is_staged(node: Node, readers: dict[Node, list[Node]]) -> bool:
    if isinstance(node, OperatorNode | OutputNode):
        return True
    if isinstance(node, TransformNode) and node.materialize:
        return True
    return any(isinstance(reader, SinkNode | DoorNode | OutletNode) for reader in readers[node])


def _is_side_output(node: Node) -> bool:
    """Whether the stage of another node makes its rows: the operator's whose output it is."""
    return isinstance(node, OutputNode) and isinstance(node.parent, OperatorNode)


def _reads_set_aside(node: Node) -> bool:
    """Whether rows that a source set aside reach a node."""
    if isinstance(node, OutputNode) and isinstance(node.parent, SourceNode):
        return True
    return any(map(_reads_set_aside, parents_of(node)))


def _stream_name(graph: Graph, node: Node) -> str:
    if isinstance(node, OperatorNode):
        return node.uid
    if isinstance(node, OutputNode):
        return f"{node.parent.uid}:{node.name}"
    shown = [sink.uid for sink in graph.sinks if sink.parent is node]
    sent = [outlet.uid for outlet in graph.outlets if outlet.parent is node]
    return f"@{(*shown, *sent, graph.nodes.index(node))[0]}"


def _outputs(node: Node, streams: dict[Node, str]) -> dict[str, str]:
    if not isinstance(node, OperatorNode):
        return {MAIN_OUTPUT: streams[node]}
    if isinstance(node, BroadcastNode):
        # What it gives out are rows of the operator that it belongs to.
        whole = [each for each in streams if isinstance(each, BroadcastConnectNode)]
        return _outputs(next(each for each in whole if each.broadcast is node), streams)
    sides = {
        output.name: name
        for output, name in streams.items()
        if isinstance(output, OutputNode) and output.parent is node
    }
    return {MAIN_OUTPUT: streams[node], **sides}


def frame_schema(frame: DataFrame) -> pa.Schema:
    """A frame's columns as Arrow types."""
    return pa.schema(
        [pa.field(field.name, parse_type(field.dataType.simpleString())) for field in frame.schema.fields]
    )


class _Typing:
    """Finds the columns of every stream, before a row is read."""

    def __init__(
        self, graph: Graph, spark: SparkSession, streams: dict[Node, str], stored_columns: StoredColumns
    ) -> None:
        self._graph, self._spark, self._streams = graph, spark, streams
        self._stored_columns = stored_columns
        self.tables: dict[str, pa.Schema] = {}
        self._frames: dict[Node, DataFrame] = {}
        self._forms: dict[str, OperatorForm] = {}
        self.naive: set[WatermarkNode] = set()
        """Those whose times have no time zone."""
        self._before: _Typing | None = None
        """Of the parts before, whose rows come through channels."""

    def run(self) -> tuple[dict[str, OperatorForm], dict[str, pa.Schema]]:
        for node in self._graph.nodes:
            if isinstance(node, StreamNode):
                self._frames[node] = self._frame(node)
        schemas = {
            name: frame_schema(self._frames[node])
            for node, name in self._streams.items()
            if node in self._frames
        }
        return self._forms, schemas

    def _frame(self, node: StreamNode) -> DataFrame:
        if isinstance(node, InletNode):
            return self._incoming(node)
        if isinstance(node, SourceNode):
            return self._empty(parse_schema(node.source.schema))
        if isinstance(node, ChannelNode):
            return self._frames[node.parent]
        if isinstance(node, TransformNode):
            return apply_transform(node, self._frames[node.parent])
        if isinstance(node, WatermarkNode):
            return self._watermarked(node)
        if isinstance(node, LookupNode):
            return self._looked_up(node)
        if isinstance(node, UnionNode):
            return union_frames([self._frames[parent] for parent in node.parents])
        operator = node.parent if isinstance(node, OutputNode) else node
        if isinstance(operator, SourceNode):
            return self._empty(SOURCE_DEAD_LETTER_SCHEMA)
        schemas = output_schemas(operator.function, self._form(operator).input, operator.key)
        return self._empty(schemas[node.name if isinstance(node, OutputNode) else MAIN_OUTPUT])

    def _incoming(self, node: InletNode) -> DataFrame:
        if self._before is None:
            assert self._graph.whole is not None, "a part belongs to a job"
            self._before = _Typing(self._graph.whole, self._spark, {}, self._stored_columns)
            self._before.run()
        frame = self._before._frames[node.channel]
        node.source.learn(frame_schema(frame))
        return frame

    def _looked_up(self, node: LookupNode) -> DataFrame:
        try:
            table = frame_schema(table_frame(node, self._spark))
        except DefinitionError:
            # With a copy in use the job goes on; a new one is tried when that is due.
            if (columns := self._stored_columns(node.uid)) is None:
                raise
            table = parse_schema(columns)
        stream = frame_schema(self._frames[node.parent])
        wrong = [Mistake(node.place, describe(node), *each) for each in key_mistakes(node, stream, table)]
        if wrong:
            raise DefinitionError("\n".join(map(str, wrong)))
        self.tables[node.uid] = table
        return looked_up(node, self._frames[node.parent], self._empty(table))

    def _watermarked(self, node: WatermarkNode) -> DataFrame:
        if isinstance(node, CarriedNode):
            if self._before is not None and self._before.naive.issuperset(node.origins):
                self.naive.add(node)
            return self._frames[node.parent]
        given = frame_schema(self._frames[node.parent])
        if (wrong := no_event_time(node, given)) is not None:
            raise DefinitionError(str(Mistake(node.place, describe(node), *wrong)))
        if given.field(node.column).type.tz is None:
            self.naive.add(node)
        return self._frames[node.parent]

    def _form(self, node: OperatorNode) -> OperatorForm:
        if node.uid not in self._forms:
            given = self._input(node)
            on = node.function.on if isinstance(node.function, Windowed) else None
            if on is not None and (wrong := no_timestamp(on, given)) is not None:
                raise DefinitionError(str(Mistake(node.place, describe(node), *wrong)))
            layout = state_layout(node.uid, node.function, given, node.key)
            routing = routing_expression(given, node.key) if node.key else ""
            marks = watermarks_of(node)
            naive = None if not marks else all(mark in self.naive for mark in marks)
            self._forms[node.uid] = OperatorForm(
                given, layout, routing, Lineage.begin(layout), naive, _partials(node, given)
            )
        return self._forms[node.uid]

    def _input(self, node: OperatorNode) -> pa.Schema:
        given = self._side(node, node.parent, (*node.key, *node.order_by))
        if not isinstance(node, ConnectNode):
            return given
        right = self._side(node, node.right, (*node.right_key, *node.right_order_by))
        found = [*pair_mistakes(node, given, right)]
        if isinstance(node.function, TimeJoin):
            found += node.function.time_mistakes(given, right)
        if wrong := [Mistake(node.place, describe(node), *each) for each in found]:
            raise DefinitionError("\n".join(map(str, wrong)))
        return connected_schema(given, right, node.key)

    def _side(self, node: OperatorNode, parent: StreamNode, columns: tuple[str, ...]) -> pa.Schema:
        given = frame_schema(self._frames[parent])
        for column in columns:
            if column not in given.names:
                raise DefinitionError(
                    f"{node.place} {describe(node)}: there is no column {column!r} to key or order by; "
                    f"its input has {', '.join(given.names)}"
                )
        return given

    def _empty(self, schema: pa.Schema) -> DataFrame:
        return self._spark.createDataFrame([], frame_ddl(schema))


def _partials(node: OperatorNode, rows: pa.Schema) -> Partials | None:
    # Keys that are saved on their own count their rows, one by one.
    if not isinstance(node.function, Aggregation | Windowed) or node.uncoordinated is not None:
        return None
    partials = partials_of(node.function, rows, node.order_by)
    # A float key has several forms, of which each way takes another: zero has two signs.
    floats = any(holds_floats(rows.field(name).type) for name in node.key)
    return partials and replace(partials, exact=partials.exact and not floats)


def apply_transform(node: TransformNode, frame: DataFrame) -> DataFrame:
    """Run a user's transform, which must give back a DataFrame."""
    from pyspark.sql import DataFrame

    try:
        given = node.fn(frame)
    except Exception as cause:
        raise DefinitionError(
            f"{node.place} transform: the function failed ({type(cause).__name__}: "
            f"{first_line(cause)}); mend it: it takes a DataFrame and gives back a DataFrame"
        ) from cause
    if not isinstance(given, DataFrame):
        raise DefinitionError(
            f"{node.place} transform: the function gave back {type(given).__name__}; "
            "it must give back a DataFrame"
        )
    return given


def union_frames(frames: list[DataFrame]) -> DataFrame:
    first, *others = frames
    for other in others:
        first = first.unionByName(other)
    return first
