"""What a sink asks of its stream in which a row takes the place of the one with the same key."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.connectors.contract import ReplacingSink
from holdfast.graph.job_graph import OperatorNode, OutputNode, SinkNode, StreamNode


def replacing_mistakes(node: SinkNode) -> Iterator[tuple[str, str]]:
    """Rows of one key that are written at the same time, by different tasks, would replace each other in any
    order. An operator gives out all rows of its keys in one task."""
    sink = node.sink
    if not isinstance(sink, ReplacingSink) or not sink.key or sink.order_by is not None:
        return
    key = _key_of(node.parent)
    if key is None or not set(key) <= set(sink.key):
        found = "no operator gives them out" if key is None else f"the operator before it has the key {key}"
        yield (
            f"rows with the same {', '.join(sink.key)} may be written at once, so that the last is not "
            f"known: {found}",
            "let key=... contain the columns of that operator's key, sink its rows as they are, or give "
            "order_by= where the sink takes it",
        )


def _key_of(node: StreamNode) -> tuple[str, ...] | None:
    """The columns whose rows come from one task, in order; None: not known."""
    if isinstance(node, OutputNode):
        return _key_of(node.parent)
    return (node.key or None) if isinstance(node, OperatorNode) else None
