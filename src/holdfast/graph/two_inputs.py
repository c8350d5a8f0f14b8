"""Two streams with the same keys, as the rows that one operator reads.

Such a row has the key columns, under the names that they have on the left, and the row of the side that it
came from; the other side is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from holdfast.graph.job_graph import ConnectNode
from holdfast.state.encoding.types import type_ddl

LEFT_COLUMN, RIGHT_COLUMN = "__hf_left", "__hf_right"


def connected_schema(left: pa.Schema, right: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """The columns of the rows that an operator over two streams reads. KeyError: a key column is missing."""
    return pa.schema(
        [
            *(left.field(name) for name in key),
            pa.field(LEFT_COLUMN, pa.struct(list(left))),
            pa.field(RIGHT_COLUMN, pa.struct(list(right))),
        ]
    )


def side_schemas_of(rows: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
    """The columns of either stream: the inverse of `connected_schema`."""
    left, right = (pa.schema(list(rows.field(name).type)) for name in (LEFT_COLUMN, RIGHT_COLUMN))
    return left, right


def pair_mistakes(node: ConnectNode, left: pa.Schema, right: pa.Schema) -> Iterator[tuple[str, str]]:
    """Why the rows of two streams cannot be brought together, and what to do."""
    pairs = [("key", node.key, node.right_key)]
    if node.order_by and node.right_order_by:
        pairs.append(("order_by", node.order_by, node.right_order_by))
    for role, ours, theirs in pairs:
        if len(ours) != len(theirs):
            yield (
                f"the left stream has {len(ours)} {role} columns ({', '.join(ours)}), the right one has "
                f"{len(theirs)} ({', '.join(theirs)})",
                "name as many on both sides",
            )
            continue
        for ours_name, theirs_name in zip(ours, theirs, strict=True):
            if ours_name not in left.names or theirs_name not in right.names:
                continue
            one, other = type_ddl(left.field(ours_name).type), type_ddl(right.field(theirs_name).type)
            if one != other:
                yield (
                    f"{role} column {ours_name!r} of the left stream is {one}, {theirs_name!r} of the right "
                    f"one is {other}",
                    "cast one of them in a transform(...)",
                )
