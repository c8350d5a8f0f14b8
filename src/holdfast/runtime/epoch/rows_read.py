"""How many rows an epoch reads: what its sources say, or what was counted as they were read; where there is
neither, what the stages are given, after the transforms before them.

Always true: the rows of a source count once, however many stages read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from holdfast.checkpoint.store.records import PlannedSlice
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    Graph,
    LookupNode,
    Node,
    OutputNode,
    SourceNode,
    StreamNode,
    TransformNode,
    parents_of,
)


class RowsRead:
    """The rows of one epoch, by source. `staged`: the streams that are read from what a stage has stored."""

    def __init__(self, slices: Mapping[str, PlannedSlice], staged: Collection[Node]) -> None:
        self._staged = staged
        self._rows = {uid: part.rows for uid, part in slices.items() if part.rows is not None}
        self._uncounted = {uid for uid, part in slices.items() if part.rows is None and not part.skipped}

    @property
    def total(self) -> int:
        return sum(self._rows.values())

    def of(self, uid: str) -> int:
        """The rows of one source."""
        return self._rows.get(uid, 0)

    def counted(self, rows: Mapping[str, int]) -> None:
        """So many rows of these sources were read, before any transform."""
        self._rows.update({uid: count for uid, count in rows.items() if uid in self._uncounted})
        self._uncounted.difference_update(rows)

    def ran(self, node: StreamNode, given: int) -> None:
        """The stage of a stream was given so many rows, after the transforms before it."""
        sources = set(_sources(node, self._staged))
        new = sorted(sources & self._uncounted)
        if not new:
            return
        counted = sum(self._rows.get(uid, 0) for uid in sources.difference(new))
        self._rows.update(dict.fromkeys(new, 0))
        self._rows[new[0]] = max(0, given - counted)
        self._uncounted.difference_update(new)


def is_transformed(graph: Graph, source: SourceNode) -> bool:
    """Whether the rows of a source go through something that may drop some, or make more of them."""
    dropping = [node for node in graph.nodes if isinstance(node, TransformNode | LookupNode)]
    return any(_reads(node, source) for node in dropping)


def _reads(node: Node, source: SourceNode) -> bool:
    return node is source or any(_reads(parent, source) for parent in parents_of(node))


def _sources(node: StreamNode, staged: Collection[Node]) -> Iterator[str]:
    """The sources that the stage of a stream reads itself."""
    if isinstance(node, SourceNode):
        yield node.uid
        return
    if isinstance(node, OutputNode):
        # Rows that its source could not parse: those are none of its rows.
        return
    for parent in (node.parent,) if isinstance(node, BroadcastConnectNode) else parents_of(node):
        if parent not in staged:
            yield from _sources(parent, staged)
