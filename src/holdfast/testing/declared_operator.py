"""One operator of a declared job: what it is given there, as far as that is known without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.column_types import known_schema
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.job_graph import OperatorNode
from holdfast.graph.streams import Declaration
from holdfast.state.encoding.types import parse_schema


@dataclass(frozen=True, slots=True)
class DeclaredOperator:
    """An operator, the columns of its rows, and whether event time reaches it; `naive`: without a zone."""

    node: OperatorNode
    rows: pa.Schema
    has_event_time: bool
    naive: bool


def operator_of(job: Declaration, uid: str, schema: str | None) -> DeclaredOperator:
    """The operator `uid` of a job; `schema`: of its rows, where that cannot be known. DefinitionError: there
    is none, or it cannot be run without its job."""
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
    rows = known_schema(node.parent) if schema is None else parse_schema(schema)
    if rows is None:
        raise DefinitionError(
            f"the columns that operator {uid!r} gets are not known without Spark; give schema='...'"
        )
    marks = watermarks_of(node.parent)
    schemas = [known_schema(mark.parent) for mark in marks]
    columns = [
        schema.field(mark.column)
        for schema, mark in zip(schemas, marks, strict=True)
        if schema is not None and mark.column in schema.names
    ]
    # Behind a transform the type of the watermark's column is not known: the rows tell.
    naive = without_zone(columns if len(columns) == len(marks) else rows)
    return DeclaredOperator(node, rows, bool(marks), naive)


def without_zone(columns: Iterable[pa.Field]) -> bool:
    """Whether event time that is in one of these columns has no time zone."""
    zones = [field.type.tz for field in columns if pa.types.is_timestamp(field.type)]
    return bool(zones) and not any(zones)
