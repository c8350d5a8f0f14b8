from __future__ import annotations

import pytest

from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.contract import Sink
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import Guarantee, check_guarantee, statements
from holdfast.graph.job_graph import Graph
from holdfast.graph.streams import Declaration
from holdfast.testing import SqliteLaneSink


class OnceOnlySource(MemorySource):
    """Like a socket: what was read is gone."""

    replayable = False  # type: ignore[misc]


def graph(source: type[MemorySource], sink: Sink | ChannelSink) -> Graph:
    job = Declaration("job")
    job.source(source([1]), uid="in").transform(lambda df: df).sink(sink, uid="out")
    return job.graph()


@pytest.mark.parametrize(
    ("source", "sink", "asked", "real"),
    [
        (MemorySource, MemorySink(), "exactly-once", "exactly-once"),
        (MemorySource, ConsoleSink(), "exactly-once", "at-least-once"),
        (OnceOnlySource, MemorySink(), "exactly-once", "at-most-once"),
        (OnceOnlySource, ConsoleSink(), "exactly-once", "none"),
        (MemorySource, MemorySink(), "at-least-once", "at-least-once"),
        (MemorySource, ConsoleSink(), "at-least-once", "at-least-once"),
        (OnceOnlySource, MemorySink(), "at-least-once", "none"),
        (OnceOnlySource, ConsoleSink(), "at-most-once", "at-most-once"),
        (MemorySource, ChannelSink(), "exactly-once", "exactly-once"),
        (MemorySource, ChannelSink(), "at-least-once", "at-least-once"),
        (OnceOnlySource, ChannelSink(), "at-least-once", "at-most-once"),
        (MemorySource, ChannelSink(), "at-most-once", "none"),
    ],
)
def test_a_sink_gives_what_its_sources_and_itself_allow(
    source: type[MemorySource], sink: Sink | ChannelSink, asked: str, real: str
) -> None:
    found = statements(graph(source, sink), Guarantee(asked))
    assert [statement.node.uid for statement in found] == ["in", "out"]
    assert found[-1].guarantee == real
    if asked == real:
        assert check_guarantee(graph(source, sink), asked)
    else:
        with pytest.raises(DefinitionError):
            check_guarantee(graph(source, sink), asked)


def test_asking_for_more_than_the_parts_give_names_each_part_and_a_way_out() -> None:
    with pytest.raises(DefinitionError) as error:
        check_guarantee(graph(OnceOnlySource, ConsoleSink()), "exactly-once")
    source, sink = str(error.value).splitlines()
    assert "source 'in': exactly-once was asked for, but OnceOnlySource gives at-most-once here" in source
    assert "sink 'out': exactly-once was asked for, but ConsoleSink gives no guarantee here" in sink
    assert source.endswith("run with guarantee='at-most-once', or use another source")


def test_a_channel_is_in_the_commit_and_cannot_come_after_it() -> None:
    (_, channel) = check_guarantee(graph(MemorySource, ChannelSink()), "exactly-once")
    assert (channel.connector, channel.reason) == ("ChannelSink", "its rows are in the commit itself")
    with pytest.raises(DefinitionError, match=r"sink 'out': .* run with guarantee='at-least-once', or use"):
        check_guarantee(graph(MemorySource, ChannelSink()), "at-most-once")


def test_a_sink_is_judged_by_its_own_sources_only() -> None:
    job = Declaration("job")
    job.source(OnceOnlySource([1]), uid="lossy").sink(MemorySink(), uid="lossy-out")
    job.source(MemorySource([1]), uid="safe").sink(MemorySink(), uid="safe-out")
    found = {each.node.uid: each.guarantee for each in statements(job.graph(), Guarantee.EXACTLY_ONCE)}
    assert found["safe-out"] is Guarantee.EXACTLY_ONCE
    assert found["lossy-out"] is Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize("asked", ["twice", "none"])
def test_an_unknown_guarantee_is_refused(asked: str) -> None:
    with pytest.raises(DefinitionError, match="use one of exactly-once, at-least-once, at-most-once"):
        check_guarantee(graph(MemorySource, MemorySink()), asked)


class Unshared(SqliteLaneSink):
    shared = False


@pytest.mark.parametrize(
    ("sink", "atomic", "shared"),
    [
        (MemorySink(), "epoch", "yes"),
        (ConsoleSink(), "", ""),
        (ChannelSink(), "epoch", ""),
        (SqliteLaneSink("out.db"), "lane", "yes"),
        (Unshared("out.db", chunk_rows=9), "chunk", "no"),
    ],
)
def test_a_sink_says_what_a_reader_sees_whole_and_who_may_write(
    sink: Sink | ChannelSink, atomic: str, shared: str
) -> None:
    found = statements(graph(MemorySource, sink), Guarantee.EXACTLY_ONCE)[-1]
    assert (found.atomic, found.shared) == (atomic, shared)
