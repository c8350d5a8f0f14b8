"""A job in parts: which part each node is in, and the graph of each part alone.

A part is what a job is: it has sources, operators and sinks of its own. A channel is a sink in the part
before it and a source in the part after it.
Always true: parts read from parts before them only, so that each can be compiled and recovered on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.connectors.contract import Source
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    BroadcastNode,
    CarriedNode,
    ChannelNode,
    ConnectNode,
    Graph,
    InletNode,
    Mistake,
    Node,
    OutletNode,
    OutputNode,
    Part,
    SourceNode,
    StreamNode,
    UnionNode,
    describe,
    parents_of,
    shown,
)
from holdfast.graph.protection import PROTECTIONS, ActiveReplicas, Protection, Rollback
from holdfast.graph.replica_rules import replica_mistakes
from holdfast.graph.upstream_backup import upstream_mistakes

if TYPE_CHECKING:
    import pyarrow as pa

MAIN_PART = "main"


class Inlet(Source, Protocol):
    """A source whose rows come through a channel: their columns are known once the part before is typed."""

    def learn(self, columns: pa.Schema) -> None:
        """Called before anything is read."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PartGraph:
    """One part of a job, alone."""

    name: str
    protection: Protection
    graph: Graph
    before: tuple[str, ...] = ()
    """The parts that it reads from."""


def homes_of(graph: Graph) -> dict[Node, str]:
    """The part that each node is in. A channel is in the part that it leads to."""
    homes: dict[Node, str] = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            homes[node] = getattr(node.part, "name", MAIN_PART)
        elif isinstance(node, ChannelNode):
            homes[node] = getattr(node.part, "name", homes[node.parent])
        else:
            homes[node] = homes.get(parents_of(node)[0], MAIN_PART)
    return homes


def is_in_parts(graph: Graph) -> bool:
    """Whether the job has more than one part, or one that asks for a protection of its own."""
    protected = any(not isinstance(part.protection, Rollback) for part in graph.parts)
    return protected or len({*homes_of(graph).values()}) > 1


def parts_before(graph: Graph) -> dict[str, set[str]]:
    """The parts of a job, and from which each reads."""
    homes = homes_of(graph)
    before: dict[str, set[str]] = {name: set() for name in homes.values()}
    for channel in graph.channels:
        before[homes[channel]].add(homes[channel.parent])
    return before


def part_names(graph: Graph) -> tuple[str, ...]:
    """The parts of a job, each after those that it reads from."""
    return reading_order(parts_before(graph))


