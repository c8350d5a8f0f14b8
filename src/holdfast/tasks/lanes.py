"""Writes lanes of a sink inside a Spark task, straight from where their rows are staged.

Always true: a task never fails for what a sink does; it gives one answer for each of its lanes. No lane is
waited for: what is busy is an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.connectors.lane_publisher import LaneConnection
from holdfast.connectors.lanes import LaneRows, LaneWriter, Outcome, Result
from holdfast.errors import HoldfastError, first_line
from holdfast.tasks.messages import Failure


class LaneAnswer(msgspec.Struct, frozen=True):
    """What became of one lane: a result, or what was raised. A failure without a kind is no error of
    Holdfast's own."""

    lane: int
    result: Result | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class LaneTask:
    """Lanes of one sink in one epoch, in groups: row `id` of the input names which group a task writes."""

    writer: LaneWriter
    term: int
    groups: tuple[tuple[LaneRows, ...], ...]


_decoder = msgspec.msgpack.Decoder(LaneAnswer)


def decode_answer(data: bytes) -> LaneAnswer:
    return _decoder.decode(data)


def run_lanes(task: LaneTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            answers = [msgspec.msgpack.encode(each) for each in _answers(task, task.groups[index])]
            yield pa.RecordBatch.from_arrays([pa.array(answers, pa.binary())], ["result"])


def _answers(task: LaneTask, group: tuple[LaneRows, ...]) -> Iterator[LaneAnswer]:
    connection = LaneConnection(task.writer, task.term)
    away: Result | None = None
    try:
        for rows in group:
            try:
                found = away or connection.write(rows)
                # A server that does not answer is waited for once, and not by each lane.
                away = found if found.outcome is Outcome.UNAVAILABLE else None
                answer = LaneAnswer(rows.lane, found)
            except HoldfastError as error:
                answer = LaneAnswer(rows.lane, failure=Failure(type(error).__name__, error.args))
            except Exception as error:
                told = f"{type(error).__name__}: {first_line(error)}"
                answer = LaneAnswer(rows.lane, failure=Failure("", (told,)))
            yield answer
    finally:
        connection.close()
