"""A job in parts: what a declaration may say, and the graph of each part alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.fingerprint import fingerprint, fingerprint_parts
from holdfast.graph.job_graph import (
    BroadcastConnectNode,
    CarriedNode,
    ChannelNode,
    ConnectNode,
    Graph,
    InletNode,
    LookupNode,
    Node,
    OutletNode,
    UnionNode,
    WatermarkNode,
    describe,
    parents_of,
)
from holdfast.graph.parts import PartGraph, homes_of, is_in_parts, part_names, parts_before, split
from holdfast.graph.streams import Declaration
from holdfast.graph.validate import check, mistakes
from holdfast.runtime.parts.part_jobs import part_jobs

ROWS = "user string, n long, ts timestamp"


class Totals(hf.KeyedFunction):
    output = "user string, total long"
    outputs = {"large": "user string"}  # noqa: RUF012
    total = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user, 1


class Both(hf.CoFunction):
    output = "user string"

    def process_left(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)

    def process_right(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


class Judge(hf.BroadcastFunction):
    output = "user string"
    rules = hf.BroadcastState("string", "struct<most:long>")

    def process_broadcast(self, row: Any, ctx: Any) -> Any: ...

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.user,)


def prices(spark: Any) -> Any:
    return spark.read.parquet("prices")


def rows(job: Declaration, uid: str = "rows", **options: Any) -> Any:
    return job.source(MemorySource([], schema=ROWS), uid=uid, **options)


class PlayedInlet:
    """What a channel is read by."""

    replayable = True

    def __init__(self, channel: str, before: str, place: str) -> None:
        self.channel, self.before, self._place = channel, before, place

    @property
    def schema(self) -> str:
        return ROWS

    def learn(self, columns: pa.Schema) -> None: ...

    def reader(self, notes: Any) -> Any: ...


def apart(graph: Graph, root: str = "/cp") -> dict[str, PartGraph]:
    def place_of(part: str) -> str:
        return f"{root}/{part}"

    def inlet(channel: ChannelNode, before: str) -> Any:
        return PlayedInlet(channel.uid, before, place_of(before))

    return {part.name: part for part in split(graph, inlet, place_of)}


def shape(part: PartGraph) -> list[str]:
    return [describe(node) for node in part.graph.nodes]


def told(job: Declaration) -> str:
    return "\n".join(map(str, mistakes(job.graph())))


def two_parts() -> Declaration:
    job = Declaration("fraud")
    scoring = job.part("scoring", protection=hf.PassiveStandby())
    clicks = rows(job, "clicks").watermark("ts", "5s").into(scoring, uid="clicks-in")
    clicks.key_by("user").process(Totals(), uid="totals").sink(MemorySink(), uid="out")
    return job


def test_a_job_without_parts_is_one_part() -> None:
    job = Declaration("job")
    rows(job).sink(MemorySink(), uid="out")
    graph = job.graph()
    assert {*homes_of(graph).values()} == {"main"}
    assert not is_in_parts(graph)
    assert part_names(graph) == ("main",)
    check(graph)


def test_a_job_that_is_all_in_one_declared_part_is_not_in_parts() -> None:
    job = Declaration("job")
    rows(job, part=job.part("only")).sink(MemorySink(), uid="out")
    check(job.graph())
    assert part_names(job.graph()) == ("only",)
    assert not is_in_parts(job.graph())


def test_each_node_is_in_the_part_that_its_rows_were_sent_to() -> None:
    graph = two_parts().graph()
    check(graph)
    homes = {describe(node): part for node, part in homes_of(graph).items()}
    assert homes == {
        "source 'clicks'": "main",
        "watermark": "main",
        "channel 'clicks-in'": "scoring",
        "operator 'totals'": "scoring",
        "sink 'out'": "scoring",
    }
    assert is_in_parts(graph)
    assert parts_before(graph) == {"main": set(), "scoring": {"main"}}


def test_parts_come_after_those_that_they_read_from() -> None:
    job = Declaration("job")
    last, middle, aside = job.part("last"), job.part("middle"), job.part("aside")
    rows(job, "own", part=aside).into(last, uid="b").sink(MemorySink(), uid="out-b")
    first = rows(job)
    first.into(middle, uid="m").into(last, uid="ml").sink(MemorySink(), uid="out-ml")
    first.into(last, uid="l").sink(MemorySink(), uid="out-l")
    graph = job.graph()
    check(graph)
    order = part_names(graph)
    assert sorted(order) == ["aside", "last", "main", "middle"]
    for name, before in parts_before(graph).items():
        assert all(order.index(each) < order.index(name) for each in before)
    assert [*apart(graph)] == [*order]


def test_a_source_is_read_in_the_part_that_it_names() -> None:
    job = Declaration("job")
    edge = job.part("edge")
    rows(job, part=edge).transform(lambda df: df).into(job.part("main"), uid="in").sink(
        MemorySink(), uid="out"
    )
    graph = job.graph()
    check(graph)
    parts = apart(graph)
    assert shape(parts["edge"]) == ["source 'rows'", "transform", "outlet 'in'"]
    assert shape(parts["main"]) == ["inlet 'in'", "sink 'out'"]


def test_a_channel_is_a_sink_before_and_a_source_after() -> None:
    graph = two_parts().graph()
    parts = apart(graph)
    assert shape(parts["main"]) == ["source 'clicks'", "watermark", "outlet 'clicks-in'"]
    assert shape(parts["scoring"]) == ["inlet 'clicks-in'", "carried", "operator 'totals'", "sink 'out'"]
    (outlet,), (inlet,) = parts["main"].graph.outlets, parts["scoring"].graph.sources
    assert isinstance(outlet, OutletNode)
    assert isinstance(inlet, InletNode)
    assert outlet.channel is inlet.channel is graph.channels[0]
    assert outlet.reader == "/cp/scoring"
    assert isinstance(inlet.source, PlayedInlet)
    assert (inlet.source.channel, inlet.source.before) == ("clicks-in", "main")
    assert parts["main"].graph.sinks == ()
    assert parts["scoring"].graph.outlets == ()


def test_a_part_alone_knows_its_job_its_name_and_its_protection() -> None:
    graph = two_parts().graph()
    parts = apart(graph)
    assert [part.graph.name for part in parts.values()] == ["fraud.main", "fraud.scoring"]
    assert all(part.graph.whole is graph and part.graph.parts == () for part in parts.values())
    assert (parts["main"].protection, parts["scoring"].protection) == (hf.Rollback(), hf.PassiveStandby())


def test_event_time_is_carried_through_channels() -> None:
    job = two_parts()
    graph = job.graph()
    parts = apart(graph)
    (carried,) = [node for node in parts["scoring"].graph.nodes if isinstance(node, CarriedNode)]
    assert carried.origins == tuple(node for node in graph.nodes if isinstance(node, WatermarkNode))
    assert watermarks_of(parts["scoring"].graph.operators[0]) == (carried,)
    (outlet,) = parts["main"].graph.outlets
    assert [describe(node) for node in watermarks_of(outlet.parent)] == ["watermark"]


def test_through_two_channels_event_time_has_one_origin() -> None:
    job = Declaration("job")
    stream = rows(job).watermark("ts")
    stream = stream.into(job.part("b"), uid="b-in").into(job.part("c"), uid="c-in")
    stream.key_by("user").process(Totals(), uid="t").sink(MemorySink(), uid="out")
    graph = job.graph()
    check(graph)
    parts = apart(graph)
    assert shape(parts["b"]) == ["inlet 'b-in'", "carried", "outlet 'c-in'"]
    (carried,) = [node for node in parts["c"].graph.nodes if isinstance(node, CarriedNode)]
    assert carried.origins == watermarks_of(stream._node)


def test_rows_without_event_time_carry_none() -> None:
    job = Declaration("job")
    rows(job).into(job.part("b"), uid="b-in").sink(MemorySink(), uid="out")
    assert shape(apart(job.graph())["b"]) == ["inlet 'b-in'", "sink 'out'"]


def everything() -> Declaration:
    """Every kind of node, in the second of two parts."""
    job = Declaration("job")
    there = job.part("there")
    one = job.source(FileSource("in/", format="json", schema=ROWS), uid="one", on_error="dead-letter")
    one.dead_letters().into(there, uid="dead-in").sink(MemorySink(), uid="dead-out")
    left = one.watermark("ts").into(there, uid="one-in")
    right = rows(job, "two").watermark("ts").into(there, uid="two-in")
    rules = rows(job, "rules", part=there)
    both = left.union(right).transform(lambda df: df, materialize=True)
    both.lookup(prices, on=("user", "id"), uid="prices").sink(MemorySink(), uid="priced")
    left.key_by("user").connect(right.key_by("user")).process(Both(), uid="both").sink(MemorySink(), uid="b")
    left.key_by("user").connect(rules.broadcast()).process(Judge(), uid="judge").sink(MemorySink(), uid="j")
    windows = left.union(right).key_by("user").window(hf.tumbling("1m"), on="ts")
    sums = windows.aggregate(uid="sums", total=hf.sum("n"))
    sums.sink(MemorySink(), uid="s")
    sums.late().sink(MemorySink(), uid="late")
    totals = both.key_by("user").process(Totals(), uid="totals", on_error="dead-letter")
    totals.output("large").sink(MemorySink(), uid="large")
    totals.dead_letters().sink(MemorySink(), uid="letters")
    return job


def test_every_kind_of_node_is_moved_with_its_parents() -> None:
    graph = everything().graph()
    check(graph)
    parts = apart(graph)
    assert shape(parts["main"]) == [
        "source 'one'", "dead_letters()", "outlet 'dead-in'", "watermark", "outlet 'one-in'", "source 'two'",
        "watermark", "outlet 'two-in'",
    ]  # fmt: skip
    kinds = {type(node) for node in parts["there"].graph.nodes}
    assert kinds >= {type(node) for node in graph.nodes} - {ChannelNode, WatermarkNode}
    assert kinds >= {InletNode, CarriedNode, UnionNode, LookupNode, ConnectNode, BroadcastConnectNode}
    for part in parts.values():
        known: set[Node] = set()
        for node in part.graph.nodes:
            assert {*parents_of(node)} <= known, f"{describe(node)} reads what is in its part, and before it"
            known.add(node)
        assert not any(isinstance(node, ChannelNode) for node in part.graph.nodes)
    whole = [node.uid for node in graph.sinks]
    assert sorted(node.uid for part in parts.values() for node in part.graph.sinks) == sorted(whole)


def test_a_uid_may_be_left_out_right_after_an_operator() -> None:
    job = Declaration("job")
    totals = rows(job).key_by("user").process(Totals(), uid="totals")
    totals.into(job.part("b")).sink(MemorySink(), uid="out")
    check(job.graph())
    assert [channel.uid for channel in job.graph().channels] == ["totals-to-b"]


def wrong(job: Declaration, *texts: str) -> None:
    """The job is refused with one text for each mistake, and no other."""
    with pytest.raises(DefinitionError) as refused:
        check(job.graph())
    found = told(job)
    assert found == str(refused.value) or found in str(refused.value)
    lines = found.splitlines()
    assert len(lines) == len(texts), found
    for line, text in zip(lines, texts, strict=True):
        assert text in line, found
        assert "; " in line, "what to do"


def test_after_anything_else_a_uid_is_needed() -> None:
    job = Declaration("job")
    rows(job).transform(lambda df: df).into(job.part("b")).sink(MemorySink(), uid="out")
    wrong(job, "channel: it has no uid, under which checkpoints keep it; add uid='...'")


def test_a_circle_of_parts_is_refused() -> None:
    job = Declaration("job")
    a, b = job.part("a"), job.part("b")
    rows(job, part=a).into(b, uid="to-b").into(a, uid="to-a").sink(MemorySink(), uid="out")
    found = told(job)
    assert "closes a circle: part 'b' reads, directly or not, from part 'a'; let parts read one way" in found


def test_a_circle_of_three_parts_is_refused() -> None:
    job = Declaration("job")
    a, b, c = job.part("a"), job.part("b"), job.part("c")
    stream = rows(job).into(a, uid="to-a").into(b, uid="to-b").into(c, uid="to-c")
    stream.into(a, uid="back").sink(MemorySink(), uid="out")
    assert "closes a circle" in told(job)
    with pytest.raises(DefinitionError):
        check(job.graph())


def test_back_into_main_is_a_circle() -> None:
    job = Declaration("job")
    main, b = job.part("main"), job.part("b")
    rows(job).into(b, uid="to-b").into(main, uid="back").sink(MemorySink(), uid="out")
    assert "closes a circle" in told(job)


@pytest.mark.parametrize("how", ["union", "connect", "broadcast"])
def test_streams_of_two_parts_do_not_come_together(how: str) -> None:
    job = Declaration("job")
    there = rows(job, "two").into(job.part("there"), uid="in")
    here = rows(job, "one")
    if how == "union":
        here.union(there).sink(MemorySink(), uid="out")
    elif how == "connect":
        both = here.key_by("user").connect(there.key_by("user")).process(Both(), uid="both")
        both.sink(MemorySink(), uid="out")
    else:
        judged = here.key_by("user").connect(there.broadcast()).process(Judge(), uid="judge")
        judged.sink(MemorySink(), uid="out")
    wrong(
        job, "it reads streams of parts 'main' and 'there'; bring them into one part first: stream.into(part)"
    )


def test_into_the_part_where_the_rows_are_is_refused() -> None:
    job = Declaration("job")
    b = job.part("b")
    rows(job).into(b, uid="to-b").into(b, uid="again").sink(MemorySink(), uid="out")
    wrong(job, "channel 'again': its rows are in part 'b' already; leave out into(...), or name another part")


def test_a_part_of_another_job_is_refused() -> None:
    job, other = Declaration("job"), Declaration("other")
    rows(job).into(other.part("b"), uid="in").sink(MemorySink(), uid="out")
    wrong(
        job, "channel 'in': part 'b' of another job is not a part of this job; give one that came from this"
    )


@pytest.mark.parametrize("given", ["scoring", "scorin"])
def test_the_name_of_a_part_is_no_part(given: Any) -> None:
    """One mistake: that nothing is in the part follows from it."""
    job = Declaration("job")
    job.part("scoring")
    rows(job).into(given, uid="in").sink(MemorySink(), uid="out")
    remedy = f"{given!r} is the name of a part, not a part; give what job.part('scoring') returned"
    assert told(job).endswith(f"channel 'in': {remedy}")
    assert told(job).count("\n") == 0


@pytest.mark.parametrize("given", [5, hf.Rollback])
def test_what_is_no_part_is_refused(given: Any) -> None:
    job = Declaration("job")
    rows(job).into(given, uid="in").sink(MemorySink(), uid="out")
    assert "is not a part of this job; give one that came from this job's part(...)" in told(job)
    with pytest.raises(DefinitionError):
        check(job.graph())


@pytest.mark.parametrize(
    ("given", "problem"), [("scoring", "is the name of a part, not a part"), (5, "is not a part of this job")]
)
def test_a_source_is_read_in_no_other_thing(given: Any, problem: str) -> None:
    job = Declaration("job")
    rows(job, part=given).sink(MemorySink(), uid="out")
    wrong(job, f"source 'rows': {given!r} {problem}")


def test_a_name_of_a_part_is_given_once() -> None:
    job = Declaration("job")
    one, two = job.part("b"), job.part("b")
    rows(job).into(one, uid="in").sink(MemorySink(), uid="out")
    rows(job, "more").into(two, uid="in-2").sink(MemorySink(), uid="out-2")
    wrong(job, "part 'b': there is a part of that name in ")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 200, 5, None])
def test_a_name_that_cannot_be_a_directory_is_refused(name: Any) -> None:
    job = Declaration("job")
    rows(job).into(job.part(name), uid="in").sink(MemorySink(), uid="out")
    wrong(job, f"the name of part {name!r} cannot be used in file names; use at most")


def test_a_part_with_nothing_in_it_is_refused() -> None:
    job = Declaration("job")
    job.part("empty")
    rows(job).sink(MemorySink(), uid="out")
    wrong(job, "part 'empty': nothing is in it; send a stream there with into(part), or read a source there")


@pytest.mark.parametrize("limits", [{"limit_bytes": 0}, {"limit_epochs": 0}, {"limit_bytes": -1}])
def test_a_channel_that_admits_nothing_is_refused(limits: Any) -> None:
    job = Declaration("job")
    rows(job).into(job.part("b"), uid="in", **limits).sink(MemorySink(), uid="out")
    ((name, given),) = limits.items()
    wrong(job, f"channel 'in': {name}={given} admits nothing; give at least 1, or leave it out")


@pytest.mark.parametrize("limits", [{"limit_bytes": "1GB"}, {"limit_epochs": None}, {"limit_epochs": 2.5}])
def test_a_limit_that_is_no_number_is_refused(limits: Any) -> None:
    job = Declaration("job")
    rows(job).into(job.part("b"), uid="in", **limits).sink(MemorySink(), uid="out")
    ((name, given),) = limits.items()
    wrong(job, f"channel 'in': {name}={given!r} is not a whole number; give ")


@pytest.mark.parametrize(
    ("given", "text"),
    [("hot", "'hot'"), (hf.PassiveStandby, "the class PassiveStandby"), (0, "0"), ("", "''")],
)
def test_what_is_no_protection_is_refused(given: Any, text: str) -> None:
    job = Declaration("job")
    rows(job).into(job.part("b", protection=given), uid="in").sink(MemorySink(), uid="out")
    wrong(job, f"part 'b': {text} is not a protection; use one of hf.Rollback(), hf.PassiveStandby()")


def test_a_channel_has_a_uid_of_its_own() -> None:
    job = Declaration("job")
    rows(job).into(job.part("b"), uid="rows").sink(MemorySink(), uid="out")
    wrong(job, "channel 'rows': uid 'rows' is taken by the source 'rows'")


def test_a_watermark_is_declared_before_the_channel() -> None:
    job = Declaration("job")
    rows(job).into(job.part("b"), uid="in").watermark("ts").sink(MemorySink(), uid="out")
    wrong(job, "it is declared after channel 'in'; declare it on the streams of the sources before")


def test_the_fingerprint_of_a_job_without_parts_is_what_it_was_before_there_were_any() -> None:
    job = Declaration("job")
    one = rows(job, on_error="dead-letter").watermark("ts", "10s")
    more = rows(job, "more").watermark("ts", "10s")
    sums = one.union(more).key_by("user").window(hf.tumbling("1m")).aggregate(uid="sums", total=hf.sum("n"))
    sums.sink(MemorySink(), uid="out")
    sums.late().sink(MemorySink(), uid="late")
    assert fingerprint(job.graph()) == "154730a483e1e32d0497df555a88a6e0"


def test_the_fingerprint_of_a_part_does_not_go_by_its_place() -> None:
    def found(root: str) -> dict[str, str]:
        return {job.part: fingerprint(job.graph()) for job in part_jobs(two_parts().graph(), root)}

    assert found("/cp") == found("s3://bucket/other?region=x")
    assert len({*found("/cp").values()}) == 2


def test_the_fingerprint_of_a_part_does_not_go_by_what_it_has_learned() -> None:
    (_, after) = part_jobs(two_parts().graph(), "/cp")
    before = fingerprint(after.graph())
    (inlet,) = after.graph().sources
    assert isinstance(inlet, InletNode)
    inlet.source.learn(pa.schema([("user", pa.string())]))
    assert fingerprint(after.graph()) == before


def test_another_channel_is_another_fingerprint() -> None:
    def found(uid: str) -> list[str]:
        job = Declaration("job")
        rows(job).into(job.part("b"), uid=uid).sink(MemorySink(), uid="out")
        whole = fingerprint(job.graph())
        return [whole, *(fingerprint(part.graph) for part in apart(job.graph()).values())]

    assert all(one != other for one, other in zip(found("one"), found("other"), strict=True))


def test_a_change_in_one_part_leaves_the_fingerprints_of_others() -> None:
    def found(delay: str) -> dict[str, str]:
        job = Declaration("job")
        stream = rows(job).watermark("ts", delay).into(job.part("b"), uid="in")
        stream.sink(MemorySink(), uid="out")
        return {name: fingerprint(part.graph) for name, part in apart(job.graph()).items()}

    one, other = found("1s"), found("2s")
    assert one["main"] != other["main"]
    assert one["b"] == other["b"]


def test_the_parts_of_a_fingerprint_name_both_ends_of_a_channel() -> None:
    parts = apart(two_parts().graph())
    assert "outlet clicks-in" in fingerprint_parts(parts["main"].graph)
    assert "inlet clicks-in" in fingerprint_parts(parts["scoring"].graph)
