"""What a job lacks to survive the end of some nodes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.graph.survive import check_survival

BUCKET = "s3://bucket/ck"
SAVED: Any = hf.Uncoordinated(storage=hf.FileStateStorage("keys"), every="1s")


class Count(hf.KeyedFunction):
    output = "n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.value += 1
        yield (self.n.value,)


def counted(protection: Any = None, uncoordinated: Any = None, replayable: bool = True) -> hf.Job:
    job = hf.Job("counted")
    part = job.part("counting", protection=protection)
    source = hf.MemorySource([1])
    if not replayable:
        source.replayable = False  # type: ignore[misc]
    rows = job.source(source, uid="rows").into(part, uid="in").key_by("value")
    rows.process(Count(), uid="count", protection=uncoordinated).sink(hf.MemorySink(), uid="out")
    return job


def shown(protection: Any) -> hf.Job:
    """One whose sink every replica may show rows with."""
    job = hf.Job("shown")
    rows = job.source(hf.MemorySource([1]), uid="rows").into(job.part("p", protection=protection), uid="in")
    rows.key_by("value").process(Count(), uid="count").sink(hf.MemorySink(), uid="out")
    return job


@pytest.mark.parametrize(
    ("protection", "nodes"),
    [
        (None, 3),
        (hf.PassiveStandby(), 2),
        (hf.ActiveReplicas(2), 2),
        (hf.ActiveReplicas(4, vote=True), 2),
        (hf.ActiveReplicas(1), 0),
        # As Rollback: nodes that are left take the empty seats, and go on from the checkpoint.
        (hf.ActiveReplicas(1), 2),
        (hf.ActiveReplicas(2, vote=True), 3),
    ],
)
def test_a_job_that_has_what_it_needs_is_accepted(protection: Any, nodes: int) -> None:
    check_survival(counted(protection).graph(), nodes, BUCKET)


@pytest.mark.parametrize(
    ("job", "nodes", "said"),
    [
        (
            counted(uncoordinated=SAVED),
            1,
            "operator 'count' of part 'counting' loses",
        ),
        (counted(replayable=False), 1, "source 'rows' of part 'main' cannot be read again"),
    ],
)
def test_what_it_lacks_is_said_of_each_part(job: hf.Job, nodes: int, said: str) -> None:
    with pytest.raises(hf.DefinitionError, match="does not survive the end of") as refused:
        check_survival(job.graph(), nodes, BUCKET)
    assert said in str(refused.value)


def test_a_checkpoint_on_the_disk_of_one_machine_does_not_survive_it(tmp_path: Path) -> None:
    with pytest.raises(hf.DefinitionError, match="is on the disk of this machine"):
        check_survival(counted().graph(), 1, "/checkpoint-that-is-not-there")


@pytest.mark.parametrize(
    ("protection", "nodes"),
    [(None, 2), (hf.ActiveReplicas(2), 2), (hf.ActiveReplicas(2, vote=True), 3)],
    ids=["rollback", "replicas", "votes"],
)
def test_one_process_does_not_survive_itself_whatever_it_has(protection: Any, nodes: int) -> None:
    with pytest.raises(hf.DefinitionError, match=f"run the job on {nodes} nodes or more"):
        shown(protection).run(BUCKET, survive=1)
