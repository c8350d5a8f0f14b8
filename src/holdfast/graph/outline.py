"""What a job consists of and what it survives: its parts, what is in each, and the channels between them.

Pure data for people and programs, known without Spark. A job that is not in parts is one part, `main`.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.graph.job_graph import BroadcastNode, Graph, Node, OperatorNode
from holdfast.graph.parts import homes_of, part_names
from holdfast.graph.protection import UNCOORDINATED, Rollback, Survival, name_of, survival


@dataclass(frozen=True, kw_only=True)
class Item:
    """A source, operator or sink of a part. `kind`: the class of the connector or function."""

    uid: str
    kind: str
    key: tuple[str, ...] = ()
    uncoordinated: bool = False


@dataclass(frozen=True, kw_only=True)
class PartOutline:
    """`rank`: how many parts are before it at most, one after another."""

    name: str
    rank: int
    protection: str
    survival: Survival
    sources: tuple[Item, ...]
    operators: tuple[Item, ...]
    sinks: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True)
class ChannelOutline:
    """A channel from part `sender` to part `reader`."""

    uid: str
    sender: str
    reader: str
    limit_bytes: int
    limit_epochs: int


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A job: its parts, each after those that it reads from."""

    job: str
    parts: tuple[PartOutline, ...]
    channels: tuple[ChannelOutline, ...]

    def protections(self) -> list[tuple[str, Survival, tuple[str, ...]]]:
        """Every protection in use: what it is like, and the parts, or the operators as `part/uid`, that have
        it."""
        users: dict[str, list[str]] = {}
        told: dict[str, Survival] = {}
        for part in self.parts:
            users.setdefault(part.protection, []).append(part.name)
            told[part.protection] = part.survival
        own = tuple(
            f"{part.name}/{each.uid}" for part in self.parts for each in part.operators if each.uncoordinated
        )
        found = [(name, told[name], tuple(names)) for name, names in users.items()]
        return [*found, ("Uncoordinated", UNCOORDINATED, own)] if own else found


def outline(graph: Graph) -> Outline:
    """The outline of a checked job."""
    homes = homes_of(graph)
    channels = tuple(
        ChannelOutline(
            uid=each.uid, sender=homes[each.parent], reader=homes[each], limit_bytes=each.limit_bytes,
            limit_epochs=each.limit_epochs,
        )
        for each in graph.channels
    )  # fmt: skip
    ranks: dict[str, int] = {}
    for name in part_names(graph):
        before = [ranks[channel.sender] for channel in channels if channel.reader == name]
        ranks[name] = max(before, default=-1) + 1
    return Outline(
        job=graph.name,
        parts=tuple(_part(graph, homes, name, rank) for name, rank in ranks.items()),
        channels=channels,
    )


def _part(graph: Graph, homes: dict[Node, str], name: str, rank: int) -> PartOutline:
    declared = {part.name: part.protection for part in graph.parts}
    protection = declared.get(name, Rollback())
    # The broadcast half of an operator is declared by its own name, and is no step of its own.
    operators = [node for node in graph.operators if not isinstance(node, BroadcastNode)]
    return PartOutline(
        name=name,
        rank=rank,
        protection=name_of(protection),
        survival=survival(protection),
        sources=tuple(
            Item(uid=node.uid, kind=type(node.source).__name__)
            for node in graph.sources
            if homes[node] == name
        ),
        operators=tuple(_operator(node) for node in operators if homes[node] == name),
        sinks=tuple(
            Item(uid=node.uid, kind=type(node.sink).__name__) for node in graph.sinks if homes[node] == name
        ),
    )


def _operator(node: OperatorNode) -> Item:
    kind = type(node.function).__name__
    return Item(uid=node.uid, kind=kind, key=node.key, uncoordinated=node.uncoordinated is not None)
