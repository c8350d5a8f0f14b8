"""What a job lacks to survive the end of some nodes at once, by its declaration and by where it is kept.

One rule for every protection: when k nodes end at once, the job goes on by itself and loses nothing. Seats
that are empty then are taken by nodes that are left, from the checkpoint; that others go on unnoticed until
then is more than is asked for here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import DefinitionError
from holdfast.graph.job_graph import Graph, OperatorNode, SourceNode
from holdfast.graph.parts import homes_of
from holdfast.graph.protection import nodes_needed


def check_survival(graph: Graph, nodes: int, checkpoint: str) -> None:
    """DefinitionError: the job would not go on, or lose rows, when `nodes` nodes end at once; says of each
    part what it lacks. How many nodes there are is not looked at here."""
    found = [*_lacking(graph), *_lacking_storage(checkpoint)]
    if nodes and found:
        what = "1 node" if nodes == 1 else f"{nodes} nodes at once"
        raise DefinitionError(f"the job does not survive the end of {what}:\n" + "\n".join(found))


def nodes_for(graph: Graph, nodes: int) -> int:
    """How many nodes it takes so that enough are left of them for every part when `nodes` end at once."""
    return nodes + max((nodes_needed(part.protection) for part in graph.parts), default=1)


def _lacking(graph: Graph) -> Iterator[str]:
    homes = homes_of(graph)
    for node in graph.nodes:
        if isinstance(node, OperatorNode) and node.uncoordinated is not None:
            yield (
                f"operator {node.uid!r} of part {homes[node]!r} loses what was not saved; leave out "
                "hf.Uncoordinated"
            )
        if isinstance(node, SourceNode) and not node.source.replayable:
            yield (
                f"source {node.uid!r} of part {homes[node]!r} cannot be read again; put a source before it "
                "that can"
            )


def _lacking_storage(checkpoint: str) -> Iterator[str]:
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        return
    place = Path(checkpoint.removeprefix("file://")).expanduser().absolute()
    there = next(path for path in (place, *place.parents) if path.exists())
    if os.stat(there).st_dev == os.stat("/").st_dev:
        yield (
            f"the checkpoint {checkpoint} is on the disk of this machine, and ends with it; keep it in a "
            "bucket, or in a directory that is mounted on every machine"
        )
