"""What a part with active replicas cannot have, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.connectors.lanes import LaneSink
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    BroadcastNode,
    Node,
    OperatorNode,
    SinkNode,
    UnkeyedNode,
)
from holdfast.graph.protection import ActiveReplicas, Protection

_ELSEWHERE = "put it into a part of its own, with another protection"


def replica_mistakes(node: Node, protection: Protection) -> Iterator[tuple[str, str]]:
    """Why replicas could not come to the same results at a node, or not show them together: what is wrong,
    and the remedy."""
    if not isinstance(protection, ActiveReplicas):
        return
    if isinstance(node, BroadcastConnectNode | BroadcastNode):
        if isinstance(node, BroadcastConnectNode):
            yield "broadcast states of replicas cannot be compared", _ELSEWHERE
    elif isinstance(node, UnkeyedNode):
        yield "rows without a key come to replicas in different shards", f"give them a key, or {_ELSEWHERE}"
    elif isinstance(node, OperatorNode) and node.uncoordinated is not None:
        yield (
            "replicas save keys at different times, so that they would come to other results",
            f"leave out hf.Uncoordinated, or {_ELSEWHERE}",
        )
    if isinstance(node, SinkNode) and isinstance(node.sink, LaneSink) and not node.sink.shared:
        yield (
            "every replica shows every epoch, and the writers of this sink would throw each other out",
            "send its rows into(part) of another protection, and sink them there",
        )
    if isinstance(node, SinkNode) and not node.sink.exactly_once:
        yield (
            "every replica shows every epoch, and this sink would show each several times",
            "send its rows into(part) of another protection, and sink them there",
        )
