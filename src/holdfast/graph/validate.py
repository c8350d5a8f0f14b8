"""Every mistake of a declaration at once, before anything runs.

Each mistake is one line: where it was declared, what it is about, what is wrong, what to do. What only Spark
can know (the columns after a transform) is checked when the program is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import pyarrow as pa

from holdfast.clock import duration_ms
from holdfast.connectors.contract import CheckedSink, CheckedSource, SiftingSource, Sink, Source
from holdfast.errors import DefinitionError, MachineError
from holdfast.graph import functions
from holdfast.graph.aggregates import Aggregate, Aggregation
from holdfast.graph.column_types import known_input, known_schema, sink_refusals
from holdfast.graph.event_time import no_event_time, no_timestamp, watermark_mistakes, watermarks_of
from holdfast.graph.functions import (
    BatchFunction,
    BroadcastFunction,
    CoFunction,
    DeclaringFunction,
    KeyedFunction,
    OperatorFunction,
)
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
    OnError,
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
    shown,
)
from holdfast.graph.lookups import key_mistakes, lookup_mistakes
from holdfast.graph.parts import part_mistakes
from holdfast.graph.replacing_rules import replacing_mistakes
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.ttl_rules import ttl_mistakes
from holdfast.graph.two_inputs import pair_mistakes, side_schemas_of
from holdfast.graph.uncoordinated import Uncoordinated
from holdfast.graph.windows import CountWindow, Window, Windowed
from holdfast.state.encoding.routing import check_hashable
from holdfast.state.encoding.types import parse_schema, schema_ddl

UID_LENGTH_MAX = 100
ON_ERROR: tuple[object, ...] = get_args(OnError)

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_Found = Iterator[tuple[str, str]]
"""What is wrong, and what to do."""


def check(graph: Graph) -> None:
    """Raise one DefinitionError that lists everything wrong with the graph, a line each."""
    found = mistakes(graph)
    if found:
        raise DefinitionError("\n".join(map(str, found)))


def check_places(graph: Graph, goes_on: Callable[[], bool] = lambda: False) -> None:
    """Let every source and sink that can say so refuse a run that could never use it: DefinitionError.
    `goes_on`: asked where a sink refuses, whether it has taken this job before: then it stops alone."""
    for source in graph.sources:
        if isinstance(source.source, CheckedSource):
            with _placed(source):
                source.source.check()
    for sink in graph.sinks:
        if isinstance(sink.sink, CheckedSink):
            try:
                with _placed(sink):
                    sink.sink.check()
            except DefinitionError as refusal:
                # What this machine lacks another one may have.
                if isinstance(refusal, MachineError) or not goes_on():
                    raise


@contextmanager
def _placed(node: SourceNode | SinkNode) -> Iterator[None]:
    """A refusal within says where the source or sink was declared."""
    try:
        yield
    except DefinitionError as refusal:
        kind = MachineError if isinstance(refusal, MachineError) else DefinitionError
        raise kind(f"{node.place} {describe(node)}: {refusal}") from refusal


def mistakes(graph: Graph) -> list[Mistake]:
    """Everything wrong with the graph, in the order of the declaration."""
    found = [Mistake(graph.place, f"job {graph.name!r}", *wrong) for wrong in _job(graph)]
    found += graph.mistakes
    found += part_mistakes(graph)
    for node in graph.nodes:
        for problem, remedy in (*_uid(node, graph), *_node(node, graph)):
            found.append(Mistake(node.place, describe(node), problem, remedy))
        if isinstance(node, OperatorNode):
            found += [Mistake.of_text(node.place, describe(node), text) for text in _operator_texts(node)]
            found += [Mistake(node.place, describe(node), *wrong) for wrong in _no_rows(node, graph)]
        elif isinstance(node, SourceNode):
            found += [
                Mistake(node.place, describe(node), *wrong) for wrong in _unread_dead_letters(node, graph)
            ]
        elif isinstance(node, SinkNode) and _is_a(node.sink, Sink):
            columns = known_schema(node.parent)
            found += sink_refusals(node, columns) if columns is not None else []
    return sorted(found, key=lambda mistake: (mistake.place.file, mistake.place.line))


def _job(graph: Graph) -> _Found:
    if not _is_name(graph.name):
        yield "its name cannot be used in file names", f"use {_NAME_RULE}"
    if not graph.sources:
        yield "it reads nothing", "declare a source with source(...)"
    if not (graph.sinks or graph.doors):
        yield "it has no sink, so nothing would ever be seen of it", "end a stream with sink(...)"
    for part in graph.parts:
        if not _is_name(part.name):
            yield f"the name of part {part.name!r} cannot be used in file names", f"use {_NAME_RULE}"


def _uid(node: Node, graph: Graph) -> _Found:
    if not isinstance(node, SourceNode | LookupNode | ChannelNode | OperatorNode | SinkNode | DoorNode):
        return
    if isinstance(node, BroadcastNode) and not node.uid:
        return
    if node.uid == "":
        yield (
            "it has no uid, under which checkpoints keep it",
            "add uid='...', and never change it afterwards",
        )
        return
    if not _is_name(node.uid):
        yield f"uid {node.uid!r} cannot be used in file names", f"use {_NAME_RULE}"
    first = next(other for other in graph.nodes if getattr(other, "uid", None) == node.uid)
    if first is not node:
        yield f"uid {node.uid!r} is taken by the {describe(first)} of {first.place}", "give each its own uid"


def _node(node: Node, graph: Graph) -> _Found:
    if isinstance(node, SourceNode):
        yield from _source(node)
    elif isinstance(node, TransformNode):
        if not _is_callable(node.fn):
            yield f"{shown(node.fn)} is not a function", "give a function from DataFrame to DataFrame"
    elif isinstance(node, WatermarkNode):
        yield from watermark_mistakes(node, graph)
        schema = known_schema(node.parent)
        if schema is not None and isinstance(node.column, str):
            yield from filter(None, [no_event_time(node, schema)])
    elif isinstance(node, LookupNode):
        yield from _lookup(node)
    elif isinstance(node, UnionNode):
        yield from _union(node)
    elif isinstance(node, ChannelNode | OutletNode):
        return
    elif isinstance(node, OperatorNode):
        yield from _operator(node)
    elif isinstance(node, OutputNode):
        yield from _output(node)
    elif isinstance(node, DoorNode):
        yield from _door(node)
    elif not _is_a(node.sink, Sink):
        yield f"{shown(node.sink)} is not a sink", "give an instance of a sink, such as hf.FileSink(...)"
    else:
        yield from replacing_mistakes(node)


def _door(node: DoorNode) -> _Found:
    kept: object = node.sink.keep_epochs
    if not isinstance(kept, int) or isinstance(kept, bool) or kept < 1:
        yield f"keep_epochs={kept!r} keeps nothing", "give the number of epochs that readers may lag behind"


def _source(node: SourceNode) -> _Found:
    if not _is_a(node.source, Source):
        yield (
            f"{shown(node.source)} is not a source",
            "give an instance of a source, such as hf.FileSource(...)",
        )
        return
    try:
        parse_schema(node.source.schema)
    except DefinitionError as error:
        yield f"its schema cannot be read: {error}", "correct the schema"
    yield from _stalled_after(node.stalled_after)
    if node.on_error not in ON_ERROR:
        yield f"on_error={node.on_error!r} is not known", f"use one of {', '.join(map(repr, ON_ERROR))}"
    elif node.on_error == "dead-letter" and not (
        isinstance(node.source, SiftingSource) and node.source.sifts
    ):
        yield (
            "it cannot tell malformed rows apart, so it sets none aside",
            "leave out on_error (JSON and CSV files can, unless they have a mode= of their own)",
        )


def _stalled_after(given: object) -> _Found:
    if given is None:
        return
    wrong = "is not a duration"
    try:
        if isinstance(given, str) and duration_ms(given) > 0:
            return
    except DefinitionError:
        if isinstance(given, str) and given.lstrip().startswith("-"):
            wrong = "is negative"
    yield f"stalled_after={given!r} {wrong}", "write a number and a unit, such as '30s' or '5m'"


def _unread_dead_letters(node: SourceNode, graph: Graph) -> _Found:
    """Rows that are set aside and shown nowhere would be lost without a word."""
    letters = [each for each in graph.nodes if isinstance(each, OutputNode) and each.parent is node]
    read = any(letter in parents_of(other) for other in graph.nodes for letter in letters)
    if node.on_error == "dead-letter" and not read:
        yield (
            "it sets malformed rows aside, and nothing reads them",
            "end its dead_letters() with sink(...)",
        )


def _lookup(node: LookupNode) -> _Found:
    wrong = list(lookup_mistakes(node))
    yield from wrong
    stream = known_schema(node.parent)
    if stream is not None and not wrong:
        yield from key_mistakes(node, stream, None)


def _union(node: UnionNode) -> _Found:
    if len(node.parents) < 2:
        yield "it has one stream only", "name at least one other stream"
    known = [schema for schema in map(known_schema, node.parents) if schema is not None]
    for other in known[1:]:
        if _columns(other) != _columns(known[0]):
            yield (
                f"its streams have different columns: '{schema_ddl(known[0])}' and '{schema_ddl(other)}'",
                "bring them to the same columns with transform(...)",
            )
            return


def _operator(node: OperatorNode) -> _Found:
    if isinstance(node, BroadcastNode):
        # What else is wrong with its function is told of the operator that it belongs to.
        yield from _columns_exist(node.parent, "order_by", node.order_by)
        return
    if not isinstance(node, UnkeyedNode):
        yield from _key(node)
    if isinstance(node, ConnectNode):
        yield from _right(node)
    kinds, of_what, remedy = _FITTING[type(node)]
    if isinstance(node.function, type):
        name = node.function.__name__
        yield f"{name} is a class", f"give an instance: {name}()"
    elif not _is_a(node.function, kinds):
        if _is_a(node.function, BroadcastFunction):
            remedy = "say keyed.connect(other.broadcast()).process(...)"
        yield f"{shown(node.function)} is not a function of {of_what}", remedy
    if node.on_error not in ON_ERROR:
        yield f"on_error={node.on_error!r} is not known", f"use one of {', '.join(map(repr, ON_ERROR))}"
    elif node.on_error == "dead-letter" and not isinstance(node.function, functions.SINGLE_ROWS):
        yield "only a function that sees single rows can set them aside", "leave out on_error"


_FITTING: dict[type[OperatorNode], tuple[tuple[type, ...], str, str]] = {
    UnkeyedNode: (
        (OperatorFunction,),
        "a stream without keys",
        "derive its class from hf.OperatorFunction, or say key_by(...) first",
    ),
    ConnectNode: ((CoFunction, TimeJoin), "two streams", "derive its class from hf.CoFunction"),
    BroadcastConnectNode: (
        (BroadcastFunction,),
        "a keyed stream and a broadcast one",
        "derive its class from hf.BroadcastFunction",
    ),
    OperatorNode: (
        (KeyedFunction, BatchFunction, Aggregation, Windowed),
        "a keyed stream",
        "derive its class from hf.KeyedFunction",
    ),
}
"""What an operator runs, what of, and what to do about anything else."""


def _right(node: ConnectNode) -> _Found:
    yield from _columns_exist(node.right, "key", node.right_key)
    yield from _columns_exist(node.right, "order_by", node.right_order_by)
    left, right = known_schema(node.parent), known_schema(node.right)
    if left is not None and right is not None:
        yield from pair_mistakes(node, left, right)
    if isinstance(node.function, TimeJoin):
        yield from _join(node, node.function, left, right)


def _join(node: ConnectNode, join: TimeJoin, left: pa.Schema | None, right: pa.Schema | None) -> _Found:
    wrong = list(join.mistakes())
    yield from wrong
    for side, parent in (("left", node.parent), ("right", node.right)):
        if not watermarks_of(parent):
            yield (
                f"the {side} stream has no watermark, so its rows would be kept without end",
                "declare stream.watermark('column', delay='10s') right after the source",
            )
    if not wrong and left is not None and right is not None:
        yield from join.time_mistakes(left, right)


def _key(node: OperatorNode) -> _Found:
    if not node.key:
        yield "key_by() names no column", "name at least one"
    names = _names(node.key)
    if len(set(names)) < len(names):
        yield f"key_by({', '.join(map(repr, names))}) names a column twice", "name each once"
    yield from _columns_exist(node.parent, "key", node.key)
    yield from _columns_exist(node.parent, "order_by", node.order_by)


def _output(node: OutputNode) -> _Found:
    operator = node.parent
    if node.name == DEAD_LETTERS or isinstance(operator, SourceNode):
        if operator.on_error != "dead-letter":
            yield f"{describe(operator)} sets no rows aside", "declare it with on_error='dead-letter'"
        return
    if node.name == LATE_ROWS:
        function = operator.function
        counted = isinstance(function, Windowed) and isinstance(function.window, CountWindow)
        if counted or not isinstance(function, Windowed | TimeJoin):
            yield f"{describe(operator)} has no windows of time, so no row is late", "leave out late()"
        return
    declared = list(getattr(operator.function, "outputs", {}))
    if node.name not in declared:
        yield (
            f"{describe(operator)} has no such output (it has: {', '.join(declared) or 'none'})",
            f"declare outputs = {{{node.name!r}: '...'}} in its function",
        )


def _no_rows(node: OperatorNode, graph: Graph) -> _Found:
    used = any(node in parents_of(other) for other in graph.nodes if not isinstance(other, OutputNode))
    function = node.function
    if used and isinstance(function, functions.SINGLE_ROWS) and functions.gives_no_rows(function):
        name = f"{type(function).__name__}.{functions.handlers(function)[0]}"
        yield f"{name} yields no rows, but its output is used", "yield rows, or use only its side outputs"


def _operator_texts(node: OperatorNode) -> Iterator[str]:
    """Mistakes that others put into words, remedy included."""
    rows = known_input(node)
    keys = [field for field in rows or () if field.name in _names(node.key)]
    for key in keys:
        try:
            check_hashable(key.type, key.name)
        except DefinitionError as error:
            yield str(error)
    if isinstance(node.uncoordinated, Uncoordinated):
        yield from node.uncoordinated.mistakes()
        if isinstance(node, BroadcastConnectNode):
            yield (
                "its keys are saved on their own, each at its own time, and after a loss a key would go back "
                "while the broadcast states that it has seen do not; leave out protection"
            )
        if isinstance(node.function, Windowed):
            yield (
                "its keys are saved on their own, each at its own time, and after a loss a window could "
                "close twice or not at all; leave out protection"
            )
        if functions.has_timers(node.function):
            yield (
                "its keys are saved on their own, each at its own time, and after a loss a timer could fire "
                "twice or not at all; leave out protection, or on_timer"
            )
    elif node.uncoordinated is not None:
        given = shown(node.uncoordinated)
        yield f"protection={given} is not known; give hf.Uncoordinated(...) or leave it out"
    yield from ttl_mistakes(node)
    if isinstance(node.function, DeclaringFunction):
        yield from functions.mistakes(node.function)
    elif isinstance(node.function, TimeJoin):
        yield from _join_texts(node.function, rows, node.key)
    elif isinstance(node.function, Aggregation):
        yield from _aggregation_texts(node.function, rows, [key.name for key in keys])
    elif isinstance(node.function, Windowed):
        yield from _window_texts(node, node.function, rows)


def _window_texts(node: OperatorNode, function: Windowed, rows: pa.Schema | None) -> Iterator[str]:
    if not _is_a(function.window, get_args(Window)):
        yield f"{shown(function.window)} is not a window; give hf.tumbling('5s') or another one"
        return
    yield from function.mistakes()
    timed = not isinstance(function.window, CountWindow)
    if timed and not watermarks_of(node.parent):
        yield (
            "its windows close by event time, and not all of its rows have a watermark; declare "
            "stream.watermark('column', delay='10s') right after each source before it"
        )
    if function.on is None and timed:
        return
    if function.on is not None and rows is not None and (wrong := no_timestamp(function.on, rows)):
        yield "; ".join(wrong)
        return
    computation = function.computation
    told = list(_aggregation_texts(computation, rows, [])) if isinstance(computation, Aggregation) else []
    yield from told
    if rows is not None and not told:
        try:
            function.output_schema(rows, _names(node.key))
        except DefinitionError as error:
            yield str(error)


def _join_texts(join: TimeJoin, rows: pa.Schema | None, key: tuple[str, ...]) -> Iterator[str]:
    if rows is None or [*join.mistakes()] or [*join.time_mistakes(*side_schemas_of(rows))]:
        return
    try:
        join.output_schema(rows, key)
    except DefinitionError as error:
        yield str(error)


def _aggregation_texts(aggregation: Aggregation, rows: pa.Schema | None, keys: list[str]) -> Iterator[str]:
    unfit = [name for name, each in aggregation.aggregates.items() if not _is_a(each, Aggregate)]
    if unfit:
        yield f"{', '.join(unfit)}: not an aggregate; give hf.sum('column'), hf.count() or another one"
        return
    if not aggregation.aggregates:
        yield "aggregate() was given nothing to compute; name at least one, such as n=hf.count()"
        return
    if rows is None:
        return
    try:
        aggregation.accumulator_type(rows)
        aggregation.output_schema(rows, keys)
    except DefinitionError as error:
        yield str(error)


def _names(columns: Sequence[object]) -> list[str]:
    return [column for column in columns if isinstance(column, str)]


def _columns_exist(parent: StreamNode, role: str, names: Sequence[object]) -> _Found:
    schema = known_schema(parent)
    for name in names:
        if not isinstance(name, str):
            yield (
                f"{role} column {name!r} is not a name",
                "give names of columns; compute one with transform(...) first",
            )
        elif schema is not None and name not in schema.names:
            yield (
                f"{role} column {name!r} does not exist; there are {', '.join(schema.names)}",
                _inside(name, schema) or "name one of these",
            )


def _inside(name: str, schema: pa.Schema) -> str:
    """What to do about a column that is a field of another one, as with `KafkaSource`; empty: it is none."""
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.get_field_index(name) >= 0:
            return (
                f"it is a field of {field.name!r}: "
                f"transform(lambda frame: frame.select('{field.name}.*')) makes columns of these"
            )
    return ""


def _columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}


def _is_a(given: object, kind: type | tuple[type, ...]) -> bool:
    """Whether the user gave an instance; a class has the methods too."""
    return isinstance(given, kind) and not isinstance(given, type)


def _is_callable(given: object) -> bool:
    return callable(given)


def _is_name(text: object) -> bool:
    return isinstance(text, str) and len(text) <= UID_LENGTH_MAX and _UID.fullmatch(text) is not None


_NAME_RULE = f"at most {UID_LENGTH_MAX} letters, digits, '.', '_' and '-', a letter or digit first"
