"""What a part may hold whose state is kept nowhere, and is had again from its input (`hf.UpstreamBackup`).

Its rows are read again from the first epoch that open state needs. So it must be known from a row's time when
nothing needs it any more, and nothing may be open that an older row has a part in. Windows and joins by time
are so. A ttl is not enough: a write renews it, so what a value is made of may be older than any ttl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.connectors.contract import ForgettingSource
from holdfast.graph.aggregates import Aggregation
from holdfast.graph.interval_join import IntervalJoin
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    Graph,
    Mistake,
    Node,
    OperatorNode,
    SourceNode,
    TransformNode,
    UnkeyedNode,
    describe,
    parents_of,
)
from holdfast.graph.protection import UpstreamBackup
from holdfast.graph.ttl_rules import ttls_of
from holdfast.graph.window_join import WindowJoin
from holdfast.graph.windows import CountWindow, SessionWindow, Windowed

_OTHERWISE = "use hf.Rollback() for its part"


def upstream_mistakes(graph: Graph, homes: Mapping[Node, str]) -> list[Mistake]:
    """What parts with this protection hold that could not be had again."""
    found = []
    for part in graph.parts:
        if not isinstance(part.protection, UpstreamBackup):
            continue
        own = [node for node, home in homes.items() if home == part.name]
        if own and len({*homes.values()}) < 2:
            problem = "hf.UpstreamBackup() is for a part beside others, and the job has no other"
            found.append(
                Mistake(part.place, f"part {part.name!r}", problem, "leave it out, or read elsewhere")
            )
        operators = [node for node in own if isinstance(node, OperatorNode)]
        for node in operators:
            found += [Mistake(node.place, describe(node), *wrong) for wrong in _unbounded(node)]
        before = _before(operators, own)
        found += [Mistake(node.place, describe(node), *wrong) for node in before for wrong in _unsteady(node)]
        for node in operators[1:]:
            problem = (
                f"part {part.name!r} has hf.UpstreamBackup() and {describe(operators[0])} already: what a "
                "second one has open may follow from rows that the first let go of long ago"
            )
            found.append(Mistake(node.place, describe(node), problem, "give it a part of its own"))
    return found


def _before(operators: Sequence[Node], own: Sequence[Node]) -> list[Node]:
    """What the operators of a part read there, in the order of its declaration."""
    found, waiting = set[Node](), [*operators]
    while waiting:
        parents = {parent for parent in parents_of(waiting.pop()) if parent in own} - found
        found |= parents
        waiting += parents
    return [node for node in own if node in found]


def _unsteady(node: Node) -> Iterator[tuple[str, str]]:
    """Why the rows that an operator reads may be others when they are read again."""
    if isinstance(node, SourceNode) and not node.source.replayable:
        yield (
            "it cannot be read again, and hf.UpstreamBackup() keeps open windows in the input alone",
            f"read it in another part, and send its rows into(part), or {_OTHERWISE}",
        )
    elif isinstance(node, SourceNode) and isinstance(node.source, ForgettingSource) and node.source.forgets:
        yield (
            "it lets go of rows though windows are open, and hf.UpstreamBackup() keeps these in the input "
            "alone: the next start would end with InputVanished",
            "read it in another part, and send its rows into(part), whose channel keeps them, or "
            f"{_OTHERWISE}",
        )
    elif isinstance(node, TransformNode) and node.materialize:
        yield (
            "its rows may be others each time, and hf.UpstreamBackup() computes those of open windows again",
            f"put it into the part before, or {_OTHERWISE}",
        )


def _unbounded(node: OperatorNode) -> Iterator[tuple[str, str]]:
    """Why the state of an operator does not follow from the rows of a bounded time."""
    if node.uncoordinated is not None:
        yield (
            "its keys are saved on their own, and hf.UpstreamBackup() saves nothing",
            "leave out the protection of the operator, or of its part",
        )
    elif isinstance(node, BroadcastConnectNode):
        yield f"its broadcast states hold rows of any age, {_WHY}", _OTHERWISE
    elif isinstance(node, UnkeyedNode):
        yield f"the lists of an operator without keys hold rows of any age, {_WHY}", _OTHERWISE
    elif isinstance(node.function, Windowed):
        yield from _window(node.function)
    elif isinstance(node.function, Aggregation):
        yield (
            f"an aggregate without a window holds rows of any age{_in_spite_of(node)}, {_WHY}",
            f"give it a window, or {_OTHERWISE}",
        )
    elif not isinstance(node.function, IntervalJoin | WindowJoin):
        yield f"the states of a function may hold rows of any age{_in_spite_of(node)}, {_WHY}", _OTHERWISE


def _in_spite_of(node: OperatorNode) -> str:
    has_ttl = any(True for _ in ttls_of(node.function))
    return " (a ttl does not bound it: each write renews it)" if has_ttl else ""


_WHY = "which hf.UpstreamBackup() would have to read again from the beginning"


def _window(function: Windowed) -> Iterator[tuple[str, str]]:
    if isinstance(function.window, SessionWindow):
        yield (
            "a session may go on without end, and hf.UpstreamBackup() would have to read all of it again",
            f"use hf.tumbling or hf.sliding, or {_OTHERWISE}",
        )
    elif isinstance(function.window, CountWindow):
        yield f"counted windows go by no time: they hold rows of any age, {_WHY}", _OTHERWISE
    elif function.emit_every is not None:
        yield (
            "which early results are due goes by the clock and is kept; hf.UpstreamBackup() keeps nothing",
            f"leave out emit_every, or {_OTHERWISE}",
        )
