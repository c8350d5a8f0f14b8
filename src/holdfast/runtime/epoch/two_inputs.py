"""Two streams as one frame: what an operator with two inputs reads (see graph.two_inputs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.graph.two_inputs import LEFT_COLUMN, RIGHT_COLUMN
from holdfast.state.encoding.routing import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.graph.job_graph import ConnectNode


def connected_frame(node: ConnectNode, left: DataFrame, right: DataFrame) -> DataFrame:
    """The rows of both streams, each with its key and the side that it came from."""
    ours = _side(left, right, node.key, node.key, LEFT_COLUMN, RIGHT_COLUMN)
    theirs = _side(right, left, node.right_key, node.key, RIGHT_COLUMN, LEFT_COLUMN)
    return ours.unionByName(theirs)


def _side(
    own: DataFrame, other: DataFrame, key: tuple[str, ...], names: tuple[str, ...], here: str, there: str
) -> DataFrame:
    from pyspark.sql.functions import lit, struct

    keys: list[Column] = [own[quoted(column)].alias(name) for column, name in zip(key, names, strict=True)]
    rows = struct(*(own[quoted(column)] for column in own.columns)).alias(here)
    return own.select(*keys, rows, lit(None).cast(other.schema).alias(there))
