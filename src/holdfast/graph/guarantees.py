"""What a job really guarantees end to end, part by part.

`exactly-once`: every row takes effect once in state and is shown once. It needs sources that can replay and
sinks that recognise an epoch they already show. `at-least-once`: no row is lost, some may be shown twice;
needs sources that can replay. `at-most-once`: positions are committed first and state is not saved; no row is
shown twice, some may be lost. Any parts will do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.connectors.contract import MissingSource, RepeatingSource
from holdfast.connectors.lanes import LaneSink
from holdfast.errors import DefinitionError
from holdfast.graph.job_graph import (
    DoorNode,
    Graph,
    Mistake,
    Node,
    OperatorNode,
    OutputNode,
    SinkNode,
    SourceNode,
    WatermarkNode,
    describe,
    parents_of,
)
from holdfast.graph.once_each import OnceEach


class Guarantee(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    NONE = "none"
    """Rows may be lost and rows may be shown twice."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source or sink gives under the asked guarantee, and why. A sink's counts its sources in: it is
    end to end."""

    node: SourceNode | SinkNode | DoorNode
    connector: str
    guarantee: Guarantee
    reason: str
    atomic: str = ""
    """Of a sink: what a reader sees whole or not at all. Empty: nothing is promised."""
    shared: str = ""
    """Of a sink: whether several processes may write it at once, `yes` or `no`. Empty: it does not matter,
    or is not said."""
    accepted: bool = False
    """That it gives less than was asked for, the user has said where it is declared (`lag=`)."""


def statements(graph: Graph, asked: Guarantee) -> list[Statement]:
    """One statement for each source, then for each sink. Assumes a checked graph."""
    found = [
        *(_of_source(node, asked, graph) for node in graph.sources),
        *(_of_sink(node, asked, graph) for node in graph.nodes if isinstance(node, SinkNode | DoorNode)),
    ]
    return [_without_what_is_missed(statement, asked) for statement in found]


def check_guarantee(graph: Graph, asked: str) -> list[Statement]:
    """The statements, if every part gives what was asked; DefinitionError naming each part that cannot."""
    choices = [guarantee.value for guarantee in Guarantee if guarantee is not Guarantee.NONE]
    if asked not in choices:
        raise DefinitionError(f"guarantee={asked!r} is not known; use one of {', '.join(choices)}")
    wanted = Guarantee(asked)
    found = statements(graph, wanted)
    short = [
        _mistake(statement, wanted)
        for statement in found
        if statement.guarantee is not wanted and not statement.accepted
    ]
    if short:
        raise DefinitionError("\n".join(map(str, short)))
    return found


def _of_source(node: SourceNode, asked: Guarantee, graph: Graph) -> Statement:
    name = type(node.source).__name__
    if asked is Guarantee.AT_MOST_ONCE:
        return Statement(node, name, asked, "its position is committed before its rows are processed")
    if node.source.replayable and asked is Guarantee.EXACTLY_ONCE and (why := _repeats(node, graph)):
        return Statement(node, name, Guarantee.AT_LEAST_ONCE, why)
    if node.source.replayable:
        told = ", and its repetitions are left out" if _may_repeat(node) else ""
        return Statement(node, name, asked, f"it can replay every planned slice{told}")
    reason = "it cannot replay, so rows read by an epoch that was not committed are lost"
    return Statement(node, name, Guarantee.AT_MOST_ONCE, reason)


def _without_what_is_missed(statement: Statement, asked: Guarantee) -> Statement:
    """A source that may miss rows leaves at most once of exactly once, and nothing of at least once."""
    if statement.guarantee is not asked or asked is Guarantee.AT_MOST_ONCE:
        return statement
    missed = {
        source.uid: source.source.misses
        for source in _sources_of(statement.node)
        if isinstance(source.source, MissingSource) and source.source.misses
    }
    if not missed:
        return statement
    left = Guarantee.AT_MOST_ONCE if asked is Guarantee.EXACTLY_ONCE else Guarantee.NONE
    why = "; ".join(f"of source {uid!r} {what}" for uid, what in missed.items())
    return replace(statement, guarantee=left, reason=f"{statement.reason}; but {why}", accepted=True)


def _may_repeat(node: SourceNode) -> str:
    """Why a row may be given to a source more than once; empty: it is not."""
    return node.source.repeats if isinstance(node.source, RepeatingSource) else ""


def _repeats(node: SourceNode, graph: Graph) -> str:
    """Why rows of a source may count twice; empty: they cannot, or all its rows go through drop_duplicates by
    what tells them apart."""
    if not (why := _may_repeat(node)):
        return ""
    assert isinstance(node.source, RepeatingSource)
    column = node.source.told_apart_by
    readers = _readers_of(node, graph)
    if column is None:
        return f"{why}, and nothing tells the copies apart"
    if readers and all(
        isinstance(each, OperatorNode) and isinstance(each.function, OnceEach) and each.key == (column,)
        for each in readers
    ):
        return ""
    return f"{why}; drop_duplicates(by={column!r}) right after it would leave the copies out"


def _readers_of(node: Node, graph: Graph) -> list[Node]:
    """What reads a stream, past what changes none of its rows; without those that it set aside."""
    direct = [each for each in graph.nodes if node in parents_of(each) and not isinstance(each, OutputNode)]
    through = [each for each in direct if isinstance(each, WatermarkNode)]
    return [
        *(each for each in direct if each not in through),
        *(reader for each in through for reader in _readers_of(each, graph)),
    ]


def _of_sink(node: SinkNode | DoorNode, asked: Guarantee, graph: Graph) -> Statement:
    """A sink's guarantee is about rows. What uncoordinated state may lose behind them is said beside it."""
    statement = _of_channel(node, asked) if isinstance(node, DoorNode) else _of_rows(node, asked)
    repeating = [each.uid for each in _sources_of(node) if _repeats(each, graph)]
    if repeating and statement.guarantee is Guarantee.EXACTLY_ONCE:
        reason = f"its rows come from {repeating}, which may be given a row more than once"
        statement = replace(statement, guarantee=Guarantee.AT_LEAST_ONCE, reason=reason)
    operators = [each for each in _ancestors_of(node) if isinstance(each, OperatorNode)]
    statement = replace(statement, atomic=_atomic(node), shared=_shared(node))
    losing = [each.uid for each in operators if each.uncoordinated is not None]
    if not losing:
        return statement
    aside = f"the state of {losing} is saved key by key: of a lost machine it lacks what came after each save"
    return replace(statement, reason=f"{statement.reason}; {aside}")


