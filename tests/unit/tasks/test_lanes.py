"""What a task answers for its lanes, and how lanes are dealt to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.lanes import LaneMark, LaneRows, Outcome, Result
from holdfast.errors import CorruptionError
from holdfast.runtime.epoch.lane_jobs import _told, grouped
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


def test_lanes_are_dealt_to_tasks_by_their_size() -> None:
    waiting = [lane(0, 10), lane(1, 70), lane(2, 30), lane(3, 40)]
    groups = grouped(waiting, 2)
    assert sorted(sum(rows.parts[0].bytes for rows in group) for group in groups) == [70, 80]
    assert grouped(waiting[:1], 4) == ((waiting[0],),), "no task without a lane"
