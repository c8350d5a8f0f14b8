"""The graph of a job, as frozen values.

Always true: a node's parents stand before it in `Graph.nodes`; nodes are compared by identity, so that two
equal declarations stay two nodes. A graph may be wrong: `validate.check` says so, and everyone else may
assume it was called.
Never here: Spark, and anything that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.connectors.channel import ChannelSink
    from holdfast.connectors.contract import Sink, Source
    from holdfast.graph.aggregates import Aggregation
    from holdfast.graph.broadcast import BroadcastSide
    from holdfast.graph.functions import (
        BatchFunction,
        BroadcastFunction,
        CoFunction,
        KeyedFunction,
        OperatorFunction,
    )
    from holdfast.graph.interval_join import IntervalJoin
    from holdfast.graph.parts import Inlet
    from holdfast.graph.protection import Protection
    from holdfast.graph.uncoordinated import Uncoordinated
    from holdfast.graph.window_join import WindowJoin
    from holdfast.graph.windows import Windowed

    StatefulFunction: TypeAlias = (
        KeyedFunction
        | BatchFunction
        | Aggregation
        | Windowed
        | OperatorFunction
        | CoFunction
        | IntervalJoin
        | BroadcastFunction
        | BroadcastSide
        | WindowJoin
    )
    Transform = Callable[[DataFrame], DataFrame]
    Table = Callable[[SparkSession], DataFrame] | str

OnError = Literal["fail", "dead-letter"]
"""What happens to a row that a function fails on, or that a source cannot parse: the epoch fails, or the row
is set aside."""

MAIN_OUTPUT = ""
DEAD_LETTERS = "!dead"
"""Name of the output that holds the rows that were set aside."""
LATE_ROWS = "!late"
"""Name of the output that holds the rows that came too late."""
_OUTPUT_CALLS = {DEAD_LETTERS: "dead_letters()", LATE_ROWS: "late()"}
"""What gives the outputs that have no name of the user's."""

_DECLARING_MODULES = ("holdfast.graph.", "holdfast.runtime.", "holdfast.testing.")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's code something was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    @classmethod
    def of_caller(cls) -> Place:
        """The innermost frame that is not Holdfast's own declaring code."""
        frame = sys._getframe(1)
        while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(_DECLARING_MODULES):
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong in the declaration: where, about what, what is wrong, and what to do."""

    place: Place
    subject: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place} {self.subject}: {self.problem}; {self.remedy}"

    @classmethod
    def of_text(cls, place: Place, subject: str, text: str) -> Mistake:
        """From the text of an error, which ends with its remedy after a semicolon."""
        problem, separator, remedy = text.rpartition("; ")
        return cls(place, subject, problem, remedy) if separator else cls(place, subject, text, "correct it")


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A part of a job: what one node runs. `Stream.into` sends rows there."""

    name: str
    protection: Protection
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceNode:
    """Rows coming in. `on_error`: what happens to a row that cannot be parsed. `stalled_after`: how long no
    rows may come before that is said."""

    uid: str
    source: Source
    place: Place
    on_error: OnError = "fail"
    stalled_after: str | None = None
    part: Part | None = None
    """Where it is read; None: in part `main`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformNode:
    """Stateless Spark SQL over one stream. `materialize`: its rows are staged before use, so it need not be
    deterministic."""

    parent: StreamNode
    fn: Transform
    materialize: bool
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class WatermarkNode:
    """The rows of a stream, whose event time is in `column`. The newest time seen, less `delay`, is as far as
    the rows are taken to be complete; a source that has been silent for `idle_after` is not waited for."""

    parent: StreamNode
    column: str
    delay: str
    idle_after: str | None
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class LookupNode:
    """The rows of a stream, each with the rows of a table that have its key. `on`: the columns that are
    compared, of the stream and of the table. The table is copied once in `refresh`."""

    uid: str
    parent: StreamNode
    table: Table
    on: tuple[tuple[str, str], ...]
    how: str
    refresh: str
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelNode:
    """The rows of a stream, in another part. The part before stops when so many bytes or epochs of them wait
    to be read."""

    uid: str
    parent: StreamNode
    part: Part
    limit_bytes: int
    limit_epochs: int
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionNode:
    """The rows of several streams of the same columns."""

    parents: tuple[StreamNode, ...]
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class OperatorNode:
    """A stateful function over the rows of each key. As a stream it is the function's main output."""

    uid: str
    parent: StreamNode
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    function: StatefulFunction
    on_error: OnError
    place: Place
    uncoordinated: Uncoordinated | None = None
    """Its keys are saved on their own, and its state is not in checkpoints."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UnkeyedNode(OperatorNode):
    """An operator whose rows have no key: its function keeps lists per shard."""

    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class ConnectNode(OperatorNode):
    """An operator over the rows of two streams that have the same keys. `parent` is the left one: its key
    columns name those of the state."""

    right: StreamNode
    right_key: tuple[str, ...]
    right_order_by: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class BroadcastNode(UnkeyedNode):
    """The broadcast half of an operator: one shard, whose lists are the broadcast states. As a stream it has
    no rows: what it gives out are rows of the operator."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BroadcastConnectNode(OperatorNode):
    """An operator over keyed rows that reads what its broadcast half keeps."""

    broadcast: BroadcastNode


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputNode:
    """A further output of an operator: one that its function named, or its dead letters. Of a source: its
    dead letters."""

    parent: OperatorNode | SourceNode
    name: str
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class SinkNode:
    """Rows going out."""

    uid: str
    parent: StreamNode
    sink: Sink
    place: Place


