"""The columns of a stream, as far as they can be known with no Spark at hand.

None means: only Spark can tell (a transform lies before it), or the declaration is wrong, which
`validate.check` reports.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from holdfast.errors import DefinitionError
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.functions import output_schema, side_schemas
from holdfast.graph.nodes import OperatorNode, OutputNode, SourceNode, StreamNode, TransformNode, UnionNode
from holdfast.state.types import parse_schema


def known_schema(node: StreamNode) -> pa.Schema | None:
    """The schema of a stream, or None."""
    try:
        return _schema(node)
    # A declaration may hold anything in place of a source or a function: validate says what.
    except (DefinitionError, AttributeError, TypeError, KeyError):
        return None


def _schema(node: StreamNode) -> pa.Schema | None:
    if isinstance(node, SourceNode):
        return parse_schema(node.source.schema)
    if isinstance(node, TransformNode):
        return None
    if isinstance(node, UnionNode):
        return next((schema for schema in map(known_schema, node.parents) if schema is not None), None)
    if isinstance(node, OperatorNode):
        return _output(node)
    if isinstance(node, OutputNode):
        return (
            None
            if isinstance(node.parent.function, Aggregation)
            else side_schemas(node.parent.function).get(node.name)
        )
    assert_never(node)


def _output(node: OperatorNode) -> pa.Schema | None:
    if not isinstance(node.function, Aggregation):
        return output_schema(node.function)
    rows = known_schema(node.parent)
    return None if rows is None else node.function.output_schema(rows, node.key)
