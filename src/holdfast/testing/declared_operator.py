"""One operator of a declared job: what it is given there, as far as that is known without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.column_types import known_schema
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    BroadcastNode,
    ConnectNode,
    OperatorNode,
    StreamNode,
)
from holdfast.graph.streams import Declaration
from holdfast.state.encoding.types import parse_schema
from holdfast.testing.tested_operator import Tested


@dataclass(frozen=True, slots=True)
class DeclaredOperator:
    """An operator, the columns of its rows, and whether event time reaches it; `naive`: without a zone.
    `right`: the columns of its second stream, if it has one."""

    node: OperatorNode
    rows: pa.Schema
    has_event_time: bool
    naive: bool
    right: pa.Schema | None = None

    @property
    def tested(self) -> Tested:
        """The operator, as a test would have declared it."""
        node = self.node
        right_key: tuple[str, ...] = ()
        right_order_by: tuple[str, ...] = ()
        if isinstance(node, ConnectNode):
            right_key, right_order_by = node.right_key, node.right_order_by
        elif isinstance(node, BroadcastConnectNode):
            right_order_by = node.broadcast.order_by
        return Tested(
            function=node.function,
            key=node.key,
            order_by=node.order_by,
            right_key=right_key,
            right_order_by=right_order_by,
            on_error=node.on_error,
            has_event_time=self.has_event_time,
            uid=node.uid,
            place=node.place,
        )


def operator_of(
    job: Declaration, uid: str, schema: str | None, right_schema: str | None = None
) -> DeclaredOperator:
    """The operator `uid` of a job; `schema`, `right_schema`: of its rows, where that cannot be known.
    DefinitionError: there is none, or it cannot be run without its job."""
    nodes = {node.uid: node for node in job.graph().operators if not isinstance(node, BroadcastNode)}
    node = nodes.get(uid)
    if node is None:
        known = ", ".join(map(repr, nodes)) or "none"
        raise DefinitionError(f"job {job.name!r} has no operator {uid!r}; there are: {known}")
    if node.uncoordinated is not None:
        raise DefinitionError(
            f"operator {uid!r} saves its keys on their own, which the harness does not do; give its "
            "function to Harness(...)"
        )
    rows = _columns(node.parent, uid, schema, "schema")
    right = None
    if isinstance(node, ConnectNode | BroadcastConnectNode):
        second = node.right if isinstance(node, ConnectNode) else node.broadcast.parent
        right = _columns(second, uid, right_schema, "right_schema")
    marks = watermarks_of(node)
    schemas = [known_schema(mark.parent) for mark in marks]
    columns = [
        schema.field(mark.column)
        for schema, mark in zip(schemas, marks, strict=True)
        if schema is not None and mark.column in schema.names
    ]
    # Behind a transform the type of the watermark's column is not known: the rows tell.
    naive = without_zone(columns if len(columns) == len(marks) else rows)
    return DeclaredOperator(node, rows, bool(marks), naive, right)


def _columns(stream: StreamNode, uid: str, given: str | None, name: str) -> pa.Schema:
    found = known_schema(stream) if given is None else parse_schema(given)
    if found is None:
        raise DefinitionError(
            f"the columns that operator {uid!r} gets are not known without Spark; give {name}='...'"
        )
    return found


def without_zone(columns: Iterable[pa.Field]) -> bool:
    """Whether event time that is in one of these columns has no time zone."""
    zones = [field.type.tz for field in columns if pa.types.is_timestamp(field.type)]
    return bool(zones) and not any(zones)