def reading_order(before: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Parts, each after those that it reads from. `before`: every part, and from which it reads."""
    found: list[str] = []
    while len(found) < len(before):
        ready = [name for name, needed in before.items() if name not in found and {*needed} <= {*found}]
        if not ready:
            break
        found.append(ready[0])
    # What is left reads from itself, in a circle: `part_mistakes` says so.
    return (*found, *(name for name in before if name not in found))


def split(
    graph: Graph, inlet: Callable[[ChannelNode, str], Inlet], place_of: Callable[[str], str]
) -> tuple[PartGraph, ...]:
    """The parts of a checked job, each after those that it reads from. `inlet`: what a channel, from the part
    of some name, is read by; `place_of`: where the checkpoint of the part of some name is kept.
    """
    homes = homes_of(graph)
    nodes: dict[str, list[Node]] = {name: [] for name in part_names(graph)}
    made: dict[Node, Any] = {}
    for node in graph.nodes:
        if not isinstance(node, ChannelNode):
            made[node] = _moved(node, made)
            nodes[homes[node]].append(made[node])
            continue
        before, after = homes[node.parent], homes[node]
        nodes[before].append(
            OutletNode(
                uid=node.uid, parent=made[node.parent], reader=place_of(after), channel=node,
                place=node.place,
            )
        )  # fmt: skip
        made[node] = InletNode(uid=node.uid, source=inlet(node, before), place=node.place, channel=node)
        nodes[after].append(made[node])
        if origins := watermarks_of(node.parent):
            made[node] = CarriedNode(
                parent=made[node], column="", delay="0s", idle_after=None, place=node.place, origins=origins
            )
            nodes[after].append(made[node])
    before_each = parts_before(graph)
    protections = {part.name: part.protection for part in graph.parts}
    return tuple(
        PartGraph(
            name=name,
            protection=protections.get(name, Rollback()),
            graph=replace(
                graph, name=f"{graph.name}.{name}", nodes=tuple(own), parts=(), mistakes=(), whole=graph
            ),
            before=tuple(sorted(before_each[name])),
        )
        for name, own in nodes.items()
    )


def _moved(node: Node, made: Mapping[Node, Any]) -> Node:
    """The same node over what its parents are in the part alone."""
    if isinstance(node, SourceNode):
        return node
    if isinstance(node, UnionNode):
        return replace(node, parents=tuple(made[parent] for parent in node.parents))
    if isinstance(node, ConnectNode):
        return replace(node, parent=made[node.parent], right=made[node.right])
    if isinstance(node, BroadcastConnectNode):
        return replace(node, parent=made[node.parent], broadcast=made[node.broadcast])
    return replace(node, parent=made[node.parent])


def part_mistakes(graph: Graph) -> list[Mistake]:
    """Everything wrong with the parts of a job."""
    homes = homes_of(graph)
    found = [
        Mistake(part.place, f"part {part.name!r}", *wrong)
        for part in graph.parts
        for wrong in _part(part, graph)
    ]
    for node in graph.nodes:
        found += [Mistake(node.place, describe(node), *wrong) for wrong in _node(node, graph, homes)]
    order = part_names(graph)
    for channel in graph.channels:
        before, after = homes[channel.parent], homes[channel]
        if before != after and order.index(before) > order.index(after):
            problem = f"it closes a circle: part {before!r} reads, directly or not, from part {after!r}"
            found.append(Mistake(channel.place, describe(channel), problem, "let parts read one way only"))
    found += upstream_mistakes(graph, homes)
    meant = {_meant(node.part, graph) for node in graph.nodes if isinstance(node, SourceNode | ChannelNode)}
    used = {*homes.values(), *meant}
    for part in graph.parts:
        if part.name not in used:
            found.append(
                Mistake(
                    part.place, f"part {part.name!r}", "nothing is in it",
                    "send a stream there with into(part), or read a source there with source(..., part=part)",
                )
            )  # fmt: skip
    return found


def _part(part: Part, graph: Graph) -> Iterator[tuple[str, str]]:
    first = next(other for other in graph.parts if other.name == part.name)
    if first is not part:
        yield f"there is a part of that name in {first.place}", "give each its own name"
    if not isinstance(part.protection, PROTECTIONS):
        names = ", ".join(f"hf.{kind.__name__}()" for kind in PROTECTIONS)
        yield f"{shown(part.protection)} is not a protection", f"use one of {names}"
    elif isinstance(part.protection, ActiveReplicas) and (mistake := part.protection.mistake):
        yield mistake


def _no_part(given: object, graph: Graph) -> tuple[str, str]:
    """What is wrong with something that stands for a part and is none of the job, and what to do."""
    if isinstance(given, str):
        made = _meant(given, graph) or given
        return f"{given!r} is the name of a part, not a part", f"give what job.part({made!r}) returned"
    what = f"part {given.name!r} of another job" if isinstance(given, Part) else shown(given)
    return f"{what} is not a part of this job", "give one that came from this job's part(...)"


def _meant(given: object, graph: Graph) -> str | None:
    """The part whose name, or nearly so, was given instead of it."""
    names = [str(part.name) for part in graph.parts]
    return next(iter(get_close_matches(given, names, n=1)), None) if isinstance(given, str) else None


def _node(node: Node, graph: Graph, homes: Mapping[Node, str]) -> Iterator[tuple[str, str]]:
    given: object = node.part if isinstance(node, SourceNode | ChannelNode) else None
    if given is not None and given not in graph.parts:
        yield _no_part(given, graph)
        return
    if isinstance(node, ChannelNode):
        if homes[node.parent] == homes[node]:
            yield f"its rows are in part {homes[node]!r} already", "leave out into(...), or name another part"
        for name in ("limit_bytes", "limit_epochs"):
            limit: object = getattr(node, name)
            if not isinstance(limit, int):
                yield f"{name}={limit!r} is not a whole number", "give one of at least 1, or leave it out"
            elif limit < 1:
                yield f"{name}={limit} admits nothing", "give at least 1, or leave it out"
        return
    home = next((part.protection for part in graph.parts if part.name == homes[node]), Rollback())
    yield from replica_mistakes(node, home)
    together = sorted({homes[parent] for parent in _joined(node) if parent in homes})
    if len(together) > 1:
        yield (
            f"it reads streams of parts {' and '.join(map(repr, together))}",
            "bring them into one part first: stream.into(part)",
        )


def _joined(node: Node) -> tuple[StreamNode, ...]:
    # What another output is of, and what a broadcast half belongs to, is in the same part by itself.
    return () if isinstance(node, OutputNode | BroadcastNode) else parents_of(node)
