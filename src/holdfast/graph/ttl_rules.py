"""Where a state may have a ttl."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.graph.aggregates import Aggregation
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.functions import DeclaringFunction, OperatorFunction
from holdfast.graph.job_graph import OperatorNode
from holdfast.state.cells.declarations import declared_states
from holdfast.state.encoding.ttl import Ttl


def ttl_mistakes(node: OperatorNode) -> Iterator[str]:
    """Everything wrong with the ttls of an operator's states, remedy included."""
    for name, ttl in ttls_of(node.function):
        if isinstance(node.function, OperatorFunction):
            yield f"{name} has a ttl, but state without keys has none; leave it out, or key the stream"
        elif node.uncoordinated is not None:
            yield (
                f"{name} has a ttl, but its keys are saved on their own, and what has expired would come "
                "back from their saves; leave out ttl, or protection"
            )
        elif ttl.clock == "event" and not watermarks_of(node):
            yield (
                f"{name} expires by event time, and there is no watermark before this operator; declare "
                "stream.watermark('column', delay='10s') right after the source, or leave out clock='event'"
            )


def ttls_of(function: object) -> Iterator[tuple[str, Ttl]]:
    """The states of an operator that expire, by name."""
    if isinstance(function, Aggregation):
        if function.ttl is not None:
            yield "aggregate()", function.ttl
    elif isinstance(function, DeclaringFunction):
        for state in declared_states(type(function)).values():
            if state.ttl is not None:
                yield f"{type(function).__name__}.{state.name}", state.ttl
