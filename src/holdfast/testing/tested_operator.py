"""A function that a test was given, as an operator of a job: so it is checked as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.broadcast import BROADCAST_SUFFIX, BroadcastSide
from holdfast.graph.functions import BroadcastFunction, CoFunction, OperatorFunction
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    BroadcastNode,
    ConnectNode,
    Graph,
    Node,
    OperatorNode,
    Place,
    SinkNode,
    SourceNode,
    StreamNode,
    UnkeyedNode,
    WatermarkNode,
)
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.validate import check
from holdfast.state.encoding.types import schema_ddl

if TYPE_CHECKING:
    from holdfast.graph.job_graph import OnError, StatefulFunction

UID = "function"
"""What a function that is of no job is called in errors."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What a test says of its function. `right_...`: of the stream that the first one is connected with.
    `uid`, `place`: where it was declared in a job, if it was."""

    function: StatefulFunction
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    right_key: tuple[str, ...] = ()
    right_order_by: tuple[str, ...] = ()
    on_error: OnError = "fail"
    has_event_time: bool = True
    uid: str = UID
    place: Place | None = None

    @property
    def joins(self) -> bool:
        """Whether it sees the rows of two keyed streams."""
        return isinstance(self.function, CoFunction | TimeJoin)

    @property
    def broadcasts(self) -> bool:
        """Whether it sees the rows of a keyed stream and of a broadcast one."""
        return isinstance(self.function, BroadcastFunction)

    def check_columns(self, schema: str | None, right_schema: str | None) -> None:
        """Whether the columns are given that cannot be guessed. DefinitionError: they are not."""
        name = type(self.function).__name__
        if (self.joins or self.broadcasts) and None in (schema, right_schema):
            raise DefinitionError(
                f"{name} reads two streams, and their columns are not guessed; give schema='...' and "
                "right_schema='...'"
            )
        if right_schema is not None and not (self.joins or self.broadcasts):
            raise DefinitionError(f"{name} reads one stream; leave out right_schema")

    def operator(self, rows: pa.Schema, right: pa.Schema | None) -> OperatorNode:
        """The operator over rows of these columns. DefinitionError, as for a job, for every mistake."""
        place = self.place or Place.of_caller()
        source = self._source("sent", rows, place)
        nodes: list[Node] = [source]
        parent = self._marked(source)
        common: dict[str, Any] = {
            "uid": self.uid,
            "parent": parent,
            "key": self.key,
            "order_by": self.order_by,
            "function": self.function,
            "on_error": self.on_error,
            "place": place,
        }
        if right is None:
            unkeyed = isinstance(self.function, OperatorFunction) and not self.key
            operator = (UnkeyedNode if unkeyed else OperatorNode)(**common)
        else:
            second = self._source("sent-right", right, place)
            nodes.append(second)
            operator = self._over_two(common, second, nodes)
        # Of the source: whether the operator's main output is looked at is the test's business.
        sink = SinkNode(uid=self._free("sink"), parent=source, sink=MemorySink(), place=place)
        check(Graph(name="harness", nodes=(*nodes, operator, sink), place=place))
        return operator

    def _over_two(self, common: dict[str, Any], second: SourceNode, nodes: list[Node]) -> OperatorNode:
        if not self.broadcasts:
            right_key = self.right_key or self.key
            right = self._marked(second)
            return ConnectNode(right=right, right_key=right_key, right_order_by=self.right_order_by, **common)
        assert isinstance(self.function, BroadcastFunction)
        half = BroadcastNode(
            uid=self.uid + BROADCAST_SUFFIX,
            parent=second,
            order_by=self.right_order_by,
            function=BroadcastSide(self.function),
            on_error=self.on_error,
            place=second.place,
        )
        nodes.append(half)
        return BroadcastConnectNode(broadcast=half, **common)

    def _source(self, uid: str, rows: pa.Schema, place: Place) -> SourceNode:
        return SourceNode(uid=self._free(uid), source=MemorySource([], schema=schema_ddl(rows)), place=place)

    def _free(self, uid: str) -> str:
        """A uid that is not the operator's."""
        return uid if uid != self.uid else f"{uid}-{UID}"

    def _marked(self, source: SourceNode) -> StreamNode:
        """The source's rows, with a watermark if event time reaches the function. The test moves it, whatever
        the rows hold: no column is its own."""
        if not self.has_event_time:
            return source
        return WatermarkNode(parent=source, column="", delay="0s", idle_after=None, place=source.place)
