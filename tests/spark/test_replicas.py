"""Active replicas on a real Spark: members in one process, each with its own working state."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import members_of
from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Prepared
from holdfast.runtime.job_handle import JobHandle
from holdfast.runtime.parts.part_jobs import checked_parts, enter_checkpoint
from holdfast.storage.urls import open_storage

DEADLINE_SECONDS = 120
KEYS = 50
ROWS = 6_000
OPTIONS: Any = {"until": "exhausted", "parallelism": 2, "max_rows_per_epoch": 300}


class Number(hf.KeyedFunction):
    """Numbers the rows of a key."""

    output = "key long, value double, n long"
    n = hf.ValueState("long", default=0)
    sum = hf.ValueState("double", default=0.0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.n.value += 1
        self.sum.value += row.value
        yield row.key, self.sum.value, self.n.value


def counted(
    out: Path, protection: hf.ActiveReplicas, function: hf.KeyedFunction | None = None, rows: int = ROWS
) -> hf.Job:
    job = hf.Job("replicated")
    part = job.part("counted", protection=protection)
    source = hf.MemorySource([(n % KEYS, n / 7) for n in range(rows)], schema="key long, value double")
    stream = job.source(source, uid="rows", part=part)
    numbers = stream.key_by("key", order_by="value").process(function or Number(), uid="number")
    numbers.sink(hf.FileSink(out, format="parquet"), uid="out")
    return job


class Member:
    """A member of the set, as a node would run it."""

    def __init__(self, job: hf.Job, checkpoint: Path, seat: int, spark: SparkSession, **more: Any) -> None:
        self.said: list[str] = []
        self.phases: list[tuple[str, int]] = []
        """Each phase, and how many epochs were run when it began."""
        self.wishes = Wishes()
        options: Any = {**OPTIONS, "working_dir": str(checkpoint.parent / "work"), **more}
        (part,) = checked_parts(job.graph(), str(checkpoint), options)
        enter_checkpoint(job.graph(), str(checkpoint), options, lambda: spark)
        member = part.in_seat(seat)
        self.handle: JobHandle = member.start_as(
            self.wishes, member.checkpoint, spark, self._note, self.said.append, options,
            Prepared(owner=f"member-{seat}"),
        )  # fmt: skip

    def _note(self, progress: hf.Progress) -> None:
        if progress.phase not in [phase for phase, _ in self.phases[-1:]]:
            self.phases.append((progress.phase, progress.epochs_run))

    @property
    def commit(self) -> int:
        return self.handle.status().commit


def shown(out: Path) -> Counter[tuple[Any, ...]]:
    table = pq.read_table(out)
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def expected() -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    sums: dict[int, tuple[float, int]] = {}
    for n in range(ROWS):
        total, count = sums.get(n % KEYS, (0.0, 0))
        sums[n % KEYS] = total, count = total + n / 7, count + 1
        found[n % KEYS, total, count] += 1
    return found


def records(checkpoint: Path) -> list[CommitRecord]:
    history = History(open_storage(str(checkpoint / "parts" / "counted")))
    return [history.record(number) for number in history.numbers()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def test_two_members_come_to_one_result_and_each_commits_some(tmp_path: Path, spark: SparkSession) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    job = counted(out, hf.ActiveReplicas(k=1))
    members = [Member(job, checkpoint, seat, spark) for seat in (1, 2)]
    for member in members:
        member.handle.wait(DEADLINE_SECONDS)
    assert shown(out) == expected()
    assert not [text for member in members for text in member.said if "DIVERGENCE" in text]
    assert {record.seat for record in records(checkpoint)} <= {1, 2}
    storage = open_storage(str(checkpoint / "parts" / "counted"))
    leader = newest_term(storage)
    assert leader is not None
    assert (leader.term, sorted(members_of(storage, leader.term))) == (1, [1, 2])
    joined = [ran for member in members for phase, ran in member.phases[:-1] if phase == "joining"]
    running = [ran for member in members for phase, ran in member.phases if phase == "running"]
    assert joined[0] == 0, [member.phases for member in members]
    assert running, "at least the one that was first"
    assert min(running) > 0, "a member runs once it has run an epoch"


def test_a_member_without_input_runs_once_it_has_warmed_up(tmp_path: Path, spark: SparkSession) -> None:
    job = counted(tmp_path / "out", hf.ActiveReplicas(k=1), rows=0)
    member = Member(job, tmp_path / "ck", 1, spark, until="stopped")
    until(lambda: member.handle.status().phase == "running")
    assert [phase for phase, _ in member.phases[-2:]] == ["joining", "running"], member.phases
    assert not [text for text in member.said if "joining" in text], "the warm-up failed"
    member.handle.stop()
    member.handle.wait(DEADLINE_SECONDS)
    assert member.handle.status().epochs_run == 0
    assert records(tmp_path / "ck") == [], "a warm-up leaves nothing in the chain"


def test_a_member_that_is_gone_is_not_missed_and_its_seat_can_be_taken(
    tmp_path: Path, spark: SparkSession
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    job = counted(out, hf.ActiveReplicas(k=1))
    first, second = (Member(job, checkpoint, seat, spark) for seat in (1, 2))
    until(lambda: second.commit > 2)
    first.wishes.leaving.set()
    first.handle.stop()
    first.handle.wait(DEADLINE_SECONDS)
    third = Member(job, checkpoint, 1, spark)
    for member in (second, third):
        member.handle.wait(DEADLINE_SECONDS)
    assert shown(out) == expected()
    assert third.handle.status().epochs_run > 0, third.said
    assert not [text for member in (first, second, third) for text in member.said if "DIVERGENCE" in text]


class Strays(Number):
    """Comes to other results in one process: as a member does whose memory is faulty."""

    strays_in = ""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        for key, value, n in super().process(row, ctx):
            here = self.strays_in if n == 5 and key == 3 else ""
            if here == "state":
                self.sum.value += 1_000_000
            yield key, value, n + (1_000_000 if here == "output" else 0)


class StrayingInOutput(Strays):
    strays_in = "output"


class StrayingInState(Strays):
    strays_in = "state"


@pytest.mark.parametrize(
    ("straying", "named"),
    [(StrayingInOutput, "rows of 'number'"), (StrayingInState, "state of operator 'number'")],
)
@pytest.mark.parametrize("vote", [False, True])
def test_a_member_that_comes_to_other_results_is_named(
    tmp_path: Path,
    spark: SparkSession,
    vote: bool,
    straying: type[Strays],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without votes its results may be the ones that count; with them they never are."""
    monkeypatch.setattr("holdfast.graph.fingerprint.fingerprint", lambda graph: "the same")
    monkeypatch.setattr("holdfast.runtime.driver.fingerprint", lambda graph: "the same")
    monkeypatch.setattr("holdfast.runtime.epoch_loop.fingerprint", lambda graph: "the same")
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    protection = hf.ActiveReplicas(k=2, vote=True) if vote else hf.ActiveReplicas(k=1)
    functions = [straying(), Strays(), Strays()][: protection.members]
    members = [
        Member(counted(out, protection, function), checkpoint, seat, spark)
        for seat, function in enumerate(functions, 1)
    ]
    for member in members:
        member.handle.wait(2 * DEADLINE_SECONDS)
    told = [text for member in members for text in member.said if "DIVERGENCE" in text or "OUTVOTED" in text]
    assert told, [member.said for member in members]
    # In the very epoch, of which the members were told apart by what strayed.
    assert "in epoch 1:" in told[0]
    assert named in told[0]
    if vote:
        assert shown(out) == expected()
        assert not [text for member in members[1:] for text in member.said if "OUTVOTED" in text]
