"""What a node shows of a job over several runs of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.store.records import MemberRecord
from holdfast.cluster.node_records import NodeRecord
from holdfast.cluster.ranking import code_differences
from holdfast.graph.guarantees import Guarantee
from holdfast.nodes.job_on_node import STANDING_BY, JobOnNode, jobs_on_node
from holdfast.runtime.progress import Progress


def test_counts_go_on_from_one_run_to_the_next(tmp_path: Path) -> None:
    seen: list[Progress] = []
    job = JobOnNode(hf.Job("orders"), str(tmp_path), {})
    job.listen(seen.append)
    assert (seen[-1].phase, job.running) == (STANDING_BY, False)

    job.note(Progress(job="orders", phase="running", epochs_run=5, rows_run=50, term=1))
    assert (job.running, job.status().term) == (True, 1)
    job.note(Progress(job="orders", phase="failed", epochs_run=6, rows_run=60, error="x"))
    job.ended()
    assert (seen[-1].phase, seen[-1].error, job.running) == (STANDING_BY, None, False)
    assert seen[-1].epochs_run == 6

    job.note(Progress(job="orders", phase="running", epochs_run=1, rows_run=10))
    assert (seen[-1].epochs_run, seen[-1].rows_run) == (7, 70)
    assert [progress.epochs_run for progress in seen] == sorted(progress.epochs_run for progress in seen)


def test_the_storage_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    assert JobOnNode(hf.Job("orders"), str(tmp_path), {}).storage.url == str(tmp_path)


def test_several_jobs_have_checkpoints_of_their_own() -> None:
    def checkpoints(root: str, *names: str) -> list[str]:
        jobs = jobs_on_node([hf.Job(name) for name in names], root, {})
        return [job.checkpoint for job in jobs.values()]

    assert checkpoints("s3://b/shop", "counts") == ["s3://b/shop"]
    assert checkpoints("s3://b/shop/", "counts", "sums") == ["s3://b/shop/counts", "s3://b/shop/sums"]


class Count(hf.KeyedFunction):
    output = "n long"
    n = hf.ValueState("long", default=0)

    def __init__(self, step: int) -> None:
        self.step = step

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.n.value += self.step
        yield (self.n.value,)


def parts(step: int = 1) -> dict[str, JobOnNode]:
    """Three parts in a row, of which the middle one counts and has a passive standby."""
    job = hf.Job("shop")
    counting, last = job.part("counting", protection=hf.PassiveStandby()), job.part("last")
    rows = job.source(hf.MemorySource([("a", 1)], schema="word string, n long"), uid="words")
    counts = rows.into(counting, uid="in").key_by("word").process(Count(step), uid="counts")
    counts.into(last).sink(hf.FileSink("out", format="json"), uid="out")
    return jobs_on_node([job], "s3://b/shop", {})


def test_the_parts_of_a_job_take_its_place_each_with_a_checkpoint_below() -> None:
    found = parts()
    assert {name: job.checkpoint for name, job in found.items()} == {
        "shop.main": "s3://b/shop/parts/main",
        "shop.counting": "s3://b/shop/parts/counting",
        "shop.last": "s3://b/shop/parts/last",
    }
    assert [job.before for job in found.values()] == [(), ("shop.main",), ("shop.counting",)]


def test_a_part_with_a_passive_standby_is_followed_whatever_the_node_is() -> None:
    assert [job.standby("cold") for job in parts().values()] == ["cold", "hot", "cold"]
    assert [job.standby("warm") for job in parts().values()] == ["warm", "hot", "warm"]


def test_a_node_has_nothing_to_follow_of_a_part_whose_state_is_not_saved() -> None:
    job = hf.Job("shop")
    recent = job.part("recent", protection=hf.UpstreamBackup())
    rows = job.source(hf.MemorySource([], schema="word string, at timestamp"), uid="words")
    words = rows.watermark("at", delay="1s").into(recent, uid="in").key_by("word")
    words.window(hf.tumbling("1m"), on="at").aggregate(n=hf.count(), uid="n").sink(hf.MemorySink(), uid="out")
    found = jobs_on_node([job], "s3://b/shop", {})
    assert {name: each.standby("hot") for name, each in found.items()} == {
        "shop.main": "hot",
        "shop.recent": "warm",
    }
    assert found["shop.recent"].standby("cold") == "cold"


def test_of_a_job_without_saved_state_there_is_nothing_to_follow() -> None:
    job = JobOnNode(hf.Job("orders"), "s3://b/orders", {"guarantee": Guarantee.AT_MOST_ONCE})
    assert [job.standby(kind) for kind in ("hot", "warm", "cold")] == ["warm", "warm", "cold"]


def test_other_code_of_one_part_is_other_code_of_that_part_alone() -> None:
    old, new = parts(), parts(step=2)
    assert [name for name in old if old[name].code != new[name].code] == ["shop.counting"]
    differences = code_differences(new["shop.counting"].code, old["shop.counting"].code)
    assert differences == ["operator counts differs"]


def test_a_member_runs_while_its_process_is_a_node_of_the_cluster(tmp_path: Path) -> None:
    job = JobOnNode(hf.Job("counts"), str(tmp_path), {})
    member = MemberRecord(term=1, seat=2, process="p", host="there", pid=7, joined_ms=500)
    node = NodeRecord(name="b", instance="i", host="there", pid=7, since_ms=400, standby="cold", code={})
    assert not job.member_runs(member), "no node is there"
    job.nodes = (node,)
    assert job.member_runs(member)
    for other in ({"pid": 8}, {"host": "here"}, {"since_ms": 600}):
        job.nodes = (replace(node, **other),)
        assert not job.member_runs(member)