@dataclass(frozen=True, eq=False, kw_only=True)
class DoorNode:
    """Rows going into a channel whose readers the job does not know."""

    uid: str
    parent: StreamNode
    sink: ChannelSink
    place: Place


# Two ends of a channel, and what comes through it, in the graphs of single parts (see parts).


@dataclass(frozen=True, eq=False, kw_only=True)
class InletNode(SourceNode):
    """Where the rows of a channel come into a part."""

    source: Inlet
    channel: ChannelNode


@dataclass(frozen=True, eq=False, kw_only=True)
class CarriedNode(WatermarkNode):
    """The event time that comes with the rows of a channel. `origins`: where it is declared."""

    origins: tuple[WatermarkNode, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class OutletNode:
    """Where rows leave a part, into a channel. `reader`: the checkpoint of the part that reads it."""

    uid: str
    parent: StreamNode
    reader: str
    channel: ChannelNode
    place: Place


StreamNode = (
    SourceNode
    | TransformNode
    | WatermarkNode
    | LookupNode
    | ChannelNode
    | UnionNode
    | OperatorNode
    | OutputNode
)
Node = StreamNode | SinkNode | DoorNode | OutletNode


def parents_of(node: Node) -> tuple[StreamNode, ...]:
    """The streams that a node reads."""
    if isinstance(node, SourceNode):
        return ()
    if isinstance(node, ConnectNode):
        return node.parent, node.right
    if isinstance(node, BroadcastConnectNode):
        return node.parent, node.broadcast
    return node.parents if isinstance(node, UnionNode) else (node.parent,)


def describe(node: Node) -> str:
    """A node as errors name it: `operator 'totals'`, `late()`."""
    kind = type(node).__name__.removesuffix("Node").lower()
    if isinstance(node, OperatorNode):
        kind = "operator"
    elif isinstance(node, DoorNode):
        kind = "sink"
    name: Any = getattr(node, "uid", None) or getattr(node, "name", None)
    if isinstance(node, OutputNode) and name in _OUTPUT_CALLS:
        return _OUTPUT_CALLS[name]
    return f"{kind} {name!r}" if name else kind


def shown(given: object) -> str:
    """What was given, as errors name it: without its address in memory."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, FunctionType | MethodType):
        return f"the function {given.__name__}"
    if type(given).__repr__ is object.__repr__:
        return type(given).__name__
    return f"{given!r:.60}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A declared job: its nodes, parents before children, and the mistakes seen while it was declared."""

    name: str
    nodes: tuple[Node, ...]
    place: Place
    mistakes: tuple[Mistake, ...] = ()
    parts: tuple[Part, ...] = ()
    """Those that were declared; `main` only where it was."""
    whole: Graph | None = None
    """Of the graph of one part: the job that it belongs to."""

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def lookups(self) -> tuple[LookupNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, LookupNode))

    @property
    def channels(self) -> tuple[ChannelNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ChannelNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    @property
    def outlets(self) -> tuple[OutletNode | DoorNode, ...]:
        """Wherever rows go into channels."""
        return tuple(node for node in self.nodes if isinstance(node, OutletNode | DoorNode))

    @property
    def doors(self) -> tuple[DoorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, DoorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))
