"""However the rows are cut into epochs, whatever crashes, whatever the parallelism and the backend: the same
timers fire, with the same state.

As test_epochs, with the real planner, plans and watermarks of a leader. The reference is one big epoch, one
for what it made due, and one that closes. It holds for rows that are out of order by no more than the delay.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.chain.commits import Committed
from holdfast.checkpoint.chain.shard_lines import Line, line_of
from holdfast.checkpoint.store.records import CommitRecord, PlanRecord
from holdfast.graph.column_types import state_layout
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.outcome import EpochOutcome, take_state
from holdfast.runtime.epoch.payload_bundle import Bundle
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.state.contract import NextDue
from holdfast.storage.checksums import read_extent
from holdfast.tasks.keyed import operator_result
from holdfast.tasks.messages import EpochWork, KeyedTask, TaskResult
from holdfast.tasks.operators.result import EventTime
from holdfast.tasks.task_output import unpack_rows
from holdfast.testing.clocks import ManualClock
from tests.property.test_epochs import (
    BACKENDS,
    GROUPS,
    KEYS,
    ROWS,
    Event,
    Life,
    World,
    _dealt,
    checked,
    lives,
)
from tests.unit.runtime.leader_kit import leader_of, no_tables

DELAY, SIZE = 4, 8
"""Seconds: how far rows are out of order, and how long a window is."""


class Windows(hf.KeyedFunction):
    """Counts the rows of each window. Rows set alarms, which windows take back; some are told again."""

    output = "key long, at long, n long"
    counts = hf.MapState("long", "long")
    muted = hf.MapState("long", "boolean")

    def process(self, row: Any, ctx: Any) -> None:
        end = row.at // SIZE * SIZE + SIZE
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.timers.event(end * 1_000)
        if row.value % 3 == 0:
            ctx.timers.event((end + 3) * 1_000)
        if row.value % 7 == 0:
            self.muted[end] = True

    def on_timer(self, at: datetime, ctx: Any) -> Iterator[tuple[int, int, int]]:
        second = int(at.timestamp())
        count = self.counts.get(second, 0)
        yield ctx.key, second, count
        if count:
            del self.counts[second]
            if self.muted.pop(second, False):
                ctx.timers.delete(at + timedelta(seconds=3))
        if count % 2 or second % SIZE == 1:
            ctx.timers.event(at + timedelta(seconds=1))


def graph_of(rows: list[Event]) -> Any:
    job = hf.Job("timed")
    schema = "key long, at long, value long, ts timestamp"
    source = job.source(hf.MemorySource([(*row, None) for row in rows], schema=schema), uid="rows")
    source.watermark("ts", delay=f"{DELAY}s").key_by("key").process(Windows(), uid="op")
    return job.graph()


class TimedWorld(World):
    """A world whose leaders plan as real ones do."""

    def __init__(self, root: Path, rows: list[Event]) -> None:
        super().__init__(root, Windows(), ())
        self._rows, self._graph, self._clock = rows, graph_of(rows), ManualClock(0)
        self._term, self._layout = 0, state_layout("op", Windows(), ROWS, ("key",))
        self.plans: list[PlanRecord] = []
        """Those that were committed."""

    def lead(self, life: Life, together: int) -> bool:
        """Lead for as many epochs as the life allows; whether there is nothing left to do. `together`: how
        many epochs share a commit."""
        self._term += 1
        workspace, shards = self._workspace(life.backend), life.shards
        lines = {
            ("op", shard): line_of(self.view, "op", groups)
            for shard, groups in enumerate(shard_ranges(GROUPS, shards))
        }
        planner, waiting = self._planner(shards, max(life.epochs)), list[tuple[PlanRecord, EpochOutcome]]()
        done = False
        for turn, size in enumerate(life.epochs):
            plan = self._next(planner, size, lines)
            if plan is None:
                done = True
                break
            dies = life.died_after if turn == len(life.epochs) - 1 else None
            results = self._run_plan(workspace, plan, lines, dies)
            if dies is not None and dies < shards:
                waiting.clear()
                break
            waiting.append((plan, self._taken(plan, results, lines, planner)))
            if len(waiting) >= together:
                self._commit_all(waiting)
                waiting = []
        self._commit_all(waiting)
        if life.lost:
            for backend in BACKENDS:
                shutil.rmtree(self._workspace(backend).working_root or "", ignore_errors=True)
        return done

    def _planner(self, shards: int, max_rows: int) -> Planner:
        context = leader_of(
            self._storage, declared=self._graph, clock=self._clock, term=self._term, run=f"r{self._term}"
        )
        shape = PlanShape(("rows",), "f", shards, max_rows)
        recorded = recorded_plans(self._chain, self.view, shape, {})
        return Planner(context, self.view, shape, recorded, no_tables())

    def _next(self, planner: Planner, size: int, lines: dict[Any, Line]) -> PlanRecord | None:
        dues = [line.next_due for line in lines.values()]
        known = [due.event_us for due in dues if due is not None and due.event_us is not None]
        open_times = {"op": None if None in dues else NextDue(event_us=min(known, default=None))}
        plan = planner.next(size, 0, open_times, ended=planner.exhausted)
        return plan or (planner.close(0, open_times) if planner.exhausted() else None)

    def _run_plan(
        self, workspace: Any, plan: PlanRecord, lines: dict[Any, Line], dies: int | None
    ) -> list[TaskResult]:
        shards, mark = plan.parallelism, plan.watermarks["op"]
        task = KeyedTask(
            work=EpochWork(workspace, plan.epoch, plan.attempt, run=f"r{self._term}", clock_ms=0), uid="op",
            committed=self.view.last_epoch, function=self._function, lineage=self._lineage, key=("key",),
            order_by=(), input=ROWS, on_error="fail", outputs=("",), saves_state=True,
            shards=tuple(lines["op", shard] for shard in range(shards)),
            time=EventTime(mark.before_us, mark.now_us, plan.closing, plan.closed_through),
        )  # fmt: skip
        rows = [self._rows[n] for part in plan.slices.values() for n in range(part.start or 0, part.end)]
        tables = _dealt(self.table(rows), shards) if rows else [ROWS.empty_table()] * shards
        results = []
        for shard in range(shards if dies is None else min(dies, shards)):
            result = operator_result(task, shard, tables[shard].to_batches())
            assert result.failure is None, result.failure
            results.append(result)
        return results

    def _taken(
        self, plan: PlanRecord, results: list[TaskResult], lines: dict[Any, Line], planner: Planner
    ) -> EpochOutcome:
        outcome = EpochOutcome(plan)
        bundle = Bundle(self._storage, f"data/{plan.epoch:012d}/bundle-{uuid.uuid4().hex}")
        for result in results:
            take_state(outcome, "op", result, lines, bundle)
            outcome.staged += [output.payload for output in result.outputs]  # type: ignore[misc]
        bundle.write()
        for delta in outcome.deltas:
            key = next(key for key, line in lines.items() if line.groups.first == delta.first_group)
            lines[key] = lines[key].extended(delta)
        newest = [
            self._rows[n][1] * 1_000_000
            for part in plan.slices.values()
            for n in range(part.start or 0, part.end)
        ]
        planner.watermarks.observed({"rows": {"": max(newest, default=None)}}, plan)
        outcome.event_times = planner.watermarks.standing()
        return outcome

    def _commit_all(self, waiting: list[tuple[PlanRecord, EpochOutcome]]) -> None:
        if not waiting:
            return
        last, outcome = waiting[-1]
        ends = [part.end for plan, _ in waiting for part in plan.slices.values()]
        record = CommitRecord(
            term=self._term, run=f"r{self._term}", first_epoch=waiting[0][0].epoch, last_epoch=last.epoch,
            attempts={str(plan.epoch): plan.attempt for plan, _ in waiting}, clock_ms=0,
            parallelism=last.parallelism, fingerprint="f", positions={"rows": ends[-1]} if ends else {},
            deltas=tuple(delta for _, each in waiting for delta in each.deltas),
            operators=(self._schema,) if self.view.number == 0 else None, event_times=outcome.event_times,
            watermarks={uid: mark.now_us for uid, mark in last.watermarks.items() if mark.now_us is not None},
            closed_through=max(plan.epoch if plan.closing else 0 for plan, _ in waiting),
        )  # fmt: skip
        assert isinstance(self._chain.commit(self.view, record), Committed)
        self.view = self._chain.load()
        self.plans += [plan for plan, _ in waiting]
        for _, each in waiting:
            for payload in each.staged:
                data = payload.inline or read_extent(self._storage, payload.extent)  # type: ignore
                self.shown += unpack_rows(data, "output").to_pylist()


def _through(root: Path, rows: list[Event], plan: list[Life], together: list[int]) -> TimedWorld:
    world = TimedWorld(root, rows)
    for life, count in zip(plan, together, strict=False):
        world.lead(life, count)
    while not world.lead(Life(1, "lmdb", (len(rows),) * 6, None, 0, False), 1):
        pass
    return world


out_of_order = st.lists(
    st.tuples(st.integers(0, KEYS), st.integers(0, 6), st.integers(0, DELAY), st.integers(0, 30)),
    min_size=1,
    max_size=40,
)


def _rows(found: list[tuple[int, int, int, int]]) -> list[Event]:
    now, rows = 100, []
    for key, step, behind, value in found:
        now += step
        rows.append((key, now - behind, value))
    return rows


@checked
@given(out_of_order, st.lists(lives, max_size=5), st.lists(st.integers(1, 2), min_size=5, max_size=5))
def test_the_same_timers_fire_and_the_same_state_is_left(
    found: list[tuple[int, int, int, int]], plan: list[Life], together: list[int]
) -> None:
    rows = _rows(found)
    with tempfile.TemporaryDirectory(prefix="hf-timed-", ignore_cleanup_errors=True) as root:
        world = _through(Path(root) / "cut", rows, plan, together)
        whole = _through(Path(root) / "whole", rows, [], [])
        assert Counter(map(_frozen, world.shown)) == Counter(map(_frozen, whole.shown))
        assert world.state() == whole.state()
        assert world.view.watermarks == whole.view.watermarks
    marks = [plan.watermarks["op"] for plan in world.plans]
    reached = [mark.now_us for mark in marks if mark.now_us is not None]
    assert reached == sorted(reached)
    assert [mark.before_us for mark in marks[1:]] == [mark.now_us for mark in marks[:-1]]
    windows = Counter((key, at // SIZE * SIZE + SIZE) for key, at, _ in rows)
    assert {(row["key"], row["at"]): row["n"] for row in world.shown if row["n"]} == windows


def _frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))
