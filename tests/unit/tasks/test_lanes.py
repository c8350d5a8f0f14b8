"""What a task answers for its lanes, and how lanes are dealt to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome, Result
from holdfast.errors import CorruptionError, MachineError
from holdfast.runtime.epoch.lane_jobs import TURN_BYTES, LaneJobs, _told, grouped, next_turn
from holdfast.tasks.lanes import LaneTask, decode_answer, run_lanes


def lane(number: int, size: int = 1) -> LaneRows:
    part = StagedPart(number, 1, lambda: pa.table({"n": [1]}), bytes=size)
    return LaneRows(number, 1, LaneMark(0), 1, 1, "", (part,))


@dataclass(frozen=True)
class Writer:
    """A sink that is away, or whose lanes 1 and 2 fail."""

    away: bool = False

    def open(self, term: int) -> Writer:
        if self.away:
            raise ConnectionRefusedError("nobody listens")
        return self

    def begin(self, through: int) -> None:
        return

    def marks(self) -> Mapping[int, LaneMark]:
        return {}

    def write(self, rows: LaneRows) -> Result:
        if rows.lane == 1:
            raise CorruptionError("a staged file is damaged")
        if rows.lane == 2:
            raise KeyError("a mistake")
        return Result(Outcome.WRITTEN, LaneMark(1, 1, "i"))

    def close(self) -> None:
        return


def answers(writer: Writer, *lanes: int) -> list[Result | Exception]:
    task = LaneTask(writer, 1, (tuple(lane(number) for number in lanes),))
    batches = run_lanes(task, iter([pa.RecordBatch.from_arrays([pa.array([0])], ["id"])]))
    return [_told(decode_answer(data)) for batch in batches for data in batch.column(0).to_pylist()]


def test_a_server_that_does_not_answer_is_tried_once_by_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def silent(writer: Writer, term: int) -> Writer:
        tries.append(term)
        raise TimeoutError("no answer")

    monkeypatch.setattr(Writer, "open", silent)
    found = answers(Writer(), 1, 2, 3)
    assert [each.outcome for each in found if isinstance(each, Result)] == [Outcome.UNAVAILABLE] * 3
    assert len(tries) == 1


def test_a_lane_that_fails_fails_no_task_and_no_other_lane() -> None:
    damaged, mistake, written = answers(Writer(), 1, 2, 3)
    assert written == Result(Outcome.WRITTEN, LaneMark(1, 1, "i"))
    assert isinstance(written, Result)
    assert written.mark is not None
    assert written.mark.input == "i"
    with pytest.raises(CorruptionError, match="a staged file is damaged"):
        raise damaged  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="KeyError: 'a mistake'"):
        raise mistake  # type: ignore[misc]


def test_a_sink_that_is_away_is_an_answer_for_every_lane() -> None:
    found = answers(Writer(away=True), 0, 5)
    reason = "ConnectionRefusedError: nobody listens"
    assert found == [Result(Outcome.UNAVAILABLE, reason=reason)] * 2


def test_a_package_that_only_the_executors_lack_is_told_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(writer: Writer, term: int) -> Writer:
        raise MachineError("the package acme is missing; install it")

    monkeypatch.setattr(Writer, "open", lacking)
    (found,) = answers(Writer(), 0)
    with pytest.raises(MachineError, match="the executors lack something: the package acme is missing"):
        raise found  # type: ignore[misc]


def test_lanes_are_dealt_to_tasks_by_their_size() -> None:
    waiting = [lane(0, 10), lane(1, 70), lane(2, 30), lane(3, 40)]
    groups = grouped(waiting, 2)
    assert sorted(sum(rows.parts[0].bytes for rows in group) for group in groups) == [70, 80]
    assert grouped(waiting[:1], 4) == ((waiting[0],),), "no task without a lane"


class Spark:
    """A session with so many slots, which runs tasks here; with `lost`, as one whose job has failed. `jobs`:
    what else runs in it."""

    def __init__(self, slots: int, lost: Exception | None = None, jobs: tuple[int, ...] = ()) -> None:
        self._slots, self._lost, self._jobs, self.tasks = slots, lost, jobs, 0

    @property
    def sparkContext(self) -> Any:
        return SimpleNamespace(
            defaultParallelism=self._slots,
            setJobDescription=lambda text: None,
            statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: self._jobs),
        )

    def range(self, start: int, end: int, step: int, tasks: int) -> Any:
        self.tasks = tasks
        ids = pa.RecordBatch.from_arrays([pa.array(range(start, end, step))], ["id"])

        def map_in_arrow(run: Any, schema: Any) -> Any:
            return SimpleNamespace(collect=lambda: self._collected(run(iter([ids]))))

        return SimpleNamespace(mapInArrow=map_in_arrow)

    def _collected(self, batches: Any) -> list[tuple[bytes]]:
        if self._lost is not None:
            raise self._lost
        return [(data,) for batch in batches for data in batch.column(0).to_pylist()]


@pytest.mark.parametrize(
    ("slots", "jobs", "tasks"), [(8, (7,), 4), (3, (7, 8), 1), (1, (7,), 1), (8, (), 5), (3, (), 3)]
)
def test_publishing_takes_at_most_half_of_the_slots_while_anything_else_runs(
    slots: int, jobs: tuple[int, ...], tasks: int
) -> None:
    spark: Any = Spark(slots, jobs=jobs)
    found = LaneJobs(spark, Writer(), "out", 1)([lane(number) for number in (0, 3, 4, 5, 6)])
    assert found == [Result(Outcome.WRITTEN, LaneMark(1, 1, "i"))] * 5
    assert spark.tasks == tasks


def test_of_a_job_that_spark_gave_up_no_outcome_is_known() -> None:
    spark: Any = Spark(4, lost=ConnectionResetError("the JVM is gone"))
    found = LaneJobs(spark, Writer(), "out", 1)([lane(0), lane(3)])
    reason = "failed in Spark: the connection to Spark was lost (the JVM is gone)"
    assert found == [Result(Outcome.UNAVAILABLE, reason=reason)] * 2


def test_a_module_that_the_executors_lack_is_a_refusal_and_any_other_error_of_theirs_is_tried_again() -> None:
    """A module does not come of itself; whether anything else passes cannot be told."""

    def of_worker(raised: str) -> PythonException:
        return PythonException(f'Traceback (most recent call last):\n  File "worker.py", line 1\n{raised}\n')

    for raised, outcome, said in (
        ("ModuleNotFoundError: No module named 'acme'", Outcome.REFUSED, "have no Python module acme; give"),
        ("AttributeError: no attribute 'AcmeSink'", Outcome.UNAVAILABLE, "no attribute 'AcmeSink'"),
    ):
        spark: Any = Spark(4, lost=of_worker(raised))
        found = LaneJobs(spark, Writer(), "out", 1)([lane(0), lane(3)])
        assert [each.outcome for each in found if isinstance(each, Result)] == [outcome] * 2
        assert all(said in each.reason for each in found if isinstance(each, Result))


def test_lanes_are_written_in_turns_of_a_limited_size() -> None:
    small = [lane(number) for number in range(16)]
    assert next_turn(small, 2) == (small, []), "what is quickly written is one job"
    large = [lane(number, TURN_BYTES) for number in range(5)]
    turn, rest = next_turn(large, 2)
    assert (turn, rest) == (large[:2], large[2:])
    assert next_turn(rest[-1:], 2) == (rest[-1:], [])
    huge = [lane(number, 9 * TURN_BYTES) for number in range(3)]
    assert next_turn(huge, 2) == (huge[:2], huge[2:]), "no slot stays idle, however large a lane is"
