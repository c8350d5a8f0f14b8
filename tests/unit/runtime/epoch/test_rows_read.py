"""How many rows an epoch reads, where sources do not say."""

from __future__ import annotations

from typing import Any

import holdfast as hf
from holdfast.checkpoint.store.records import PlannedSlice
from holdfast.graph.job_graph import Node, OperatorNode
from holdfast.runtime.epoch.rows_read import RowsRead, is_transformed


class Limits(hf.BroadcastFunction):
    output = "id long"
    limits = hf.BroadcastState("long", "long")

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.limits[row.id] = 1

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.id,)


def sources(*uids: str) -> tuple[hf.Job, list[Any]]:
    job = hf.Job("job")
    return job, [job.source(hf.MemorySource([], schema="id long"), uid=uid) for uid in uids]


def operators(job: hf.Job) -> dict[str, OperatorNode]:
    return {node.uid: node for node in job.graph().operators}


def slices(**rows: int | None) -> dict[str, PlannedSlice]:
    return {uid: PlannedSlice(start=0, end=1, rows=count) for uid, count in rows.items()}


def test_rows_of_a_broadcast_source_count() -> None:
    job, (clicks, rules) = sources("clicks", "rules")
    clicks.key_by("id").connect(rules.broadcast()).process(Limits(), uid="limits")
    stages = operators(job)
    read = RowsRead(slices(clicks=None, rules=None), list(stages.values()))
    read.ran(stages["limits.broadcast"], 3)
    read.ran(stages["limits"], 10)
    assert read.total == 13
    only_rules = RowsRead(slices(rules=None), list(stages.values()))
    only_rules.ran(stages["limits.broadcast"], 3)
    only_rules.ran(stages["limits"], 0)
    assert only_rules.total == 3


def test_rows_that_several_stages_read_count_once() -> None:
    job, (one, two) = sources("one", "two")
    first = one.key_by("id").aggregate(uid="first", n=hf.count())
    first.key_by("id").aggregate(uid="second", n=hf.count())
    one.union(two).key_by("id").aggregate(uid="both", n=hf.count())
    stages = operators(job)
    read = RowsRead(slices(one=None, two=None), list(stages.values()))
    for uid, given in (("first", 5), ("second", 4), ("both", 12)):
        read.ran(stages[uid], given)
    assert read.total == 12


def test_sources_that_say_how_many_and_others_are_added_up() -> None:
    job, (one, two, three) = sources("one", "two", "three")
    one.key_by("id").connect(two.key_by("id")).process(Both(), uid="both")
    three.key_by("id").aggregate(uid="alone", n=hf.count())
    stages = operators(job)
    read = RowsRead(slices(one=7, two=None, three=None), list(stages.values()))
    read.ran(stages["both"], 9)
    read.ran(stages["alone"], 4)
    assert read.total == 7 + 2 + 4


def test_rows_count_as_they_were_read_whatever_transforms_leave_of_them() -> None:
    job, (one, two, three) = sources("one", "two", "three")
    kept = one.transform(lambda rows: rows).union(two, three)
    kept.key_by("id").aggregate(uid="sums", n=hf.count())
    (stage,) = job.graph().operators
    read = RowsRead(slices(one=None, two=None, three=2), [stage])
    read.counted({"one": 10, "three": 99})
    read.ran(stage, 15)
    assert read.total == 10 + 2 + 3, "what a source says counts; what is not told follows from the stage"


def test_only_rows_of_which_some_may_be_dropped_have_to_be_counted() -> None:
    job, (one, two, three) = sources("one", "two", "three")
    one.transform(lambda rows: rows).union(two).key_by("id").aggregate(uid="sums", n=hf.count())
    three.lookup(lambda spark: spark.table("ids"), on="id", uid="ids").sink(hf.MemorySink(), uid="out")
    graph = job.graph()
    assert [is_transformed(graph, node) for node in graph.sources] == [True, False, True]


def test_a_source_that_is_staged_counts_there() -> None:
    job, (one,) = sources("one")
    one.sink(hf.MemorySink(), uid="out")
    one.key_by("id").aggregate(uid="sums", n=hf.count())
    graph = job.graph()
    staged: list[Node] = [*graph.sources, *graph.operators]
    read = RowsRead(slices(one=None), staged)
    read.ran(graph.sources[0], 5)
    read.ran(graph.operators[0], 5)
    assert read.total == 5


def test_rows_that_are_given_up_or_come_of_no_slice_are_not_read() -> None:
    job, (one,) = sources("one")
    one.key_by("id").aggregate(uid="sums", n=hf.count())
    (stage,) = job.graph().operators
    for planned in ({}, {"one": PlannedSlice(start=0, end=1, skipped=True)}):
        read = RowsRead(planned, [stage])
        read.ran(stage, 2)
        assert read.total == 0


class Both(hf.CoFunction):
    output = "id long"

    def process_left(self, row: Any, ctx: Any) -> Any:
        yield (row.id,)

    def process_right(self, row: Any, ctx: Any) -> Any:
        yield (row.id,)