def _atomic(node: SinkNode | DoorNode) -> str:
    """Sinks that recognise an epoch show it whole by their contract, unless they say otherwise."""
    if isinstance(node, DoorNode):
        return "epoch"
    stated: str = getattr(node.sink, "atomic", "epoch" if node.sink.exactly_once else "")
    return stated


def _shared(node: SinkNode | DoorNode) -> str:
    """Sinks that recognise an epoch are shared by their contract, unless they say that they are not."""
    if isinstance(node, SinkNode) and isinstance(node.sink, LaneSink):
        return "yes" if node.sink.shared else "no"
    return "yes" if isinstance(node, SinkNode) and node.sink.exactly_once else ""


def _of_rows(node: SinkNode, asked: Guarantee) -> Statement:
    name = type(node.sink).__name__
    if asked is Guarantee.AT_MOST_ONCE:
        return Statement(node, name, asked, "each epoch is written at most once")
    lossy = _lossy(node)
    if lossy and node.sink.exactly_once and asked is Guarantee.EXACTLY_ONCE:
        return Statement(
            node, name, Guarantee.AT_MOST_ONCE, f"its rows come from {lossy}, which cannot replay"
        )
    if lossy:
        reason = f"its rows come from {lossy}, which cannot replay, and it may show an epoch twice"
        return Statement(node, name, Guarantee.NONE, reason)
    if asked is Guarantee.AT_LEAST_ONCE:
        return Statement(node, name, asked, "it is written before the commit, and again after a crash")
    if node.sink.exactly_once:
        return Statement(node, name, asked, "it shows a committed epoch once, however often it is published")
    reason = "it cannot recognise an epoch that it already shows, so rows may be repeated after a crash"
    return Statement(node, name, Guarantee.AT_LEAST_ONCE, reason)


def _of_channel(node: DoorNode, asked: Guarantee) -> Statement:
    name = type(node.sink).__name__
    if asked is Guarantee.AT_MOST_ONCE:
        return Statement(
            node, name, Guarantee.NONE, "its rows are in the commit, which comes before there are any"
        )
    if lossy := _lossy(node):
        return Statement(
            node, name, Guarantee.AT_MOST_ONCE, f"its rows come from {lossy}, which cannot replay"
        )
    return Statement(node, name, asked, "its rows are in the commit itself")


def _lossy(node: Node) -> list[str]:
    """The sources of a node that cannot replay."""
    return [source.uid for source in _sources_of(node) if not source.source.replayable]


def _sources_of(node: Node) -> list[SourceNode]:
    return [each for each in _ancestors_of(node) if isinstance(each, SourceNode)]


def _ancestors_of(node: Node) -> list[Node]:
    """The node, and everything it reads, directly or not."""
    found: dict[Node, None] = {}
    waiting: list[Node] = [node]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = None
        waiting += parents_of(current)
    return list(found)


def _mistake(statement: Statement, asked: Guarantee) -> Mistake:
    real = "no guarantee" if statement.guarantee is Guarantee.NONE else statement.guarantee.value
    problem = f"{asked} was asked for, but {statement.connector} gives {real} here: {statement.reason}"
    enough = Guarantee.AT_MOST_ONCE if statement.guarantee is Guarantee.NONE else statement.guarantee
    kind = "source" if isinstance(statement.node, SourceNode) else "sink"
    remedy = f"run with guarantee='{enough}', or use another {kind}"
    if isinstance(statement.node, DoorNode):
        remedy = "read from sources that can replay, or use another sink"
        if asked is Guarantee.AT_MOST_ONCE:
            remedy = f"run with guarantee='{Guarantee.AT_LEAST_ONCE}', or use another sink"
    return Mistake(statement.node.place, describe(statement.node), problem, remedy)
